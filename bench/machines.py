"""Machines of measurements, and the refusal to compare or merge those of different machines.

Results files, and the lines of a file with one training each, record the machine that measured
them. Every program that merges files, or adds to a file, checks that all their machines are the
same. Uses the standard library only, because some measurements run with a host's packages.
"""

import datetime
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

BF16 = ("amx_bf16", "avx512_bf16")  # CPU flags
INSTRUCTIONS = (*BF16, "avx512f", "avx2")
# variables that hide instructions from oneDNN, torch and MKL
LIMITS = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS",
)  # fmt: skip
# facts of a machine that change what is measured; its load and matmul speed vary by the hour
FACTS = ("cpu", "instructions", "limits", "cores", "threads", "precision", "versions")
UNITS = {"cores": "cores", "threads": "threads"}

Machine = Mapping[str, Any]


def cpu() -> dict[str, Any]:
    """Return the CPU, the limits of its instructions, and the load of this machine."""
    limits = {name: os.environ[name] for name in LIMITS if os.environ.get(name)}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cpu": _cpuinfo().get("model name", ""),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": instructions(),
        **({"limits": limits} if limits else {}),
        "load": os.getloadavg()[0],
    }


def instructions() -> list[str]:
    """Return the members of INSTRUCTIONS that this CPU has."""
    return [flag for flag in INSTRUCTIONS if flag in _cpuinfo().get("flags", "").split()]


def precision() -> str:
    """Return the default precision of trainings on this machine."""
    info, here = _cpuinfo(), {*instructions()}
    # see fast_bf16 of ftcluster_kernels.products, which needs torch
    slow = info.get("vendor_id") == "GenuineIntel" and info.get("model") != "85"
    return "bf16" if "amx_bf16" in here or ("avx512_bf16" in here and not slow) else "fp32"


def _cpuinfo() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return dict(re.findall(r"^(.*?)\s*: (.*)$", info, re.MULTILINE))


def machine_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine of a document of results, which may also have facts beside `machine`."""
    beside = {name: document[name] for name in FACTS if name in document}
    return beside | document.get("machine", {})


def differences(one: Machine, other: Machine, apart: Collection[str] = ()) -> list[str]:
    """Return the names of the facts in which two machines differ.

    A fact that only one of them records is a difference. Of the versions, only those of packages
    that both compared are considered.

    Args:
        apart: names of facts that may differ, because the rows of a table state them.
    """
    return [
        name
        for name in FACTS
        if name not in apart and _fact(one, other, name) != _fact(other, one, name)
    ]


def _fact(machine: Machine, other: Machine, name: str) -> Any:
    """Return a fact; of versions, those of the packages that the other machine has too."""
    value, theirs = machine.get(name), other.get(name)
    if name == "versions" and value and theirs:
        return {package: version for package, version in value.items() if package in theirs}
    return {*value} if name == "instructions" and value else value


def described(machine: Machine) -> str:
    """Return all recorded facts of a machine as one line."""
    parts = []
    for name in FACTS:
        value = machine.get(name)
        if not value:
            parts += [] if name == "limits" else [f"{name} not recorded"]
        elif isinstance(value, Mapping):
            sign = "=" if name == "limits" else " "
            parts += [f"{key}{sign}{text}" for key, text in value.items()]
        elif name == "instructions":
            parts.append(" ".join(value))
        else:
            parts.append(f"{value} {UNITS[name]}" if name in UNITS else str(value))
    return ", ".join(parts)


def short_name(machine: Machine) -> str:
    """Return the CPU's name without words that all CPUs of the maker have.

    >>> short_name({"cpu": "Intel(R) Xeon(R) Processor"})
    'Intel Xeon'
    """
    return re.sub(r"\((?:R|TM)\)| Processor\b| CPU\b", "", machine["cpu"]).strip()


def same_machine(machines: Mapping[str, Machine], remedy: str, apart: Collection[str] = ()) -> None:
    """Check that measurements come from the same machine.

    Args:
        machines: machines by the names of their files or rows.
        remedy: instruction to the user if they differ.
        apart: see `differences`.

    Raises:
        SystemExit: two of the machines differ.
    """
    names = list(machines)
    for name in names[1:]:
        first, machine, other = names[0], machines[names[0]], machines[name]
        if facts := differences(machine, other, apart):
            raise SystemExit(
                "error: measurements of different machines cannot be compared; different: "
                f"{', '.join(facts)}\n  {first}: {described(machine)}\n  {name}: "
                f"{described(other)}\n{remedy}"
            )


NEW_FILE = "give a new file with {option}, or repeat all measurements of the file on this machine"


def resumed(path: Path | None, machine: Machine, rows: str = "") -> dict[str, Any]:
    """Return the results to which measurements of this machine are added.

    Args:
        path: file of the results; None, or a file that does not exist, begins new results.
        machine: this machine.
        rows: field of new results that has a list.

    Raises:
        SystemExit: the file has results of another machine.
    """
    if not path or not path.exists():
        return {"machine": dict(machine), **({rows: []} if rows else {})}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    same_machine(
        {str(path): machine_of(results), "this machine": machine},
        NEW_FILE.format(option="--results"),
    )
    return results


class Lines:
    """A file with a JSON document in each line, to which only one machine adds.

    Attributes:
        path: the file, which need not exist.
    """

    def __init__(self, path: Path, option: str = "--runs") -> None:
        """Set the file, and the name of the option that chose it."""
        self.path, self._option = path, option

    def read(self) -> list[dict[str, Any]]:
        """Return the documents of all lines.

        Raises:
            SystemExit: the lines come from different machines, or do not record their machine.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for number, document in enumerate(found, 1):
            if not document.get("machine"):
                raise SystemExit(
                    f"error: {self.path}:{number} does not record its machine, so its measurements "
                    f"cannot be compared with others; give a new file with {self._option}"
                )
        if found:
            remedy = "keep the lines of each machine in a separate file"
            same_machine(
                {f"{self.path}:{n}": document["machine"] for n, document in enumerate(found, 1)},
                remedy,
            )
        return found

    def machine(self) -> dict[str, Any]:
        """Return the machine of all lines; empty without lines."""
        return dict(lines[0]["machine"]) if (lines := self.read()) else {}

    def check(self, machine: Machine) -> None:
        """Check that this machine may add lines to the file.

        Raises:
            SystemExit: the file has lines of another machine.
        """
        if recorded := self.machine():
            remedy = NEW_FILE.format(option=self._option)
            same_machine({str(self.path): recorded, "this machine": machine}, remedy)

    def add(self, documents: Sequence[Mapping[str, Any]], machine: Machine) -> None:
        """Add lines to the file, each with its machine."""
        self.check(machine)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**one, "machine": machine}) + "\n" for one in documents)
