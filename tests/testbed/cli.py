"""The command line: one verb per method of `Testbed`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

from .api import Testbed
from .settings import DEFAULT_NODES, Settings
from .shell import TestbedError, environment

DESCRIPTION = "A few real hosts on one Linux machine, to test a cluster with. Needs root."

DEFAULTS = Settings()
EPILOG = f"""\
settings, from the environment:
  FTCLUSTER_TESTBED_DIR      where disks and the cache are ({DEFAULTS.dir})
  FTCLUSTER_TESTBED_SUITE    their Debian or Ubuntu suite ({DEFAULTS.suite})
  FTCLUSTER_TESTBED_EXTRA    more Debian packages on their disks, with commas

`down` leaves the cached root file system for the next `up`. What goes wrong and why: README.md.
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="testbed",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, *arguments: str) -> argparse.ArgumentParser:
        """Add a verb; an argument in brackets is optional."""
        made = verbs.add_parser(name, help=text, description=text)
        for argument in arguments:
            name, nargs = argument.strip("[]"), "?" if argument.startswith("[") else None
            made.add_argument(name.lower(), metavar=name, nargs=nargs)
        return made

    up = verb("up", "build what is missing, boot the hosts, wait until ssh answers")
    up.add_argument(
        "nodes", metavar="N", nargs="?", type=int, help=f"how many hosts ({DEFAULT_NODES})"
    )
    down = verb("down", "remove everything except the cached root file system")
    down.add_argument("--purge", action="store_true", help="remove that as well")
    verb("status", "print one line per host")
    verb("inventory", "print an Ansible inventory (INI) of the hosts")
    run = verb("run", "run CMD on the control host, in the cluster's network", "CMD")
    ssh = verb("ssh", "ssh to NODE as its operator", "NODE")
    exec_ = verb("exec", "like a serial console, as root: works with the network cut", "NODE")
    run.add_argument("rest", metavar="...", nargs=argparse.REMAINDER)
    for made in (ssh, exec_):
        made.add_argument("rest", metavar="CMD...", nargs=argparse.REMAINDER)
    verb("kill", "power off: no FIN or RST on the wire; the disk survives", "NODE")
    verb("boot", "power on again, with a new cable", "NODE")
    verb("reinstall", "power off, erase the disk, and boot with new SSH host keys", "NODE")
    verb("cut", "silent partition: from all hosts, or from OTHER only", "NODE", "[OTHER]")
    verb("heal", "undo cut", "NODE", "[OTHER]")
    verb("shape", "slow cable, e.g. 1gbit; off: no limit", "NODE", "RATE")
    verb("delay", "frames to and from it arrive MS later, each way; 0 is none", "NODE", "MS")
    verb(
        "lose",
        "drop frames to and from the other hosts at random, such as 2; 0 is none",
        "NODE",
        "PERCENT",
    )
    verb("cpu", "limit the CPU: 100 is one whole core, max is no limit", "NODE", "PERCENT")
    verb("memory", "limit the memory to so many GB, such as 2.7; max is no limit", "NODE", "GB")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run a verb and return the exit code; verbs that run a command become that command."""
    args = parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    try:
        _do(Testbed(), args)
    except (TestbedError, OSError) as error:
        print(f"testbed {args.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"testbed {args.verb}: interrupted; `down` removes what there is", file=sys.stderr)
        return 130
    return 0


def _do(bed: Testbed, args: argparse.Namespace) -> None:
    match args.verb:
        case "up":
            bed.up(args.nodes)
        case "down":
            bed.down(purge=args.purge)
        case "status":
            for name, state in bed.status().items():
                print(f"{name:8} {state}")
        case "inventory":
            print(bed.inventory(), end="")
        case "run":
            _become(bed.run_argv([args.cmd, *args.rest]), bed.connections)
        case "ssh":
            _become(bed.ssh_argv(args.node, rest(args)))
        case "exec":
            _become(bed.exec_argv(args.node, rest(args) or ["bash", "-l"]))
        case "shape":
            bed.shape(args.node, args.rate)
        case "delay":
            bed.delay(args.node, float(args.ms))
        case "lose":
            bed.lose(args.node, int(parse_percent(args.percent) or 0))
        case "cpu":
            bed.cpu(args.node, parse_percent(args.percent))
        case "memory":
            bed.memory(args.node, parse_gigabytes(args.gb))
        case "cut" | "heal":
            getattr(bed, args.verb)(args.node, args.other)
        case _:  # kill, boot, reinstall
            getattr(bed, args.verb)(args.node)


def rest(args: argparse.Namespace) -> list[str]:
    """Return the arguments after the verb and its host."""
    return list(args.rest[1:] if args.rest[:1] == ["--"] else args.rest)


def _become(argv: list[str], more: Mapping[str, str] = MappingProxyType({})) -> None:
    sys.stdout.flush()
    os.execvpe(argv[0], argv, {**more, **environment()})


def parse_percent(text: str) -> float | None:
    if text == "max":
        return None
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise TestbedError(f"cpu {text!r}: want a number such as 50, or max") from None


def parse_gigabytes(text: str) -> int | None:
    """Return bytes: `parse_gigabytes("2.7")` is 2,700,000,000."""
    if text == "max":
        return None
    try:
        return int(float(text) * 1e9)
    except ValueError:
        raise TestbedError(f"memory {text!r}: want GB, such as 2.7, or max") from None
