"""The command `examples`: the lists and files that it writes."""

from pathlib import Path

from ftcluster.stacks.catalog import load_stacks
from ftcluster.user_script.command import read_words
from ftcluster.user_script.compatibility import incompatibilities
from ftcluster.user_script.source import read_source
from tests.programs import ROOT
from tests.unit.shell import Shell


def test_they_are_listed_shown_and_written(shell: Shell, tmp_path: Path) -> None:
    listed = shell("examples --json").document
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {one["example"] for one in listed} == names
    assert "nanogpt" in shell("examples").out
    assert shell("examples ddp").out == (ROOT / "examples/ddp.py").read_text()
    written = shell(["examples", "--to", str(tmp_path), "--json"]).document["files"]
    assert {Path(path).stem for path in written} == names
    assert "exist already" in shell(["examples", "ddp", "--to", str(tmp_path)], 1).err
    assert "nanogpt" in shell("examples no-such", 2).err


def test_run_has_nothing_against_them_and_they_say_how_to_run_them() -> None:
    stacks = load_stacks()
    stack = next(one for one in stacks.values() if one.state == "default")
    for path in (ROOT / "examples").glob("*.py"):
        text = path.read_text()
        usage = "uvicorn serve:app" if path.stem == "serve" else f"{path.name} --data"
        assert usage in text.partition("import")[0], path
        assert len(text.splitlines()) <= 110, path
        script = read_words([str(path)], False, path.parent)
        assert script.source
        assert script.folder
        brings = "--requirements" in text
        found = incompatibilities(
            read_source(script.source, script.folder), (), stack, stacks, brings
        )
        assert [str(one) for one in found if one.certain] == [], path
