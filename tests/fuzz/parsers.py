"""What reads input that somebody else wrote, with good inputs and the errors that it may raise."""

import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.ftcluster.cluster.plugins.modules.host_facts import RETURN
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    BundleError,
    open_bundle,
    sha256_of_head,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import LockError, read_lock

from ftcluster.cli.plan import read_facts
from ftcluster.cluster.price import read_price
from ftcluster.cluster.record import record_of
from ftcluster.cluster.saved import recall
from ftcluster.errors import FtclusterError
from ftcluster.launch.events import read_event_line
from ftcluster.launch.record import read_record, recorded_place
from ftcluster.recipe.recipe import load_recipe
from ftcluster.recipe.yaml_loader import read_value
from ftcluster.stacks.catalog import load_advisories, load_stacks
from ftcluster.user_script.requirements import read_requirements
from ftcluster_common.conversations import (
    ConversationColumns,
    PreferenceColumns,
    read_conversation,
    read_preference,
)
from ftcluster_common.data_files import DataError, Table
from ftcluster_common.launch import Host
from ftcluster_common.sentence_modules import read_modules
from ftcluster_common.timeouts import Timeouts
from ftcluster_common.trained_model import read_trained
from ftcluster_train.errors import MARKER, read_error_line
from ftcluster_train.io.events import read_events
from ftcluster_train.launcher.heartbeats import Heartbeats
from ftcluster_train.launcher.messages import rank_of, read_report
from ftcluster_train.launcher.mpi_output import END_MARKER, read_end
from tests.programs import ROOT

# what JSON's and YAML's readers stumble over, whatever is expected of them
NASTY = (
    b"", b"\n", b"null", b"[]", b"{}", b"0", b'"x"', b"[" * 60_000, b'{"a":' * 20_000, b"\xff\xfe",
    b"\xef\xbb\xbf{}", b"9" * 5000, b"1e999", b"NaN", b"\x00", b"\xed\xa0\x80", b'"\\ud800"',
    b"task: [1]\n", b"a: 2026-13-45\n", b"? [1]\n: 2\n", b"-r \x00a", b'{"step": 1e999}',
    b"a: &a [*a]\n",
    # each line ten times the one before
    b"a0: &a0 [x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 9)
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Parser:
    """One reader.

    Attributes:
        read: reads bytes; it has a folder of its own for files.
        seeds: inputs that it takes.
        raises: what it may raise, as its docstring says.
    """

    read: Callable[[bytes, Path], object]
    seeds: tuple[bytes, ...]
    raises: tuple[type[Exception], ...] = ()


def of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes, Path], object]:
    """A reader of a file of this name."""

    def run(data: bytes, folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return run


def of_json(read: Callable[[Any], object]) -> Callable[[bytes, Path], object]:
    """A reader of what JSON has been made of already."""

    def run(data: bytes, _folder: Path) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # others' business
            return None
        return read(value)

    return run


def of_text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    """A reader of text."""
    return lambda data, _folder: read(data.decode(errors="replace"))


def of_state(read: Callable[[], object], name: str) -> Callable[[bytes, Path], object]:
    """A reader of a file in the control node's state."""

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


def heard(hello: bytes) -> Callable[[bytes, Path], object]:
    """The supervisor hears a line after this one."""

    def run(data: bytes, _folder: Path) -> object:
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
                    except OSError:  # hung up on
                        break
                    beats.poll(now)
                beats.trouble(now)
        finally:
            beats.close()
        return None

    return run


def modules_beside(path: Path) -> object:
    """What a model's modules.json says of a folder whose pooling is known."""
    (path.parent / "config.json").write_bytes(dumped({"pooling_mode": "mean"}))
    return read_modules(path.parent)


def small_bundle() -> bytes:
    """A bundle without wheels."""
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
    """JSON of a value."""
    return json.dumps(value).encode()


FACTS = yaml.safe_load(RETURN)["facts"]["contains"]
HOST = {
    "name": "a", "connection": "ssh", "cpu_model": "x", "cpu_flags": ["avx2"], "cores": 4,
    "threads": 8, "numa_nodes": 1, "memory_bytes": 1, "free_bytes": 1, "prefix": "/opt/ftcluster",
    "python": "3.11", "can_become_root": True, "tcmalloc": "", "network_address": "10.0.0.1",
    "network_interface": "e", "rank_user": "", "hostname": "a", "os": "Debian", "kernel": "6.1",
    "cpu_generation": "x", "amx": "", "sockets": 1, "nics": [], "clock_offset_seconds": 0.0,
    "numa": [{"node": 0, "cores": 4, "memory_bytes": 1, "cpus": "0-3"}],
}  # fmt: skip
CLUSTER = {"hosts": [HOST]}
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
EVENT = {"event": "step", "time": 1.0, "step": 1, "epoch": 0.1, "loss": 1.0, "grad_norm": 1.0,
         "learning_rate": 1.0, "samples_per_second": 1.0, "train_seconds": 1.0,
         "remaining_seconds": 1.0}  # fmt: skip
ERROR = {"message": "m", "hint": "h", "host": "a", "rank": 0, "restartable": False}
RECORD = {"run": "r", "plan": {"hosts": [HOST], "spares": [], "rank_user": "u", "prefix": "/opt"},
          "inventories": ["/i.ini"], "options": ["-K"]}  # fmt: skip
FILES = ROOT / "roles/torch_stack/files"
HELLO = b"secret 0\n"
CONDITION = {"mhz": 2000.0, "throttled": 0, "stolen": 0.0, "swap": 0, "programs": [["x", 1, 0.5]]}
BEAT = {"step": 3, "doing": "forward", "cpu": 1.5, "wire": 10, "state": "R", "sleep": None,
        "disk": 0, "waits": False, "host": CONDITION, "exit": 0, "oom": False}  # fmt: skip


def rows(suffix: str) -> Parser:
    """A reader of the rows of a file of data."""
    seeds = {
        ".csv": (b"text,label\na,0\n\"b\nc\",1\n",), ".tsv": (b"text\tlabel\na\t0\n",),
        ".json": (dumped([{"text": "a"}]), dumped({"data": [{"paragraphs": [{"context": "c",
                  "qas": [{"question": "q", "answers": [{"text": "c", "answer_start": 0}]}]}]}]})),
        ".jsonl": (dumped({"text": "a"}) + b"\n" + dumped({"text": "b"}),),
    }[suffix]  # fmt: skip
    read = of_file(lambda path: list(Table((path,)).with_places()), f"train{suffix}")
    return Parser(read, seeds, (DataError,))


PARSERS = {
    "heartbeats of a stranger": Parser(heard(b""), (HELLO, dumped(BEAT))),
    "heartbeats of a guardian": Parser(heard(HELLO), (dumped(BEAT),)),
    "hello of a guardian": Parser(
        lambda data, _: rank_of(data, "secret"), (HELLO, b"secret 12"), (ValueError,)
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
        (dumped({"inventories": [], "hosts": "", "options": [], "facts": CLUSTER}),),
        (FtclusterError,),
    ),
    "record of a cluster": Parser(of_text(record_of), (dumped({"format": 1}),), (ValueError,)),
    "record of a run": Parser(
        of_state(lambda: (read_record("r"), recorded_place("r")), "runs/r/run.json"),
        (dumped(RECORD),),
        (FtclusterError,),
    ),
    "facts of a host": Parser(of_json(lambda one: known_facts(one, FACTS)), (dumped(HOST),)),
    "answers of a shell": Parser(of_text(answers), (b"banner\nftcluster-answer: key value\n",)),
    "price": Parser(of_text(read_price), (b"4.08 USD",), (ValueError,)),
    "trained model": Parser(
        of_file(lambda path: read_trained(path.parent), "ftcluster.json"),
        (dumped({"recipe": "r", "task": "t", "options": {}}),),
    ),
    "modules of a sentence model": Parser(
        of_file(modules_beside, "modules.json"),
        (dumped([{"idx": n, "path": "", "type": f"sentence_transformers.models.{kind}"}
                 for n, kind in enumerate(("Transformer", "Pooling"))]),),
        (DataError,),
    ),
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
    **{f"rows of {suffix}": rows(suffix) for suffix in (".csv", ".tsv", ".json", ".jsonl")},
}  # fmt: skip
