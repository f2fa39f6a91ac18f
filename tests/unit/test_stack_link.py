import io
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import basic

from plugins.modules import stack_link
from plugins.modules.stack_link import is_finished, main, point, target


def stack(prefix: Path, name: str) -> str:
    (prefix / "stacks" / name).mkdir(parents=True)
    (prefix / "stacks" / name / ".complete").touch()
    return str(prefix / "stacks" / name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the module in this process, as Ansible would."""

    def run_module(check: bool = False, **parameters: str) -> dict[str, Any]:
        arguments = {**parameters, "prefix": str(tmp_path), "_ansible_check_mode": check}
        monkeypatch.setattr(
            basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
        )
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        monkeypatch.setattr("sys.stdin", io.StringIO())
        with pytest.raises(SystemExit):
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run_module


def links(prefix: Path) -> tuple[str, str]:
    return target(prefix / "current"), target(prefix / "former")


def test_a_link_is_moved_and_nothing_is_left(tmp_path: Path) -> None:
    link = tmp_path / "current"
    assert target(link) == ""
    point(link, tmp_path / "one")
    (tmp_path / ".current.new").symlink_to("left over")
    point(link, tmp_path / "two")
    assert target(link) == str(tmp_path / "two")
    assert [found.name for found in tmp_path.iterdir()] == ["current"]


def test_a_folder_in_the_links_place_is_none(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    assert target(tmp_path / "current") == ""
    assert not is_finished("")
    assert not is_finished(str(tmp_path / "current"))


def test_the_first_stack_has_no_former(tmp_path: Path, run: Any) -> None:
    one = stack(tmp_path, "one")
    assert run(path=one)["changed"]
    assert links(tmp_path) == (one, "")
    assert not run(path=one)["changed"]
    failed = run(state="former")
    assert failed["failed"]
    assert "only one has ever been set up" in failed["msg"]


def test_the_former_stack_and_back_again(tmp_path: Path, run: Any) -> None:
    one, two = stack(tmp_path, "one"), stack(tmp_path, "two")
    run(path=one)
    run(path=two)
    assert links(tmp_path) == (two, one)
    found = run(state="former")
    assert (found["changed"], found["current"]) == (True, one)
    assert links(tmp_path) == (one, two)
    run(state="former")
    assert links(tmp_path) == (two, one)


def test_check_mode_moves_no_link(tmp_path: Path, run: Any) -> None:
    one = stack(tmp_path, "one")
    assert run(check=True, path=one)["changed"]
    assert run(check=True, path=str(tmp_path / "not made yet"))["changed"]
    assert links(tmp_path) == ("", "")


def test_a_stack_that_is_not_finished_is_not_used(tmp_path: Path, run: Any) -> None:
    one = stack(tmp_path, "one")
    run(path=one)
    failed = run(path=str(tmp_path / "two"))
    assert "is not a finished stack; run the stage stack again" in failed["msg"]
    assert links(tmp_path) == (one, "")


def test_a_former_stack_that_is_gone_is_told(tmp_path: Path, run: Any) -> None:
    one, two = stack(tmp_path, "one"), stack(tmp_path, "two")
    run(path=one)
    run(path=two)
    (Path(one) / ".complete").unlink()
    assert f"{one} is not whole" in run(state="former")["msg"]
    assert links(tmp_path) == (two, one)


def test_a_broken_current_stack_does_not_become_the_former(tmp_path: Path, run: Any) -> None:
    one, two, three = (stack(tmp_path, name) for name in ("one", "two", "three"))
    run(path=one)
    run(path=two)
    (Path(two) / ".complete").unlink()
    run(path=three)
    assert links(tmp_path) == (three, one)


def test_a_prefix_that_cannot_be_written_is_told(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(link: Path, _path: str) -> None:
        raise PermissionError(13, "Permission denied", str(link))

    monkeypatch.setattr(stack_link, "point", refuse)
    assert run(path=stack(tmp_path, "one"))["msg"] == f"{tmp_path}/current: Permission denied"
