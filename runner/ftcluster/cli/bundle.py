"""`ftcluster bundle`: the packages of a stack in one file, for clusters without internet."""

import argparse
import re
import time
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    Bundle,
    BundleError,
    write_bundle,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import (
    Lists,
    StacksError,
    lists_of,
    read_stacks,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wheelhouse,
    WheelhouseError,
    cache_dir,
    get_wheels,
)
from packaging.utils import canonicalize_name

from ftcluster.cli.arguments import add_allowances, add_output, print_result
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.paths import collection
from ftcluster.progress.format import duration
from ftcluster.stacks.catalog import NODE_PYTHON, Stack, find_stack, load_stacks, numbers

OLDEST_GLIBC = "2.28"  # torch's own wheels ask for it: manylinux_2_28
DEFAULT_PYTHON = "3.11"
MACHINE = "x86_64"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bundle",
        help="write a stack into one file, for clusters without internet",
        description="Downloads the packages of a stack and writes them into one file for "
        "`ftcluster setup --bundle FILE`.",
        usage="ftcluster bundle [--stack NAME] [-o FILE] [options]",
    )
    parser.add_argument("--stack", metavar="NAME", default="", help="default: the default stack")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: NAME-pyVERSION.ftbundle")
    parser.add_argument(
        "--python", metavar="X.Y", default=DEFAULT_PYTHON,
        help=f"the hosts' Python (default: {DEFAULT_PYTHON})",
    )  # fmt: skip
    parser.add_argument(
        "--glibc", metavar="X.Y", default=OLDEST_GLIBC,
        help=f"the oldest C library among the hosts (default: {OLDEST_GLIBC})",
    )  # fmt: skip
    parser.add_argument(
        "--index-url", metavar="URL", default="", help="default: as pip is configured"
    )
    parser.add_argument("--find-links", metavar="DIR", action="append", default=[])
    add_allowances(parser)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.words:
        raise UsageError(f"bundle has no arguments but options: {', '.join(options.words)}")
    began = time.monotonic()
    stack = chosen_stack(options.stack)
    target = read_target(options.python, options.glibc, stack)
    if stack.yanked and not options.allow_yanked:
        raise FtclusterError(
            f"stack {stack.name} has yanked releases: "
            f"{', '.join(f'{p} {stack.packages[p]}' for p in stack.yanked)}",
            "to bundle it anyway: --allow-yanked",
        )
    if stack.missing_hashes and not options.allow_unverified:
        raise FtclusterError(
            f"stack {stack.name} has {stack.missing_hashes}, so downloads cannot be verified",
            "to bundle it anyway: --allow-unverified",
        )
    output = Path(options.output or f"{stack.name}-py{target.python}.ftbundle")
    if output.is_dir():
        raise UsageError(f"{output} is a folder; -o needs the name of a file")
    try:
        folder = collection() / "roles/torch_stack/files"
        document = read_stacks(folder)
        lists: Lists = lists_of(folder, document, stack.name, cache_dir(), options.allow_unverified)
        indexes: dict[str, str] = {
            canonicalize_name(name): url for name, url in document["indexes"].items()
        }
        sources = Sources(options.index_url, tuple(options.find_links), indexes)
        house: Wheelhouse = get_wheels(lists.wanted, target, sources, cache_dir())
        write_bundle(Bundle(stack.name, lists.wanted.digest, target, house), output)
    except (BundleError, StacksError, WheelhouseError) as error:
        raise FtclusterError(str(error)) from error
    size, seconds = output.stat().st_size, time.monotonic() - began
    document = {
        "state": "done",
        "bundle": str(output.absolute()),
        "stack": stack.name,
        **vars(target),
        "packages": len(house.wheels),
        "bytes": size,
        "notices": list(house.notices),
        "seconds": round(seconds, 1),
    }
    lines = [
        *(f"note: {notice}" for notice in house.notices),
        f"{output}: stack {stack.name} for Python {target.python}, glibc {target.glibc} or newer, "
        f"{len(house.wheels)} packages, {size / 1e9:.2f} GB, {duration(seconds)}",
        f"to install it: ftcluster setup INVENTORY --bundle {output}",
    ]
    print_result(options, document, "\n".join(lines))
    return 0


def chosen_stack(name: str) -> Stack:
    """The stack of this name, or the default.

    Raises:
        UsageError: there is no such stack; suggests the nearest.
    """
    stacks = load_stacks()
    default = next(stack.name for stack in stacks.values() if stack.state == "default")
    return find_stack(name or default, stacks)


def read_target(python: str, glibc: str, stack: Stack) -> Target:
    """The hosts that the wheels are for.

    Raises:
        UsageError: a version is not X.Y, or `setup` cannot install the stack with this Python.
    """
    for option, text in (("--python", python), ("--glibc", glibc)):
        if not re.fullmatch(r"\d+\.\d+", text):
            raise UsageError(f"{option} needs a version X.Y, such as 3.11, not '{text}'")
    if stack.host_python is None:
        raise UsageError(
            f"stack {stack.name} supports only Python {stack.python[1]} and older, and ftcluster "
            f"needs {NODE_PYTHON} on the hosts",
            "for other stacks: ftcluster stacks",
        )
    first, last = stack.host_python
    if not numbers(first) <= numbers(python) <= numbers(last):
        raise UsageError(
            f"stack {stack.name} supports Python {first} to {last}, not {python}",
            f"for stacks that do: ftcluster stacks --python {python}",
        )
    return Target(python, glibc, MACHINE)
