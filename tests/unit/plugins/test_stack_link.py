import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules import stack_link
from ansible_collections.ftcluster.cluster.plugins.modules.stack_link import (
    is_finished,
    main,
    point,
    target,
)


def stack(prefix: Path, name: str) -> str:
    (prefix / "stacks" / name).mkdir(parents=True)
    (prefix / "stacks" / name / ".complete").touch()
    return str(prefix / "stacks" / name)


@pytest.fixture
def run(tmp_path: Path, run_module: Any) -> Any:
    return lambda **parameters: run_module(main, **{"prefix": str(tmp_path), **parameters})


def links(prefix: Path) -> tuple[str, str]:
    return target(prefix / "current"), target(prefix / "previous")


def test_a_link_is_moved_and_nothing_is_left(tmp_path: Path) -> None:
    link = tmp_path / "current"
    assert target(link) == ""
    point(link, tmp_path / "one")
    (tmp_path / ".current.new").symlink_to("left over")
    point(link, tmp_path / "two")
    assert target(link) == str(tmp_path / "two")
    assert [found.name for found in tmp_path.iterdir()] == ["current"]
    # a folder in place of the link counts as no stack
    (tmp_path / "folder").mkdir()
    assert target(tmp_path / "folder") == ""
    assert not is_finished("")
    assert not is_finished(str(tmp_path / "folder"))


def test_the_former_stack_and_back_again(tmp_path: Path, run: Any) -> None:
    one = stack(tmp_path, "one")
    assert run(path=one)["changed"]
    assert links(tmp_path) == (one, "")
    assert not run(path=one)["changed"]
    failed = run(state="previous")
    assert failed["failed"]
    assert "only one stack was ever set up" in failed["msg"]
    # and switch back
    two = stack(tmp_path, "two")
    run(path=two)
    assert links(tmp_path) == (two, one)
    found = run(state="previous")
    assert (found["changed"], found["current"]) == (True, one)
    assert links(tmp_path) == (one, two)
    run(state="previous")
    assert links(tmp_path) == (two, one)
    # a previous stack that is incomplete is reported
    (Path(one) / ".complete").unlink()
    assert f"{one} is incomplete" in run(state="previous")["msg"]
    assert links(tmp_path) == (two, one)


def test_check_mode_moves_no_link(tmp_path: Path, run: Any) -> None:
    one = stack(tmp_path, "one")
    assert run(check=True, path=one)["changed"]
    assert run(check=True, path=str(tmp_path / "not made yet"))["changed"]
    assert links(tmp_path) == ("", "")
    # an incomplete stack is not used
    run(path=one)
    failed = run(path=str(tmp_path / "two"))
    assert "is not completely installed; run the stage stack again" in failed["msg"]
    assert links(tmp_path) == (one, "")


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


# --- pruning


@pytest.fixture
def four(tmp_path: Path, run: Any) -> Path:
    """Make stacks one to four; two is current, and one is previous."""
    for name in ("one", "two", "three", "four"):
        stack(tmp_path, name)
    run(path=str(tmp_path / "stacks/one"))
    run(path=str(tmp_path / "stacks/two"))
    (tmp_path / "stacks/four/.complete").unlink()  # an interrupted installation
    return tmp_path


def there(prefix: Path) -> list[str]:
    return sorted(path.name for path in (prefix / "stacks").iterdir())


def test_what_no_link_points_to_is_removed(four: Path, run: Any) -> None:
    found = run(check=True, state="pruned")
    assert (found["changed"], found["removed"]) == (True, ["four", "three"])
    assert there(four) == ["four", "one", "three", "two"]
    found = run(state="pruned")
    assert found["changed"]
    assert found["removed"] == ["four", "three"]
    assert found["current"] == str(four / "stacks/two")
    assert there(four) == ["one", "two"]
    again = run(state="pruned")
    assert (again["changed"], again["removed"]) == (False, [])
    assert run(state="previous")["current"] == str(four / "stacks/one")


def test_without_a_former_one_only_the_current_stays(four: Path, run: Any) -> None:
    (four / "previous").unlink()
    assert run(state="pruned")["removed"] == ["four", "one", "three"]


@pytest.mark.parametrize("link", ["", "somewhere/else"])
def test_without_a_current_one_nothing_is_removed(four: Path, run: Any, link: str) -> None:
    (four / "current").unlink()
    if not link:
        assert run(state="pruned")["removed"] == []
        assert len(there(four)) == 4
    else:  # the reason names the run even if its stack is gone
        (four / "current").symlink_to(link)
        assert run(state="pruned")["removed"] == ["four", "three", "two"]


def test_without_any_stack_there_is_nothing_to_remove(run: Any) -> None:
    assert run(state="pruned")["removed"] == []


def test_a_prefix_written_in_another_way_is_the_same(
    four: Path, run: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "link"
    other.symlink_to(four)
    assert run(prefix=str(other), state="pruned")["removed"] == ["four", "three"]
    assert there(four) == ["one", "two"]


def test_links_that_are_relative_are_followed(four: Path, run: Any) -> None:
    point(four / "current", Path("stacks/three"))
    assert run(state="pruned")["removed"] == ["four", "two"]


def test_packages_of_scripts_are_removed_where_no_run_uses_their_stack(
    four: Path, run: Any
) -> None:
    for name in ("one-a", "two-a", "two-b", "two-b.staging-0f", "gone-a"):
        (four / "layers" / name / "lib").mkdir(parents=True)
    (four / "layers/one-link").symlink_to(four / "stacks/one")  # the account may write here
    descriptor = os.open(four / "stacks/two", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as a run does
    found = run(state="pruned")
    assert found["removed"] == [
        "four", "three", "layers/gone-a", "layers/one-a", "layers/one-link",
    ]  # fmt: skip
    assert is_finished(str(four / "stacks/one"))
    [why] = found["kept"]
    assert "the stack two here" in why
    os.close(descriptor)
    assert run(state="pruned", check=True)["changed"]
    assert len(run(state="pruned")["removed"]) == 3
    assert list((four / "layers").iterdir()) == []


def test_a_stack_whose_removal_was_broken_off_is_not_finished(
    four: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    failed = run(state="pruned")
    assert failed["msg"] == f"{four}/stacks/four, {four}/stacks/three cannot be removed"
    assert not is_finished(str(four / "stacks/three"))
    assert is_finished(str(four / "stacks/two"))
