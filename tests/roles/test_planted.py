"""Templates planted in all texts of users and hosts: real playbooks never evaluate them."""

import json
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from ftcluster.ansible.playbook import TaskEvent, run_playbook
from ftcluster.ansible.playbooks import Preflight
from ftcluster.cli.main import main
from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import FtclusterError, RecipeError
from ftcluster.launch.follow import launch_and_follow, new_run_id
from ftcluster.launch.mpirun import render
from ftcluster.launch.training_run import TrainingRun
from ftcluster.planning.plan import plan
from ftcluster.progress.view import make_view
from ftcluster.provision.stages import run_stages, stack_name
from ftcluster.recipe.recipe import known_recipes, load_recipe, schema_of
from ftcluster_common.recipe import Recipe
from tests.unit.clusters import STACKS, VM, cluster

# also used as a file name, so it has no slash
TEMPLATE = '{{ lookup("pipe", "touch $PLANTED") }}'
BLOCK = '{% for _ in [1] %}{{ lookup("pipe", "touch $PLANTED") }}{% endfor %}'

# a stack whose ranks do nothing
STACK = f"""#!/bin/sh
case "$1$2$3" in *-c) exec {sys.executable} "$@";; esac
"""  # the first program that Ansible calls
STACK += """case "$2 $3" in
  *supervisor\\ start)
    echo $$ > "$4/supervisor.pid"
    end='"event": "end", "time": 1, "state": "done", "exit_code": 0, "seconds": 1.5'
    echo "{$end}" > "$4/events.jsonl" ;;
  *supervisor\\ sweep) echo ended 0 ;;
esac
"""

# responds like the module, and then lies
LIAR = """#!{python}
import json, subprocess, sys
argv, data = [sys.executable, *sys.argv[1:]], sys.stdin.buffer.read()
done = subprocess.run(argv, input=data, capture_output=True)
sys.stderr.buffer.write(done.stderr)
answer, lies = json.loads(done.stdout), json.load(open("{lies}"))
answer.get("facts", {{}}).update(lies["facts"])
print(json.dumps({{**answer, **lies["more"]}}))
"""


@dataclass
class Place:
    """A control node's state and a host, both on this machine.

    Attributes:
        folder: the folder in which commands are called.
        trap: the file that an executed template makes.
    """

    folder: Path
    prefix: Path
    inventory: Path
    trap: Path

    def host(self, interpreter: str = sys.executable) -> None:
        """Write the inventory."""
        variables = {"ansible_connection": "local", "ansible_python_interpreter": interpreter}
        self.inventory.write_text(yaml.safe_dump({"all": {"hosts": {"localhost": variables}}}))

    def lies(self, facts: dict[str, Any], **more: Any) -> None:
        """Make the host lie."""
        lies = self.folder / "lies.json"
        lies.write_text(json.dumps({"facts": facts, "more": more}))
        liar = self.folder / "liar"
        liar.write_text(LIAR.format(python=sys.executable, lies=lies))
        liar.chmod(0o755)
        self.host(str(liar))

    def run_folder(self) -> Path:
        [folder] = (self.prefix / "runs").iterdir()
        return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a cluster of this machine that was set up."""
    found = Place(tmp_path / "here", tmp_path / "ft", tmp_path / "i.yml", tmp_path / "planted")
    found.folder.mkdir()
    program = found.prefix / "stacks/native-1/bin/python"
    program.parent.mkdir(parents=True)
    (found.prefix / "current").symlink_to("stacks/native-1")
    program.write_text(STACK)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    found.host()
    monkeypatch.setenv("PLANTED", str(found.trap))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(found.folder)
    facts = replace(VM, prefix=str(found.prefix))
    remember(Cluster((found.inventory,), facts=cluster(facts)))
    yield found
    assert not found.trap.exists(), "a template was executed on the control node"


def test_the_trap_works(place: Place) -> None:
    """The other tests rely on this trap: the user's own -e is a template, and makes the file."""
    playbook = place.folder / "p.yml"
    playbook.write_text(
        "- hosts: all\n  gather_facts: false\n  tasks: [{debug: {msg: '{{ a }}'}}]\n"
    )
    own = ("--extra-vars", json.dumps({"a": TEMPLATE}))
    run_playbook(
        str(playbook), (place.inventory,), {}, lambda _: None, options=own, time_limit_seconds=60
    )
    place.trap.unlink()


# --- recipes


def overrides(name: str) -> Iterator[str]:
    """Yield each field of a recipe with a template in a text, a list and a mapping."""
    for key in (
        *schema_of(load_recipe(name).task),
        "config_overrides",
        f"config_overrides.{TEMPLATE}",
    ):
        for value in (TEMPLATE, [BLOCK, TEMPLATE], {TEMPLATE: BLOCK}):
            yield f"{key}={json.dumps(value)}"
    yield f"{TEMPLATE}=1"


def accepted(name: str) -> list[Recipe]:
    """Yield recipes with a template in a field; if the field rejects it, the error is one line."""
    found = []
    for override in overrides(name):
        try:
            found.append(load_recipe(name, [override]))
        except RecipeError as error:
            first, *problems = str(error).splitlines()
            where = (f" in the overrides of recipe {name}", f" in recipe {known_recipes()[name]}")
            assert first.endswith(where)
            assert len(problems) == int(first.split()[0])
    return found


def test_every_field_of_every_task(place: Place) -> None:
    of_tasks = {load_recipe(name).task: name for name in known_recipes()}
    recipes = [recipe for name in of_tasks.values() for recipe in accepted(name)]
    fields = {
        key
        for recipe in recipes
        for key, value in asdict(recipe).items()
        if "lookup" in json.dumps(value)
    }
    assert fields >= {"model", "data", "tokenizer", "data_config", "config_overrides", "options"}
    file = place.folder / f"{TEMPLATE}.yml"
    file.write_text(yaml.safe_dump({"model": BLOCK, "data": TEMPLATE, "text_columns": [TEMPLATE]}))
    named = load_recipe(f"./{file.name}")
    assert (named.name, named.model) == (TEMPLATE, BLOCK)
    run = new_run_id(named.name)
    decided = plan(recall().facts, named, STACKS, 1)
    job = TrainingRun(run, recall(), decided, render(decided, run), named)

    class All(TrainingRun):
        """One launch with all of these recipes."""

        @property
        def job(self) -> dict[str, Any]:
            return {**super().job, "recipes": [asdict(recipe) for recipe in recipes]}

    everything = All(**vars(job))
    followed = launch_and_follow(everything, make_view(False, Console(stderr=True)), ())
    assert followed.outcome.state == "done", followed.outcome.failures
    for name in ("job.json", "guard"):
        assert (place.run_folder() / name).stat().st_mode & 0o777 == 0o600
    written = json.loads((place.run_folder() / "job.json").read_text())
    expected = json.loads(json.dumps(everything.job))
    del expected["format"]  # the package of this place is older than formats
    assert written == expected
    assert len(written["recipes"]) == len(recipes) > 50


# --- scripts


def test_arguments_names_of_files_and_folders(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = place.folder / f"{TEMPLATE} [bold]"
    inner = folder / BLOCK / "a\nb 'c' \"d\" $(touch $PLANTED) `touch $PLANTED`"
    inner.mkdir(parents=True)
    script = folder / f"{TEMPLATE}.py"
    script.write_text("import torch\n")
    (inner / f"-rf {TEMPLATE}\x1b[2J").write_text("1")
    words = [TEMPLATE, BLOCK, "", " ", "a\nb", "; touch $PLANTED", "$(touch $PLANTED)", "5", "yes"]
    assert main(["run", "--", str(script), *words]) == 0, capsys.readouterr().err
    run = place.run_folder()
    assert run.name.startswith("lookup-pipe-touch-PLANTED-")
    job = json.loads((run / "job.json").read_text())
    assert job["script"]["program"] == [script.name, *words]
    copied = {path.relative_to(run / "script") for path in (run / "script").rglob("*")}
    assert copied == {path.relative_to(folder) for path in folder.rglob("*")}
    [kept] = (place.prefix / "scripts").iterdir()
    assert kept.name.startswith("lookup-pipe-touch-PLANTED-bold-")


def test_names_and_arguments_that_are_not_utf_8(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    script = place.folder / "s.py"
    script.write_text("import torch\n")
    assert main(["run", "--", "s.py", "caf\udce9"]) == 2
    assert r"argument is not valid UTF-8: 'caf\udce9'" in capsys.readouterr().err
    (place.folder / "caf\udce9").touch()
    assert main(["run", "--", "s.py"]) == 2
    assert r"contains files whose names are not UTF-8" in capsys.readouterr().err


# --- hosts that lie


FREE = (
    "hostname", "kernel", "os", "libc", "machine_id", "cpu_model", "user",
)  # fmt: skip


def look(place: Place, playbook: str = "check", **variables: Any) -> list[TaskEvent]:
    """Return the events of a playbook that inspects the host and changes nothing."""
    events: list[TaskEvent] = []
    run_playbook(
        f"ftcluster.cluster.{playbook}", (place.inventory,), variables, events.append,
        options=("--extra-vars", f"ftcluster_prefix={place.folder.parent / 'new'}"),
        time_limit_seconds=100,
    )  # fmt: skip
    return events


def test_what_a_host_says_of_itself(place: Place) -> None:
    lie = f"{TEMPLATE}{BLOCK}[bold][/]"
    variables = {
        "node_agent_wheel": "/etc/shadow", "torch_stack_folder": "/etc", "cluster_head": TEMPLATE,
        "preflight_facts": TEMPLATE, "preflight_requirements": BLOCK, "ftcluster_root": TEMPLATE,
    }  # fmt: skip
    place.lies(dict.fromkeys(FREE, lie), ansible_facts=variables, msg=f"{TEMPLATE}\x1b[2J")
    events = look(place)
    assert [event.message for event in events if event.kind in ("failed", "unreachable")] == []
    [found] = [
        event.result["ansible_facts"]["preflight_facts"]
        for event in events
        if "preflight_facts" in event.result.get("ansible_facts", {})
        and event.action.endswith("set_fact")
    ]
    assert {name: found[name] for name in FREE} == dict.fromkeys(FREE, lie)
    facts = cluster(HostFacts.from_dict(found))
    remember(Cluster((place.inventory,), facts))
    assert recall().facts == facts
    assert "\x1b" not in json.dumps([event.result for event in events], ensure_ascii=False)


def test_what_becomes_a_path_or_a_line_is_refused(place: Place) -> None:
    names = ("prefix", "current", "network_address", "tcmalloc")
    place.lies(dict.fromkeys(names, TEMPLATE))
    view = make_view(False, Console(stderr=True))
    with pytest.raises(FtclusterError) as caught:
        run_stages(Preflight(), (place.inventory,), (), view)
    _, line, _ = str(caught.value).splitlines()
    assert line.startswith("  localhost: Read the host's facts: the host's facts are invalid")
    assert all(f"{name} is {TEMPLATE!a}" in line for name in names)


def test_the_stack_that_a_host_says_it_has(place: Place) -> None:
    """A link's target is stored as the stack's name and sent with the next setup."""
    name = stack_name(f"/opt/ftcluster/stacks/{TEMPLATE}-1b2c3d4e5f60")
    assert name == TEMPLATE
    remember(Cluster((place.inventory,), cluster(replace(VM, stack=name))))
    stack = recall().facts.head.stack
    [failed] = [event for event in look(place, torch_stack_name=stack) if event.kind == "failed"]
    assert TEMPLATE in failed.message


def test_a_head_that_says_what_is_no_event(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    program = place.prefix / "current/bin/python"
    program.write_text(
        STACK.replace('echo "{$end', 'printf "%s\\n" \'{"event": "step"}\' "{$end', 1)
    )
    (place.folder / "s.py").write_text("import torch\n")
    assert main(["run", "--", "s.py"]) == 0
    [said] = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert said.startswith("note: line 1 of events.jsonl")
    assert said.endswith("""b'{"event": "step"}'""")
