"""What the words after `--` mean."""

from pathlib import Path

import pytest

from ftcluster.errors import UsageError
from ftcluster.launch.follow import new_run_id
from ftcluster.user_script.command import Script, doubtful_paths, read_words


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A current folder with a project in it."""
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


@pytest.mark.parametrize(
    ("words", "on_hosts", "said"),
    [
        ([], False, "no script is given"),
        (["none.py"], False, "script none.py does not exist here"),
        (["project"], False, "project is a folder"),
        (["-u", "train.py"], False, "'-u' is not a script"),
        (["--lr", "1"], False, "'--lr' is not a script"),
        (["-m"], False, "there is none"),
        (["-m", "a/b.py"], False, "'a/b.py' is not one"),
        (["train.py"], True, "an absolute path on the hosts, not 'train.py'"),
        (["python", "project/train.py"], False, "leave out python"),
        (["/usr/bin/python3.11", "project/train.py"], False, "leave out /usr/bin/python3.11"),
        (["torchrun", "--nproc_per_node", "2", "t.py"], False, "leave out torchrun"),
        (["accelerate", "launch", "t.py"], False, "leave out accelerate"),
        (["mpirun", "-n", "2", "t.py"], False, "leave out mpirun"),
    ],
)
def test_what_is_no_script(here: Path, words: list[str], on_hosts: bool, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_words(words, on_hosts, here)
    assert said in str(caught.value)


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
    assert new_run_id(read_words([name], False, tmp_path)).startswith(f"{run}-20")


def notes(here: Path, *words: str, same_machine: bool = False) -> list[str]:
    return doubtful_paths(read_words(words, False, here), here, same_machine)


def test_paths_that_mean_the_same_there_are_not_spoken_of(here: Path) -> None:
    project = here / "project"
    assert (
        notes(project, "train.py", "data", "--rows=data/rows.jsonl", "none", "1", "", "x" * 999)
        == []
    )


def test_a_path_of_the_scripts_folder_seen_from_elsewhere(here: Path) -> None:
    [note] = notes(here, "project/train.py", "--data=project/data")
    assert note == f"project/data: the ranks start in a copy of {here / 'project'}; write data"
    [note] = notes(here / "project", "train.py", str(here / "project/data"), same_machine=False)
    assert note.endswith("; write data")


def test_a_path_outside_of_the_scripts_folder(here: Path) -> None:
    outside = here / "model"
    outside.mkdir()
    [note] = notes(here / "project", "train.py", "--model", str(outside))
    assert note == (
        f"{outside} exists here, outside of the script's folder, which alone is copied; "
        "give an absolute path that is on every host"
    )
    assert notes(here / "project", "train.py", str(outside), same_machine=True) == []
    [note] = notes(here / "project", "train.py", "model=../model", same_machine=True)
    assert note.endswith(f"; write {outside}")


def test_a_path_where_nothing_is_copied(here: Path) -> None:
    words = ["-m", "trl.scripts.sft", "project/data"]
    [note] = doubtful_paths(read_words(words, False, here), here, False)
    assert note == "project/data exists here and may not on the hosts: nothing is copied"
