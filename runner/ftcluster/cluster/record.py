"""Read and change the cluster's record, PREFIX/cluster.json on the head.

All control nodes of the cluster share the record. The module `ftcluster.cluster.cluster_record`
changes it. This module validates the record for all readers, because a host could send anything.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from ansible_collections.ftcluster.cluster.plugins.module_utils.record import MOST

from ftcluster.cluster.facts import BENCH, SETUP, AllReduce, ClusterFacts
from ftcluster.cluster.tunings import Tuning
from ftcluster_common.given_files import FormatError
from ftcluster_common.protocol.formats import RECORD, opened

One = TypeVar("One")
_MOST_SHOWN = 60  # maximum number of characters of a value to show
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Drained:
    """The reason why a host is drained, and the day of the change, such as 2026-11-23."""

    why: str
    since: str


@dataclass(frozen=True)
class MeasuredOn:
    """The measured times of an all-reduce in fp32, and the conditions of the measurement.

    Attributes:
        ms: time in milliseconds for `bytes` bytes, by backend.
        bytes: size of the tensor in bytes.
        hosts: names of the hosts.
        stack: name of the hosts' stack.
        spread: interquartile range of the times relative to their median, by backend.
        load: number of processes per CPU of the busiest host before the measurement.
        sizes: times for other tensor sizes. The keys are sizes in bytes, as strings.
    """

    ms: Mapping[str, float]
    bytes: int
    hosts: tuple[str, ...]
    stack: str
    spread: Mapping[str, float] = field(default_factory=dict)
    load: float = 0.0
    sizes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterRecord:
    """The content of the cluster's record.

    Attributes:
        drained: drained hosts, by name.
        all_reduce: all-reduce measurements, by the command that made them (SETUP or BENCH).
        tunings: the tunings, the newest last.
    """

    drained: Mapping[str, Drained] = field(default_factory=dict)
    all_reduce: Mapping[str, MeasuredOn] = field(default_factory=dict)
    tunings: tuple[Tuning, ...] = ()

    def measured(self, facts: ClusterFacts) -> AllReduce | None:
        """Return the all-reduce measurement for these hosts; None if there is none.

        The measurement of BENCH is used if it was made on the same hosts with the same stack.
        Otherwise, the measurement of SETUP is used if it was made with the same stack.
        """
        names, stack = tuple(host.name for host in facts.hosts), facts.head.stack
        bench, setup = (self.all_reduce.get(by) for by in (BENCH, SETUP))
        if bench and (bench.hosts, bench.stack) == (names, stack):
            return _as_fact(bench, BENCH)
        return _as_fact(setup, SETUP) if setup and setup.stack == stack else None


def _as_fact(measured: MeasuredOn, by: str) -> AllReduce:
    sizes = {size: dict(ms) for size, ms in measured.sizes.items()}
    return AllReduce(dict(measured.ms), measured.bytes, len(measured.hosts), by, sizes)


def record_of(text: object) -> ClusterRecord:
    """Parse the text of a record. An empty text gives an empty record.

    Raises:
        ValueError: the text is not a valid record; the message names the invalid part.
    """
    if not isinstance(text, str) or len(text) > MOST:
        raise ValueError(f"it is not a string of at most {MOST} characters")
    if not text:
        return ClusterRecord()
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check(isinstance(document, dict), "it is not a mapping")
    try:
        document = opened(RECORD, document)
    except FormatError as error:
        raise ValueError(f"it {error}") from None
    drained = _section(document, "drained", _drained)
    all_reduce = _section(document, "all_reduce", _measured)
    tunings = _section(document, "tunings", _tuning)
    return ClusterRecord(drained, all_reduce, tuple(tunings.values()))


def key_of(tuning: Tuning) -> str:
    """Return the key of a tuning in the record. It identifies the recipe and the hosts."""
    what = json.dumps([tuning.recipe, tuning.hosts], sort_keys=True)
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def with_drained(names: Mapping[str, Drained | None]) -> dict[str, Any]:
    """Return the change that drains hosts. A host with the value None is undrained."""
    return {"drained": {name: asdict(host) if host else None for name, host in names.items()}}


def with_bench(measured: MeasuredOn) -> dict[str, Any]:
    """Return the change that stores a measurement of `bench allreduce`."""
    return {"all_reduce": {BENCH: {**asdict(measured), "hosts": list(measured.hosts)}}}


def with_tuning(tuning: Tuning) -> dict[str, Any]:
    """Return the change that stores a tuning and replaces any tuning of its recipe and hosts."""
    return {"tunings": {key_of(tuning): asdict(tuning)}}


def without_tunings(gone: tuple[Tuning, ...]) -> dict[str, Any]:
    """Return the change that removes tunings."""
    return {"tunings": {key_of(tuning): None for tuning in gone}}


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _section(
    document: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], One]
) -> dict[str, One]:
    section = document.get(name, {})
    _check(isinstance(section, dict), f"its {name} is not a mapping")
    entries = {}
    for key, entry in section.items():
        try:
            _check(isinstance(entry, dict), "it is not a mapping")
            entries[key] = read(entry)
        except (ValueError, KeyError, OverflowError) as error:
            raise ValueError(f"{name}: {_shown(key)}: {error}") from None
    return entries


def _drained(entry: Mapping[str, Any]) -> Drained:
    _check(isinstance(entry["why"], str), "its why is not a string")
    return Drained(entry["why"], _date(entry["since"]))


def _measured(entry: Mapping[str, Any]) -> MeasuredOn:
    _check(isinstance(entry["ms"], dict), "its ms is not a mapping")
    _check(isinstance(entry["hosts"], list), "its hosts are not a list")
    _check(isinstance(entry.get("spread", {}), dict), "its spread is not a mapping")
    ms, spread = (
        {name: _number(value) for name, value in entry.get(key, {}).items()}
        for key in ("ms", "spread")
    )
    hosts = tuple(_text(name) for name in entry["hosts"])
    size, load = int(_number(entry["bytes"])), _number(entry.get("load", 0.0))
    _check(size > 0, "its bytes are not positive")
    sizes = entry.get("sizes", {})
    _check(isinstance(sizes, dict), "its sizes are not a mapping")
    for text, times in sizes.items():
        _check(text.isascii() and text.isdigit() and int(text) > 0, f"not a size: {_shown(text)}")
        _check(isinstance(times, dict) and bool(times), f"its times of {text} are not a mapping")
    of_sizes = {
        text: {name: _number(value) for name, value in times.items()}
        for text, times in sizes.items()
    }
    return MeasuredOn(ms, size, hosts, _text(entry["stack"]), spread, load, of_sizes)


# types of the recipe's fields that `tune` varies, see search/candidates.py
_SETTINGS: Mapping[str, tuple[type, ...]] = {
    "ranks_per_host": (int,),
    "communication_cores": (int,),
    "allocator": (str,),
    "batch_size": (int,),
    "training.ddp_backend": (str,),
    "training.ddp_bucket_cap_mb": (int, float),
    "training.shard_optimizer": (bool, str),
}


def _tuning(entry: Mapping[str, Any]) -> Tuning:
    settings = entry["settings"]
    _check(isinstance(entry["recipe"], dict) and isinstance(settings, dict), "it is not a tuning")
    hosts = entry["hosts"]
    _check(
        isinstance(hosts, list) and all(isinstance(host, dict) for host in hosts), "it has no hosts"
    )
    for host in hosts:
        _text(host["name"])
    for name, value in settings.items():
        kinds = _SETTINGS.get(name, ())
        fits = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
        _check(fits, f"the setting {_shown(name)} is {_shown(value)}")
    return Tuning(
        _text(entry["name"]),
        entry["recipe"],
        hosts,
        _date(entry["date"]),
        settings,
        _number(entry["speed_up"]),
        _number(entry["spread"]),
        int(_number(entry["trials"])),
    )


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _text(value: object) -> str:
    _check(isinstance(value, str), f"{_shown(value)} is not a string")
    return str(value)


def _date(value: object) -> str:
    _check(bool(_DATE.fullmatch(_text(value))), f"{_shown(value)} is not a date")
    return str(value)


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _check(is_number and math.isfinite(float(str(value))), f"{_shown(value)} is not a number")
    return float(str(value))
