"""The arguments after `--`."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcluster.errors import UsageError
from ftcluster.launch.follow import new_run_id
from ftcluster.user_script.command import Script, doubtful_paths, read_words


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Make a current folder with a project."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "pkg").mkdir()
    for name in ("train.py", "pkg/__init__.py", "pkg/train.py", "data/rows.jsonl"):
        (project / name).touch()
    return tmp_path


def test_a_script_starts_in_its_folder(here: Path) -> None:
    script = read_words(["project/train.py", "--lr", "1", "--", "-m"], False, here)
    assert script == Script(
        name="train",
        program=("train.py", "--lr", "1", "--", "-m"),
        arguments=("--lr", "1", "--", "-m"),
        source=here / "project/train.py",
        folder=here / "project",
    )


def test_a_linked_folder_is_followed(here: Path) -> None:
    (here / "link").symlink_to(here / "project")
    assert read_words(["link/train.py"], False, here).folder == here / "project"


def test_a_module_of_this_folder_is_copied_with_it(here: Path) -> None:
    script = read_words(["-m", "pkg.train", "x"], False, here / "project")
    assert script.program == ("-m", "pkg.train", "x")
    assert (script.folder, script.source) == (here / "project", here / "project/pkg/train.py")
    assert script.name == "pkg.train"


def test_any_other_module_is_on_the_hosts(here: Path) -> None:
    for words, on_hosts in ((["-m", "trl.scripts.sft"], False), (["-m", "pkg.train"], True)):
        script = read_words(words, on_hosts, here / "project")
        assert (script.folder, script.source, script.start) == (None, None, "")


def test_a_path_of_the_hosts(here: Path) -> None:
    script = read_words(["/shared/glue/run_glue.py", "--x"], True, here)
    assert script.program == ("/shared/glue/run_glue.py", "--x")
    assert (script.folder, script.start, script.name) == (None, "/shared/glue", "run_glue")


NOT_SCRIPTS = """
none.py
project
-u train.py
--lr 1
-m
-m a/b.py
python project/train.py
/usr/bin/python3.11 project/train.py
torchrun --nproc_per_node 2 t.py
mpirun -f hosts -n 4 -genv OMP_NUM_THREADS=24 python3 -u "my script.py" --no_cuda
accelerate launch --config_file ./single_config.yaml main.py
-m torch.distributed.launch --nproc_per_node 2 project/train.py --lr 1
"""


def test_what_is_not_a_script(here: Path, said: Callable[[object], None]) -> None:
    messages = []
    for words in ["", *NOT_SCRIPTS.split("\n")[1:-1]]:
        with pytest.raises(UsageError) as caught:
            read_words(shlex.split(words), False, here)
        messages.append(f"{caught.value.message}: {caught.value.hint}")
    with pytest.raises(UsageError) as caught:
        read_words(["train.py"], True, here)
    said("\n".join([*messages, caught.value.message]))


def test_a_script_whose_name_is_misspelt(here: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        read_words(["project/trian.py"], False, here)
    assert str(caught.value.hint).startswith("did you mean project/train.py? ")


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("train.py", "train"),
        ("run glue (2).py", "run-glue-2"),
        ("[x] .py", "x"),
        ("é.py", "unnamed"),
    ],
)
def test_runs_have_names_for_folders(tmp_path: Path, name: str, run: str) -> None:
    (tmp_path / name).touch()
    assert new_run_id(read_words([name], False, tmp_path).name).startswith(f"{run}-20")


def notes(here: Path, *words: str, same_machine: bool = False) -> list[str]:
    return doubtful_paths(read_words(words, False, here), here, same_machine)


def test_paths_that_are_the_same_for_the_ranks_need_no_note(here: Path) -> None:
    project = here / "project"
    assert (
        notes(project, "train.py", "data", "--rows=data/rows.jsonl", "none", "1", "", "x" * 999)
        == []
    )


def test_paths_that_are_others_for_the_ranks(here: Path, said: Callable[[object], None]) -> None:
    project, outside = here / "project", here / "model"
    outside.mkdir()
    found = [
        *notes(here, "project/train.py", "--data=project/data"),
        *notes(project, "train.py", str(project / "data")),
        *notes(project, "train.py", "--model", str(outside)),
        *notes(project, "train.py", "model=../model", same_machine=True),
        *notes(here, "-m", "package.of_the_hosts", "project/data"),
    ]
    said("\n".join(found).replace(str(here), "HERE"))
    assert notes(project, "train.py", str(outside), same_machine=True) == []
