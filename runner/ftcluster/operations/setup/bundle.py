"""Write the packages of a stack into one file, for clusters without internet."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    Bundle,
    BundleError,
    write_bundle,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import (
    Lists,
    StacksFileError,
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

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.result import Result
from ftcluster.paths import collection
from ftcluster.progress.format import duration
from ftcluster.stacks.catalog import NODE_PYTHON, Stack, find_stack, load_stacks, numbers

OLDEST_GLIBC = "2.28"  # minimum version for torch's wheels (manylinux_2_28)
DEFAULT_PYTHON = "3.11"
MACHINE = "x86_64"


@dataclass(frozen=True)
class BundleRequest:
    """The stack to bundle, and the hosts that the bundle is for.

    Attributes:
        stack: name of the stack; "" for the default stack.
        output: path of the bundle; "" for a file in the current folder, named after the stack and
            the Python version.
        python: version of the hosts' Python, as X.Y.
        glibc: oldest glibc version among the hosts, as X.Y.
        index_url: URL of the package index; "" for the index in pip's configuration.
        find_links: folders with further packages.
        allow_yanked: True if yanked releases are accepted.
        allow_unverified: True if packages without a hash in a lock are accepted.
    """

    stack: str = ""
    output: str = ""
    python: str = DEFAULT_PYTHON
    glibc: str = OLDEST_GLIBC
    index_url: str = ""
    find_links: tuple[str, ...] = ()
    allow_yanked: bool = False
    allow_unverified: bool = False


def bundle(request: BundleRequest) -> Result:
    """Download the packages of a stack and write them to one file that `setup` can install from.

    Raises:
        UsageError: the request is not valid.
        FtclusterError: a package is not available, is yanked, or has no hash in a lock.
    """
    began = time.monotonic()
    stack = chosen_stack(request.stack)
    target = read_target(request.python, request.glibc, stack)
    if stack.yanked and not request.allow_yanked:
        raise FtclusterError(
            f"stack {stack.name} contains yanked releases: "
            f"{', '.join(f'{p} {stack.packages[p]}' for p in stack.yanked)}",
            "to bundle it anyway: --allow-yanked",
        )
    if stack.missing_hashes and not request.allow_unverified:
        raise FtclusterError(
            f"stack {stack.name} has {stack.missing_hashes}, so downloads cannot be verified",
            "to bundle it anyway: --allow-unverified",
        )
    output = Path(request.output or f"{stack.name}-py{target.python}.ftbundle")
    if output.is_dir():
        raise UsageError(f"{output} is a folder; pass the name of a file with -o")
    try:
        folder = collection() / "roles/torch_stack/files"
        document = read_stacks(folder)
        lists: Lists = lists_of(folder, document, stack.name, cache_dir(), request.allow_unverified)
        indexes: dict[str, str] = {
            canonicalize_name(name): url for name, url in document["indexes"].items()
        }
        sources = Sources(request.index_url, request.find_links, indexes)
        house: Wheelhouse = get_wheels(lists.wanted, target, sources, cache_dir())
        write_bundle(Bundle(stack.name, lists.wanted.digest, target, house), output)
    except (BundleError, StacksFileError, WheelhouseError) as error:
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
    return Result(document, tuple(lines))


def chosen_stack(name: str) -> Stack:
    """Return the stack with this name; the default stack for "".

    Raises:
        UsageError: there is no such stack; the message suggests the nearest name.
    """
    stacks = load_stacks()
    default = next(stack.name for stack in stacks.values() if stack.state == "default")
    return find_stack(name or default, stacks)


def read_target(python: str, glibc: str, stack: Stack) -> Target:
    """Return the target platform of the wheels: versions of Python and glibc.

    Raises:
        UsageError: a version is not X.Y, or `setup` cannot install the stack with this Python.
    """
    for option, text in (("--python", python), ("--glibc", glibc)):
        if not re.fullmatch(r"\d+\.\d+", text):
            raise UsageError(f"{option} must be a version X.Y, such as 3.11, got '{text}'")
    if stack.host_python is None:
        raise UsageError(
            f"stack {stack.name} supports only Python {stack.python[1]} and older, but ftcluster "
            f"needs Python {NODE_PYTHON} on the hosts",
            "to list other stacks: ftcluster stacks",
        )
    first, last = stack.host_python
    if not numbers(first) <= numbers(python) <= numbers(last):
        raise UsageError(
            f"stack {stack.name} supports Python {first} to {last}, not {python}",
            f"to list stacks that do: ftcluster stacks --python {python}",
        )
    return Target(python, glibc, MACHINE)
