"""A script's requirements file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ftcluster.errors import UsageError
from ftcluster.user_script.requirements import Requirements, read_requirements

STACK = {"torch": "2.13.0+cpu", "transformers": "5.23.0", "fsspec": "2026.9.0"}
DIGEST = "a" * 64


def read(folder: Path, text: str, **others: str) -> Requirements:
    for name, other in {"own": text, **others}.items():
        (folder / f"{name}.txt").write_text(other)
    return read_requirements(folder / "own.txt")


def test_packages_as_pip_reads_them(tmp_path: Path) -> None:
    (tmp_path / "my wheels").mkdir()
    found = read(
        tmp_path,
        "# made by a tool\n"
        "trl[peft]>=0.20  # newest\n"
        f"Tool.Kit==1.0 ; python_version > '3' \\\n    --hash=sha256:{DIGEST} \\\n"
        f"    --hash sha256:{'B' * 64}\n"
        "    # of trl\n"
        "wheel @ https://x.org/wheel-1.0-py3-none-any.whl#sha256=1\n"
        "-r more.txt\n"
        "--constraint=limits.txt\n"
        "--require-hashes\n"
        "--index-url https://me@x.org/simple\n"
        "-f my wheels\n",
        more="old ; python_version < '3'\n--pre\n",
        limits="numpy<3\n",
    )
    # packaging has changed its form of URLs
    asked = [text.replace("wheel@", "wheel @") for text in found.for_pip(STACK, False)]
    assert asked == [
        "trl[peft]>=0.20", 'Tool.Kit==1.0; python_version > "3"',
        "wheel @ https://x.org/wheel-1.0-py3-none-any.whl#sha256=1", 'old; python_version < "3"',
    ]  # fmt: skip
    assert found.for_pip(STACK, True) == ["numpy<3"]
    assert found.options == (
        "--pre", "--index-url https://me@x.org/simple", f"-f '{tmp_path}/my wheels'",
    )  # fmt: skip
    assert found.hashes("3.11") == {"tool-kit": {DIGEST, "b" * 64}}
    assert [line.where for line in found.lines][:2] == [
        f"{tmp_path}/own.txt:2", f"{tmp_path}/own.txt:3"
    ]  # fmt: skip


def test_packages_of_the_stack_are_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, "torch\nTransformers[sentencepiece]>=5\nFSSPEC==2026.9.0\n-c own2.txt\n",
                 own2="torch<3\n")  # fmt: skip
    assert found.conflicts(STACK, "3.11") == []
    assert found.for_pip(STACK, False) == ["Transformers[sentencepiece]"]
    assert found.for_pip(STACK, True) == []


def test_a_package_of_the_stack_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[object], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.txt").write_text(
        "torch==2.13.0\ntransformers<5\nfsspec==1 ; python_version < '3.8'\n"
        "torch @ file:///torch-2.13.0-py3-none-any.whl\n-c limits.txt\n"
    )
    Path("limits.txt").write_text("torch>2.13\n")
    found = read_requirements(Path("own.txt")).conflicts(STACK, "3.11")
    said("\n".join(found))


def test_what_is_not_supported_is_named_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[object], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.txt").write_text(
        "fine\n-e .\n./folder\na b\ntool @ git+https://x.org/tool.git\n"
        f"tool==1 --hash=md5:{DIGEST}\ntool==1 --config-settings=a=b\n-r own.txt\n"
        "--no-binary tool\n-r none.txt\n"
    )
    with pytest.raises(UsageError) as caught:
        read_requirements(Path("own.txt"))
    said(caught.value)


@pytest.mark.parametrize(
    "line",
    ["--index-url https://me:${HF_TOKEN}@mirror.test/simple", "tool @ https://x.org/${A_B}.whl",
     "-r ${HOME}/more.txt", "--find-links ${TOKEN}"],
)  # fmt: skip
def test_pip_does_not_get_to_replace_a_variable(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"own\.txt:2: variables such as \$\{\w+\} are"):
        read(tmp_path, f"fine # ${{COMMENT}}\n{line}\n")


def test_a_long_line_takes_no_long_time(tmp_path: Path) -> None:
    text = f"tool{' ' * 200_000}x\nother{' ' * 200_000}--hash{' ' * 200_000}=\n"
    with pytest.raises(UsageError, match=r"own\.txt:1: 'tool"):
        read(tmp_path, text)
