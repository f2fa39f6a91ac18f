"""Injects seeded faults into long trainings on this machine, and on hosts of the testbed.

    .venv-dev/bin/python -m tests.faults --seed 1 --faults 100
    .venv-dev/bin/python -m tests.faults --place hosts training.ddp_backend=impi

Needs root, and `scripts/environment control` before. Each fault and each training adds a line to
the results (JSON), and the program finally prints how many faults the trainings have survived. The
same seed gives the same faults in the same order. Faults that are in the results are not repeated,
so the same command continues an interrupted campaign. `python -m bench.figures` writes the pages.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.control import NAMES, bare_hosts
from tests.faults import operations, table
from tests.faults.campaign import Campaign, carry_out, planned_faults, problems, survived
from tests.faults.injections import FAULTS, HOST_CLOCK, install_clock
from tests.faults.places import Hosts, Localhost, Place
from tests.programs import ROOT, Home

RESULTS = ROOT / "tests/faults/results.jsonl"
DISK_MEGABYTES = 600  # size of a disk for runs, which a fault can fill


@contextmanager
def localhost(folder: Path, sets_clock: bool) -> Iterator[Place]:
    """Set up this machine in a folder; its runs have a separate disk."""
    home = Home(folder, folder / "ftcluster")
    runs = home.prefix / "runs"
    done = home.run("setup", "localhost", "-e", f"ftcluster_prefix={home.prefix}")
    assert done.returncode == 0, done.stderr
    runs.mkdir(exist_ok=True)
    if sets_clock:
        install_clock(home.prefix)
    size = f"size={DISK_MEGABYTES}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(runs)], check=True)
    try:
        yield Localhost(home)
    finally:
        subprocess.run(["umount", str(runs)], check=True)


def on_testbed(
    name: str, names: tuple[str, ...], ranks_per_host: int
) -> Callable[[Path, bool], AbstractContextManager[Place]]:
    """Set up hosts of the testbed."""

    @contextmanager
    def place(folder: Path, sets_clock: bool) -> Iterator[Place]:
        with bare_hosts("bookworm", folder, names) as control:
            done = control.run("setup", control.inventory("inventory.ini", names))
            assert done.returncode == 0, done.stderr
            if sets_clock:
                for host in names:
                    control.shell(host, HOST_CLOCK)
            if ranks_per_host > 1:
                plan_with_cores(folder / "state/ftcluster/cluster.json", ranks_per_host)
            yield Hosts(control, name, ranks_per_host)

    return place


def plan_with_cores(saved: Path, cores: int) -> None:
    """Pretend that the hosts have this many cores; ranks share the real cores."""
    document = json.loads(saved.read_text())
    cpus = f"0-{cores - 1}"
    for host in document["facts"]["hosts"]:
        [node] = host["numa"]
        node |= {"cores": cores, "cpus": cpus, "socket_cpus": {"0": cpus}}
        host |= {"cores": cores, "threads": cores, "cpu_quota": None}
    saved.write_text(json.dumps(document))


PLACES = {
    "localhost": localhost,
    "hosts": on_testbed("hosts", NAMES, 1),
    "16 ranks": on_testbed("16 ranks", (*NAMES, "node3"), 4),
}


def tried(results: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
    """Return the faults that were tried at a place."""
    return [line for line in results if (line["kind"], line.get("place")) == ("fault", place)]


def main() -> int:
    """Run the program; return 1 if a check fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipe", nargs="*", metavar="key=value", help="more of the recipe of each training"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=10, help="at each place")
    parser.add_argument("--steps", type=int, default=1000, help="of each training")
    parser.add_argument("--pause", type=float, default=3, help="seconds at most between two faults")
    parser.add_argument(
        "--only", action="append", choices=[*FAULTS, *operations.OPERATION_FAULTS], default=[]
    )
    parser.add_argument("--place", action="append", choices=PLACES, help="default: all")
    parser.add_argument(
        "--operations", action="store_true", help="only try the faults of setup and launch"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    before = table.read(options.results) if options.results.exists() else []
    results = [line for line in before if line.get("seed") == options.seed]

    def write(result: dict[str, Any]) -> None:
        results.append(result)
        line = json.dumps(result)
        with options.results.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    if options.operations:
        for machine in table.new_machine(before):
            write(machine)
        tried_now = list(operations.try_faults(options.only or [*operations.OPERATION_FAULTS]))
        for result in tried_now:
            write(result)
        return 0 if all(result["passed"] for result in tried_now) else 1
    for name in options.place or PLACES:
        done = len(tried(results, name))
        faults = planned_faults(options.seed, name, options.only, options.faults, done)
        if not faults:
            continue
        for machine in table.new_machine((*before, *results)):
            write(machine)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
            sets_clock = any(FAULTS[fault].sets_clock for fault in faults)
            place = stack.enter_context(PLACES[name](folder, sets_clock))
            campaign = Campaign(
                place, folder / "logs", options.seed, options.faults, options.steps,
                save_steps=max(5, options.steps // 20), pause_seconds=options.pause,
                only=tuple(options.only), recipe=tuple(options.recipe), done=done,
            )  # fmt: skip
            carry_out(campaign, write)
    outcomes = [fault for name in options.place or PLACES for fault in tried(results, name)]
    print(f"{sum(map(survived, outcomes))} of {len(outcomes)} faults of this seed were survived")
    wrong = problems(results)
    print("\n".join(wrong) or "everything as it has to be", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
