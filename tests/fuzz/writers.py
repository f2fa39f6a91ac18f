"""Writers of generated files and of lines on a terminal, with names that others made.

A writer is tested like a reader: its input is JSON, whose texts are the names. The test raises an
AssertionError unless the written text has exactly the parts of the template.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import yaml
from rich.console import Console
from rich.text import Text

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.export.kubernetes import PYTORCH, TRAIN, Pods, claim, copy_pod, manifests
from ftcluster.export.pod_template import PodTemplate
from ftcluster.export.pods import as_pod, resources
from ftcluster.export.slurm import PATH_CHECK, BatchJob, batch_script
from ftcluster.launch.events import read_event_line
from ftcluster.launch.mpirun import render
from ftcluster.launch.preview import as_commands, as_lines
from ftcluster.planning.plan import plan
from ftcluster.progress.notebook import page_of
from ftcluster.progress.state import RunProgress, SetupProgress
from ftcluster.progress.view import make_view
from ftcluster.recipe.data_columns import columns_line
from ftcluster.recipe.recipe import load_recipe
from ftcluster.stacks.catalog import load_stacks
from ftcluster.text.comments import comments
from ftcluster.text.streams import Show
from ftcluster.text.terminal import print_lines
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_train.supervisor.metrics_file import text_of
from tests.fuzz.markup import elements
from tests.fuzz.parsers import EVENTS_SEEN, Parser, dumped, of_json
from tests.unit.clusters import VM, cluster, host

RECIPE, STACKS = load_recipe("quickstart"), load_stacks()
HOSTS = cluster(host("n1", cores=16), host("n2", cores=16))
PLAN = plan(HOSTS, RECIPE, STACKS)
LAUNCH = render(PLAN, "r-1")
POD_PLAN = plan(cluster(as_pod(VM)), RECIPE, STACKS)
SGR = re.compile(r"\x1b\[[0-9;]*m")
# characters that control a terminal or reorder text, by Unicode's categories and UAX #9; a tab is
# allowed, because it only moves the cursor within its line
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
HOSTILE_NAMES = (
    "a\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n#",
    "b\r\nrm -rf ~ #",
    "c\u2028kind: Pod\u2029x\x85privileged: true",
    "d\x0b\x0c\x1c\x1d\x1e'\"`$(touch /tmp/x) $x \\",
    "e\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x9b2J\u202eevil",
    "f\n#SBATCH --uid=0\n' \"",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\ufeffg: &a [*a] !!python/object:os.system \ufffe",
)
PLAIN_NAMES = ("title", "label", "team", "id", "n5", "mrpc", "body", "note")
FREE = ("nodeSelector", "annotations", "tolerations")  # fields with arbitrary keys
LONGEST_KEY = 317  # maximum length of a label in Kubernetes; YAML keys have at most 1024 characters
SEEDS = (dumped(list(PLAIN_NAMES)), dumped(list(HOSTILE_NAMES)))


class File(io.StringIO):
    """A stream with an encoding, like a file."""

    encoding = "utf-8"


class Terminal(File):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def texts_of(value: Any) -> Iterator[str]:
    """Return the texts of a JSON document, keys too."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            yield from texts_of(part)
    else:
        yield str(value)


def names_of(value: Any) -> list[str]:
    """Return eight names for any document."""
    return [*texts_of(value), *PLAIN_NAMES][: len(PLAIN_NAMES)]


def commands(value: Any) -> bool:
    """Write the commands of a plan; only comments may differ from the template."""
    names = names_of(value)
    uses = {"text": tuple(names[:2]), "label": (names[2],), "not read": tuple(names[3:])}
    head = [f"train {names[0]}, on {names[1]}", columns_line(uses), *names]
    lines = as_lines(head, PLAN, [(names[4], names[5])], [(names[6], names[7], names[0])])
    job = {"recipe": {"model": names[0], "data": names[1:]}}
    template = as_commands([], LAUNCH, PLAN, {"recipe": {}}).splitlines()
    found = as_commands(lines, LAUNCH, PLAN, job).splitlines()
    written = len(found) - len(template)
    assert all(line.startswith("#") for line in found[:written])
    job_line = next(place for place, line in enumerate(template) if "job.json" in line)
    for place, (line, expected) in enumerate(zip(found[written:], template, strict=True)):
        assert line == expected or place == job_line, line
    assert found[written + job_line].startswith("printf %s ")
    return True


def skeleton(document: Any) -> Any:
    """Return the keys of a document, with the types of its values."""
    if isinstance(document, dict):
        return {key: skeleton(value) for key, value in document.items() if key not in FREE}
    if isinstance(document, list):
        return [skeleton(value) for value in document]
    return type(document).__name__


def pods_of(names: Sequence[str]) -> Pods:
    """Return a training in pods in which all texts are names, more than the operation allows."""
    recipe = replace(
        RECIPE, model=names[0], data=names[1], options=TextClassification(text_columns=(names[2],))
    )
    return Pods(
        name=names[3], namespace=names[4] or "x", image=names[5], claim=names[6],
        node_selector={names[7][:LONGEST_KEY]: names[0]}, token_secret=names[1] or "x",
        plan=POD_PLAN, recipe=recipe, resources=resources(cluster(VM)), min_nodes=1, max_restarts=3,
        template=PodTemplate(
            annotations={names[2][:LONGEST_KEY]: names[3]},
            spec={"tolerations": [{"key": names[4]}]},
        ),
    )  # fmt: skip


def written_manifests(kind: str) -> Callable[[Any], bool]:
    """Return a writer of manifests of this kind."""
    expected = list(yaml.safe_load_all(manifests(kind, pods_of(PLAIN_NAMES))))

    def write(value: Any) -> bool:
        names = names_of(value)
        head = comments([columns_line({"text": tuple(names)}), *names])
        text = "".join(f"{line}\n" for line in head) + manifests(kind, pods_of(names))
        assert all(line.startswith("#") for line in text.splitlines()[: len(head)])
        documents = list(yaml.safe_load_all(text))
        assert [skeleton(one) for one in documents] == [skeleton(one) for one in expected]
        for text in (claim(pods_of(names)), copy_pod(pods_of(names))):
            for document in yaml.safe_load_all(text):
                assert document["metadata"]["namespace"] == (names[4] or "x")
                assert document["kind"] in ("PersistentVolumeClaim", "Pod", "NetworkPolicy")
        assert documents[0]["metadata"]["namespace"] == (names[4] or "x")
        assert documents[-1]["metadata"]["name"] == names[3]
        return True

    return write


def batch(value: Any) -> bool:
    """Write a script for sbatch with any command words, and options if they are valid."""
    names = names_of(value)
    job = BatchJob("mrpc", 2, ("--time=1:00",), ("train", *names))
    script = batch_script(job)
    head, command = script.splitlines()[:16], script.splitlines()[16:]
    assert all(line.startswith("#") or line in ("", PATH_CHECK) for line in head)
    assert sum(line.startswith("#SBATCH ") for line in head) == 10
    assert command[0].startswith("exec ftcluster train ")
    assert all(line.endswith(" \\") for line in command[:-1])
    assert all(line.startswith("    ") for line in command[1:])
    for name in names:
        for wrong in (replace(job, name=name), replace(job, options=(f"--account={name}",))):
            try:
                lines = batch_script(wrong).splitlines()
            except ValueError:
                continue
            assert len(lines) == len(script.splitlines())
            assert sum(line.startswith("#SBATCH ") for line in lines) == 10
    return True


def shown(value: Any) -> bool:
    """Print lines, notes and a progress table to a terminal and to a file."""
    names = names_of(value)
    for stream in (Terminal(), File()):
        print_lines([*names, Text.assemble(("error: ", "bold red"), *names)], stream)
        view = make_view(verbose=True, console=Console(file=stream))
        written = stream.getvalue()
        for name in names:
            view.say(name)
        found = SGR.sub("", stream.getvalue())
        assert not OBEYED.search(found)
        assert "\u2028" not in found
        if not stream.isatty():
            assert len(written.splitlines()) == len(names) + 1
    return True


def script_shown(value: Any) -> bool:
    """Show a script's output on a terminal in pieces, and in a file unchanged."""
    names = names_of(value)
    terminal, file = Terminal(), File()
    for stream in (terminal, file):
        show = Show(stream, stream)
        for name in names:
            show("stdout", name)
    found = terminal.getvalue()
    assert not SGR.search(found) or found.rindex("\x1b[0m") >= found.rindex("\x1b[")
    assert not OBEYED.search(re.sub("[\t\r]", "", SGR.sub("", found)))
    assert file.getvalue() == "".join(names).encode("utf-8", "replace").decode()
    return True


def notebook(value: Any) -> bool:
    """Draw a run and a setup in a notebook; the pages have only rich's elements."""
    names = names_of(value)
    progress = RunProgress("r-1")
    for event in (
        {**EVENTS_SEEN["phase"], "doing": names[0]},
        {**EVENTS_SEEN["start"], "backend": names[1], "precision": names[2]},
        {**EVENTS_SEEN["evaluation"], "metrics": {names[3]: 0.5}},
        {**EVENTS_SEEN["phase"], "doing": names[4]},
    ):
        if safe := read_event_line(dumped(event)):
            progress.add(safe)
    setup = SetupProgress()
    for name in names:
        setup.add(TaskEvent("ok", names[0], names[1], name, names[2]))
    for page in (page_of(progress), page_of(setup)):
        assert {tag for tag, _ in elements(page)} <= {"pre", "span"}
        assert {name for _, attributes in elements(page) for name in attributes} <= {"style"}
    return True


def metrics(value: Any) -> bool:
    """Write the metrics of a run for Prometheus."""
    run, *hosts = names_of(value)
    found = [("ftcluster_wait_ratio", {"rank": n, "host": one}, 0.5) for n, one in enumerate(hosts)]
    lines = text_of(run, found).split("\n")
    assert len(lines) == len(hosts) + 4
    label = r'[a-z]+="(?:[^"\\\n]|\\[\\n"])*"'
    for line in lines[2:-2]:
        assert re.fullmatch(rf"ftcluster_wait_ratio\{{{label}(?:,{label})*\}} 0\.5", line), line
    return True


def writer(write: Callable[[Any], object]) -> Parser:
    """Return a writer as a function that the fuzzer calls."""

    def without_waiting(value: Any) -> object:
        with mock.patch.dict("os.environ", {"COLUMNS": "80", "TERM": "xterm"}):
            return write(value)

    return Parser(of_json(without_waiting), SEEDS)


WRITERS = {
    "commands of a plan": writer(commands),
    "manifests of a PyTorchJob": writer(written_manifests(PYTORCH)),
    "manifests of a TrainJob": writer(written_manifests(TRAIN)),
    "script for sbatch": writer(batch),
    "lines on a terminal": writer(shown),
    "output of a script on a terminal": writer(script_shown),
    "picture in a notebook": writer(notebook),
    "metrics for Prometheus": writer(metrics),
}
