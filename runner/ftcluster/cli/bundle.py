"""`ftcluster bundle`: everything that an offline cluster needs of package indexes, in one file."""

import argparse
import json
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
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import normal
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

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.paths import collection
from ftcluster.progress.format import duration
from ftcluster.stacks.catalog import NODE_PYTHON, Stack, find_stack, load_stacks, numbers

OLDEST_GLIBC = "2.28"  # torch's own wheels ask for it: manylinux_2_28
DEFAULT_PYTHON = "3.11"
MACHINE = "x86_64"


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "bundle",
        help="put a stack into one file, for clusters without a way out",
        description="Downloads a stack's packages and writes them, with their hashes, into one "
        "file that `ftcluster setup --bundle FILE` sets hosts up from.",
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
    parser.add_argument(
        "--allow-yanked", action="store_true", help="also releases that their makers took back"
    )
    parser.add_argument(
        "--allow-unverified", action="store_true", help="also packages of which no lock has a hash"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    if options.words:
        raise UsageError(f"bundle takes options only, not {', '.join(options.words)}")
    began = time.monotonic()
    stack = chosen_stack(options.stack)
    target = read_target(options.python, options.glibc, stack)
    if stack.yanked and not options.allow_yanked:
        raise FtclusterError(
            f"stack {stack.name} has releases that their makers took back: "
            f"{', '.join(f'{p} {stack.packages[p]}' for p in stack.yanked)}",
            "to bundle it all the same: --allow-yanked",
        )
    if stack.missing_hashes and not options.allow_unverified:
        raise FtclusterError(
            f"stack {stack.name} has {stack.missing_hashes}, so downloads cannot be verified",
            "to bundle it all the same: --allow-unverified",
        )
    output = Path(options.output or f"{stack.name}-py{target.python}.ftbundle")
    if output.is_dir():
        raise UsageError(f"{output} is a folder; -o takes the name of a file")
    try:
        folder = collection() / "roles/torch_stack/files"
        document = read_stacks(folder)
        lists: Lists = lists_of(folder, document, stack.name, cache_dir(), options.allow_unverified)
        indexes = {normal(name): url for name, url in document["indexes"].items()}
        sources = Sources(options.index_url, tuple(options.find_links), indexes)
        house: Wheelhouse = get_wheels(lists.wanted, target, sources, cache_dir())
        write_bundle(Bundle(stack.name, lists.wanted.digest, target, house), output)
    except (BundleError, StacksError, WheelhouseError) as error:
        raise FtclusterError(str(error)) from error
    size = output.stat().st_size
    if options.json:
        print(
            json.dumps(
                {
                    "state": "done",
                    "bundle": str(output.absolute()),
                    "stack": stack.name,
                    "python": target.python,
                    "glibc": target.glibc,
                    "machine": target.machine,
                    "packages": len(house.wheels),
                    "bytes": size,
                    "notices": list(house.notices),
                    "seconds": round(time.monotonic() - began, 1),
                }
            )
        )
        return 0
    for notice in house.notices:
        print(f"note: {notice}")
    print(
        f"{output}: stack {stack.name} for Python {target.python}, glibc {target.glibc} or newer, "
        f"{len(house.wheels)} packages, {size / 1e9:.2f} GB, {duration(time.monotonic() - began)}"
    )
    print(f"set hosts up from it: ftcluster setup INVENTORY --bundle {output}")
    return 0


def chosen_stack(name: str) -> Stack:
    """The stack of this name, or the default.

    Raises:
        UsageError: there is none of this name; suggests the nearest.
    """
    stacks = load_stacks()
    default = next(stack.name for stack in stacks.values() if stack.state == "default")
    return find_stack(name or default, stacks)


def read_target(python: str, glibc: str, stack: Stack) -> Target:
    """What the wheels must fit to.

    Raises:
        UsageError: a version is not of the form X.Y, or `setup` cannot install the stack with this
            Python.
    """
    for option, text in (("--python", python), ("--glibc", glibc)):
        if not re.fullmatch(r"\d+\.\d+", text):
            raise UsageError(f"{option} is of the form X.Y, as 3.11, not '{text}'")
    if stack.host_python is None:
        raise UsageError(
            f"stack {stack.name} ends with Python {stack.python[1]}, and what trains on the hosts "
            f"needs {NODE_PYTHON}; it is listed so that its parts are known",
            "others: ftcluster stacks",
        )
    first, last = stack.host_python
    if not numbers(first) <= numbers(python) <= numbers(last):
        raise UsageError(
            f"stack {stack.name} can be had for Python {first} to {last}, not {python}",
            f"see which stack fits: ftcluster stacks --python {python}",
        )
    return Target(python, glibc, MACHINE)
