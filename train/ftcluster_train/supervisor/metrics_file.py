"""A run's metrics in a file for Prometheus: <prefix>/metrics/RUN.prom on the head.

The file is valid both in OpenMetrics 1.0 and in Prometheus' older text format, because
node_exporter's textfile collector reads only the older format. Standard library only.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_common.protocol.events import CHECKPOINT, EVENTS, SNAPSHOT, is_event
from ftcluster_common.protocol.launch import Launch
from ftcluster_common.protocol.rank_times import Interval, interval_between, straggler_scores
from ftcluster_common.protocol.run_state import WAITS
from ftcluster_train.io.activity import free_bytes
from ftcluster_train.io.events import EventTail
from ftcluster_train.supervisor.rank_life import RankLife

FOLDER = "metrics"
SECONDS = 5.0  # time between two writes
MOST_ERROR = 200  # characters of a message in a label
SAVED_KINDS = (CHECKPOINT, SNAPSHOT)
KEPT_SECONDS = 3600.0  # a new run removes older files of other runs
STATES = ("running", "waiting", "done", "failed", "stopped")
# help text and labels (besides `run`) of each gauge
GAUGES = {
    "ftcluster_run_info": ("A run; always 1.", ("recipe", "backend", "precision")),
    "ftcluster_run_state": ("1 for the run's current state, else 0.", ("state",)),
    "ftcluster_start_time_seconds": ("Launch time, in seconds since 1970.", ()),
    "ftcluster_update_time_seconds": (
        "Time at which this file was written, in seconds since 1970.",
        (),
    ),
    "ftcluster_end_info": ("The cause of a run's end; always 1.", ("cause",)),
    "ftcluster_hosts": ("Hosts with ranks.", ()),
    "ftcluster_missing_hosts": ("Hosts that the run was planned with and that have no ranks.", ()),
    "ftcluster_drained_hosts": ("Hosts of the cluster that no new run uses.", ()),
    "ftcluster_ranks": ("Ranks on all hosts.", ()),
    "ftcluster_step": ("The optimizer step that the ranks are in.", ()),
    "ftcluster_steps": ("Optimizer steps of the whole training run.", ()),
    "ftcluster_eta_seconds": ("Expected time until the last step.", ()),
    "ftcluster_samples_per_second": ("Training samples per second over all ranks.", ()),
    "ftcluster_loss": ("Mean training loss since the last log.", ()),
    "ftcluster_goodput_ratio": ("Fraction of the run's time spent in steps that count.", ()),
    "ftcluster_restart_count": ("Number of restarts of the ranks.", ()),
    "ftcluster_checkpoint_step": ("The step of the newest checkpoint.", ()),
    "ftcluster_failed_save_count": ("Number of failed attempts to save.", ("kind",)),
    "ftcluster_failed_save_info": ("The last failed attempt to save; always 1.", ("kind", "error")),
    "ftcluster_free_bytes": (
        "Free bytes for runs on a host; 0 if the file system is read-only.",
        ("host",),
    ),
    "ftcluster_slow_host_ratio": (
        "Time per step of a host that was slow, relative to its usual time; 0 once it recovered.",
        ("host",),
    ),
    "ftcluster_sent_bytes_per_step": ("Bytes that a rank sends for gradients and weights.", ()),
    "ftcluster_communication_ratio": ("Fraction of a step in exposed communication.", ()),
    "ftcluster_wait_ratio": ("Fraction of time blocked by slower ranks.", ("rank", "host")),
    "ftcluster_input_ratio": ("Fraction of time spent on making batches.", ("rank", "host")),
    "ftcluster_straggler_score": (
        "Time that a rank works in a step, relative to the median rank.",
        ("rank", "host"),
    ),
}


@dataclass
class RunNumbers:
    """The current metrics of a run, computed from its events.

    Attributes:
        latest: last event of each kind.
        began: time of the first event, in seconds since 1970.
        restarts: number of restarts of the ranks.
        step: step that the ranks are in.
        interval: steps and times between the last two reports of the ranks.
        before: seconds of training in the runs that this run continues.
        steps_since_restart: True if the ranks have reported a step since their last start.
        failed_saves: number of failed attempts to save, by kind.
        save_errors: message about the last failed attempt, by kind.
        slow_hosts: last ratio of each event `slow_host`, by host.
    """

    latest: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    began: float = 0.0
    restarts: int = 0
    step: int = 0
    interval: Interval | None = None
    before: float = 0.0
    steps_since_restart: bool = False
    failed_saves: Counter[str] = field(default_factory=Counter)
    save_errors: dict[str, str] = field(default_factory=dict)
    slow_hosts: dict[str, float] = field(default_factory=dict)
    _before: Mapping[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event, unless it is damaged; events of unknown kinds are kept."""
        kind = event["event"]
        if kind in EVENTS and not is_event(kind, event):
            return
        self.began = self.began or float(event["time"])
        if kind == "placement":
            self._before = None
        elif kind == "restart":
            self.restarts, self.steps_since_restart = event["restart"], False
        elif kind == "notice" and event.get("failed_save") in SAVED_KINDS:
            self.failed_saves[event["failed_save"]] += 1
            self.save_errors[event["failed_save"]] = event["message"][:MOST_ERROR]
        elif kind == "slow_host":
            self.slow_hosts[event["host"]] = event["ratio"]
        elif kind == "step":
            self.steps_since_restart = True
            self.step = max(self.step, event["step"])
        elif kind == "communication":
            if not self.interval and "step" in self.latest:
                self.before = self.latest["step"]["train_seconds"] - event["train_seconds"]
            self.interval = interval_between(self._before, event)
            self._before = event
        self.latest[kind] = event

    def of(self, kind: str, name: str) -> Any:
        """Return a field of the last event of a kind; None if there is no such event."""
        return self.latest.get(kind, {}).get(name)


Sample = tuple[str, Mapping[str, object], float]  # a gauge, its labels besides `run`, its value


@dataclass(frozen=True)
class ClusterState:
    """The state of the hosts, which events do not report.

    Attributes:
        free_bytes: free bytes on the file system of the run, by host.
        drained: number of drained hosts.
    """

    free_bytes: Mapping[str, int] = field(default_factory=dict)
    drained: int = 0


def samples(
    numbers: RunNumbers,
    launch: Launch,
    recipe: str,
    now: float,
    cluster: ClusterState = ClusterState(),
) -> Iterator[Sample]:
    """Yield the samples of a run.

    Args:
        launch: launch that assigns the ranks to hosts.
        recipe: name of the recipe or of the script.
        now: seconds since 1970.
    """
    of = numbers.of
    waits = str(of("phase", "doing") or "").startswith(WAITS)
    state = of("end", "state") or ("waiting" if waits else "running")
    # after a restart the previous step is out of date until the first new step
    steps = state == "running" and numbers.steps_since_restart
    speed = of("step", "samples_per_second")
    about = {name: of("start", name) or "" for name in ("backend", "precision")}
    yield "ftcluster_run_info", {"recipe": recipe, **about}, 1
    for label in STATES:
        yield "ftcluster_run_state", {"state": label}, float(state == label)
    over = "end" in numbers.latest
    if over:
        yield "ftcluster_end_info", {"cause": of("end", "cause") or state}, 1
    for kind in SAVED_KINDS:
        yield "ftcluster_failed_save_count", {"kind": kind}, numbers.failed_saves[kind]
    for kind, error in numbers.save_errors.items():
        yield "ftcluster_failed_save_info", {"kind": kind, "error": error}, 1
    for host, free in cluster.free_bytes.items():
        yield "ftcluster_free_bytes", {"host": host}, free
    for host, ratio in numbers.slow_hosts.items():
        yield "ftcluster_slow_host_ratio", {"host": host}, ratio
    values = {
        "start_time_seconds": numbers.began,
        "update_time_seconds": now,
        "hosts": 0 if waits else len(launch.hosts),
        "ranks": 0 if waits else len(launch.rank_hosts),
        "missing_hosts": launch.nodes - len(launch.hosts),
        "drained_hosts": cluster.drained,
        "restart_count": max(numbers.restarts, launch.restarts),
        "step": numbers.step if "start" in numbers.latest else None,
        "steps": of("start", "steps"),
        "eta_seconds": of("step", "remaining_seconds") if steps else 0.0 if over else None,
        "samples_per_second": speed if steps or over or speed is None else 0.0,
        "loss": of("step", "loss"),
        "checkpoint_step": of("checkpoint", "step"),
    }
    trained = of("step", "train_seconds")
    until = of("end", "time") or now
    if trained is not None and until > numbers.began:
        values["goodput_ratio"] = (trained - numbers.before) / (until - numbers.began)
    for name, value in values.items():
        if value is not None:
            yield f"ftcluster_{name}", {}, value
    whole = numbers.interval
    if whole and whole.ranks and whole.steps > 0 and whole.seconds > 0:
        yield from _rank_samples(whole, [host.name for host in launch.rank_hosts])


def _rank_samples(interval: Interval, hosts: Sequence[str]) -> Iterator[Sample]:
    yield "ftcluster_sent_bytes_per_step", {}, interval.sent_bytes / interval.steps
    exposed = max(times.communication for times in interval.ranks)
    yield "ftcluster_communication_ratio", {}, exposed / interval.seconds
    scores = straggler_scores(interval.ranks)
    for rank, (host, times, score) in enumerate(zip(hosts, interval.ranks, scores, strict=False)):
        labels = {"rank": rank, "host": host}
        yield "ftcluster_wait_ratio", labels, times.waiting / interval.seconds
        yield "ftcluster_input_ratio", labels, times.input / interval.seconds
        yield "ftcluster_straggler_score", labels, score


def text_of(run: str, gauge_samples: Iterable[Sample]) -> str:
    """Return the file's text."""
    lines: dict[str, list[str]] = {name: [] for name in GAUGES}
    for name, labels, value in gauge_samples:
        pairs = ",".join(
            f'{key}="{_escaped(str(label))}"' for key, label in {"run": run, **labels}.items()
        )
        lines[name].append(f"{name}{{{pairs}}} {float(value):.10g}")
    parts = [
        f"# HELP {name} {about}\n# TYPE {name} gauge\n"
        + "".join(f"{line}\n" for line in lines[name])
        for name, (about, _) in GAUGES.items()
        if lines[name]
    ]
    return "".join(parts) + "# EOF\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class MetricsFile:
    """The file of one run, rewritten every few seconds; it never fails a run."""

    def __init__(self, run_dir: Path) -> None:
        self._events, self._run = EventTail(run_dir), run_dir.name
        self.path = run_dir.parent.parent / FOLDER / f"{run_dir.name}.prom"
        self._numbers, self._written = RunNumbers(), 0.0
        self._run_dir, self._free = run_dir, dict[str, int]()
        self._recipe = _recipe_of(run_dir)
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            for old in self.path.parent.glob("*.prom"):
                if old.stat().st_mtime < time.time() - KEPT_SECONDS:
                    old.unlink()

    @property
    def ends(self) -> float:
        """The expected end of the training run in seconds since 1970; 0 if it is not known."""
        remaining = self._numbers.of("step", "remaining_seconds")
        if remaining is None or not self._numbers.steps_since_restart:
            return 0.0
        return float(self._numbers.of("step", "time")) + float(remaining)

    def tick(self, launch: Launch, lives: Sequence[RankLife]) -> None:
        """Write the file unless it has just been written.

        Args:
            lives: the ranks, as their guardians report them.
        """
        if time.monotonic() - self._written >= SECONDS:
            for life in lives:
                if "free" in life.condition:
                    self._free[life.host] = life.condition["free"]
            self.write(launch, max(life.step for life in lives))

    def write(self, launch: Launch, step: int = 0) -> None:
        """Write the file from the events so far."""
        self._written = time.monotonic()
        partial = self.path.with_name(f".{self.path.name}.partial")
        with contextlib.suppress(OSError):  # a full disk, or a folder that setup has not made
            for event in self._events.read():
                with contextlib.suppress(ValueError):  # an event's number of ranks differs
                    self._numbers.add(event)
            if step:
                self._numbers.step = step
            names = {host.name for host in launch.hosts}
            free = {host: free for host, free in self._free.items() if host in names}
            free[launch.hosts[0].name] = free_bytes(self._run_dir)  # this is the head
            cluster = ClusterState(free, _drained(self._run_dir.parents[1]))
            current = samples(self._numbers, launch, self._recipe, time.time(), cluster)
            partial.write_text(text_of(self._run, current), encoding="utf-8")
            partial.rename(self.path)


def _drained(prefix: Path) -> int:
    """Return the number of drained hosts in the cluster's record."""
    try:
        return len(read_json(prefix / "cluster.json")["drained"])
    except (GivenFileError, LookupError, TypeError):  # there is no record, or it has another form
        return 0


def _recipe_of(run_dir: Path) -> str:
    with contextlib.suppress(GivenFileError, AttributeError):  # the file has another form
        job = read_json(run_dir / "job.json")
        return str(job.get("recipe", {}).get("name") or run_dir.name.rsplit("-", 3)[0])
    return ""
