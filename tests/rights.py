"""The privileges that tests need, found by trying each once when a test needs it.

A test says `@pytest.mark.needs("mount", "network")`, and is skipped with the error of the try.
Standard library only, because the environments of stacks have nothing else.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
SECONDS = 120
# a folder that other users can execute from
PYTHON = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or "/usr/bin/python3"
# packages of the testbed's hosts; each set has a separate root file system
HOST_PACKAGES = ("libfaketime",)


class Missing(Exception):
    """A missing right; the text is the reason."""


def _run(*argv: str, seconds: float = SECONDS, **options: Any) -> None:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            check=False, **options,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise Missing(f"no {error.filename}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{argv[0]}: no end within {seconds:g} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Missing(said[-1] if said else f"{argv[0]}: exit code {done.returncode}")


def _root(folder: Path) -> None:
    if os.geteuid():
        raise Missing(f"the user's number is {os.geteuid()}")
    shutil.chown(folder, "nobody")
    _run(PYTHON, "-I", "-c", "", user="nobody", extra_groups=[], cwd="/")


def _mount(folder: Path) -> None:
    _run("unshare", "--mount", "mount", "-t", "tmpfs", "none", str(folder))


def _fuse(folder: Path) -> None:
    """Try a program's own file system, in a separate namespace."""
    script = (
        "import ctypes, os, sys; fd = os.open('/dev/fuse', os.O_RDWR); libc = ctypes.CDLL(None); "
        "options = f'fd={fd},rootmode=40000,user_id=1,group_id=1,allow_other'.encode(); "
        "sys.exit(libc.mount(b'test', sys.argv[1].encode(), b'fuse.test', 0, options) and 'mount')"
    )
    _run("unshare", "--mount", PYTHON, "-I", "-c", script, str(folder))


def _pid(_folder: Path) -> None:
    _run("unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "true")


def _network(_folder: Path) -> None:
    _run("unshare", "--net", "true")


def _veth(_folder: Path) -> None:
    """Try cables between networks with names, which are mounts."""
    script = (
        "mount -t tmpfs none /run && ip netns add other && "
        "ip link add here type veth peer there netns other && "
        "ip address add 198.18.0.1/24 dev here && ip link set here up"
    )
    _run("unshare", "--mount", "--net", "sh", "-c", script)


def _user_namespace(_folder: Path) -> None:
    _run("unshare", "--map-root-user", "--net", "true")


def _account(_folder: Path) -> None:
    name = f"ftcluster-try-{os.getpid()}"
    _run("useradd", "--no-create-home", name)
    _run("userdel", name)


def _hosts(_folder: Path) -> None:
    """Try a host that boots systemd and answers ssh; this may build a root file system."""
    from tests.testbed import Testbed, TestbedError
    from tests.testbed.settings import Settings

    bed = Testbed(replace(Settings.from_environment(), extra=HOST_PACKAGES))
    try:
        bed.down()  # remains of a killed run
        bed.up(1)
    except TestbedError as error:
        raise Missing(" ".join(str(error).split())) from error
    finally:
        with contextlib.suppress(TestbedError, OSError):  # the first error is more informative
            bed.down()


def _index(folder: Path) -> None:
    """Try if pip reaches packages from its configured source."""
    _run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--retries", "1", "--timeout", "15", "--no-cache-dir", "--no-deps",
        "--dest", str(folder), "iniconfig",
    )  # fmt: skip


def _compiler(folder: Path) -> None:
    (folder / "a.c").write_text("int one(void) { return 1; }\n")
    _run("cc", "-mavx2", "-shared", "-fPIC", "-nostdlib", "-o", str(folder / "a.so"),
         str(folder / "a.c"))  # fmt: skip


def _browser(folder: Path) -> None:
    from tests import browser

    program = browser.program()
    if program is None:
        raise Missing("no Chromium: apt install chromium-headless-shell fonts-liberation")
    try:
        with browser.browser(program, folder) as page:
            page.value("1")
    except (AssertionError, OSError) as error:
        raise Missing(str(error)) from error


def _dnf(folder: Path) -> None:
    _run("dnf", "--version")
    _run("createrepo_c", "-q", str(folder))


def _promtool(_folder: Path) -> None:
    from tests.programs import PROMTOOL

    _run(PROMTOOL, "--version")


def has_flag(*flags: str) -> bool:
    """Return True if the CPU has one of these features, as named by the kernel."""
    return not set(flags).isdisjoint(Path("/proc/cpuinfo").read_text().split())


def _cpu(*flags: str) -> None:
    if not has_flag(*flags):
        raise Missing(f"this CPU has no {' or '.join(flags)}")


# features that some of CI's CPUs lack; tests/skips.toml lists each of them
SOME_CPUS: dict[str, Callable[[Path], None]] = {
    # avx512f suffices for the emulation: tests/engine/amx.c
    "amx": lambda _: _cpu("amx_bf16", "avx512f"),
    "avx512_bf16": lambda _: _cpu("avx512_bf16"),
}
RIGHTS: dict[str, Callable[[Path], None]] = {
    **SOME_CPUS,
    "account": _account,  # useradd
    "avx2": lambda _: _cpu("avx2"),
    "browser": _browser,
    "compiler": _compiler,
    "dnf": _dnf,
    "fuse": _fuse,
    "hosts": _hosts,  # tests/testbed
    "index": _index,
    "mount": _mount,
    "network": _network,
    "nft": lambda _: _run(
        "unshare",
        "--net",
        "sh",
        "-c",
        "ip link add here type veth peer name there && nft add table inet ftcluster",
    ),
    "openssl": lambda _: _run("openssl", "version"),
    "pid": _pid,  # a separate process 1, with its shared objects
    "promtool": _promtool,
    "root": _root,  # also the right to run as another user
    "ssh": lambda _: _run("ssh", "-V"),
    "ssh-keygen": lambda folder: _run(
        "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")
    ),
    "stack": lambda _: _run(
        str(ROOT / "scripts/environment"),
        "engine",
        seconds=1200,  # limit, because this downloads torch
    ),
    "user namespace": _user_namespace,
    "veth": _veth,
}


def bound_by_modes(call: Callable[[], T]) -> T:
    """Run a function in a thread that obeys file modes, even if the user is root."""
    with ThreadPoolExecutor(1, initializer=_without_override) as thread:
        return thread.submit(call).result()


def _without_override() -> None:
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread: linux/capability.h
    # effective, permitted, inheritable; then the same for higher capabilities
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for index in range(2):
        sets[index] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0


def missing(right: str) -> str:
    """Return in one line why a privilege is missing; "" if it is there.

    The processes of a run share the folder FTCLUSTER_TEST_RUN, and what one of them has found.
    """
    with Path(os.environ["FTCLUSTER_TEST_RUN"], right.replace(" ", "-")).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        said = file.read()
        if not said:
            said = f"{_try(right)}\n"
            file.write(said)
    return said.strip()


def _try(right: str) -> str:
    with tempfile.TemporaryDirectory(prefix="ftcluster-test-") as name:
        try:
            RIGHTS[right](Path(name))
        except (Missing, OSError, LookupError, subprocess.SubprocessError) as error:
            return str(error) or type(error).__name__
    return ""
