"""Measure and empty the caches of the hosts and of this control node."""

import fcntl
import shutil
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import cache_dir

from ftcluster.launch.runs import clear_caches
from ftcluster.operations.connection import Connection, all_runs, cluster_run_hosts
from ftcluster.operations.result import Result
from ftcluster.progress.view import View
from ftcluster.text.table import aligned

HERE, WHEELS = "this control node", "wheels"
NEWEST = 200  # number of runs to list; active runs come first


def caches(connection: Connection, clear: bool, view: View) -> Result:
    """Return the sizes of the caches. If `clear` is True, empty the caches.

    The hosts cache models, data and tokenized samples. This control node caches the wheels of
    stacks, of bundles and of scripts' packages. Files that an active run uses are never removed.

    Args:
        clear: True to remove all cached files that no active run uses.

    Raises:
        FtclusterError: a host does not respond.
    """
    run_hosts = cluster_run_hosts(connection, view)
    runs, _ = all_runs(run_hosts, view, most=NEWEST)
    running = [run.run for run in runs if run.state == "running"]
    by_host = clear_caches(run_hosts, running, clear)
    by_host[HERE] = {WHEELS: _wheels(cache_dir(), clear)}
    sizes = [
        {"host": host, "cache": name, "bytes": whole, "unused_bytes": unused}
        for host, of_host in by_host.items()
        for name, (whole, unused) in of_host.items()
    ]
    document = {"state": "done", "caches": sizes, "removed": clear}
    return Result(document, tuple(_table(sizes, "removed" if clear else "unused")))


def _wheels(folder: Path, clear: bool) -> tuple[int, int]:
    """Return the bytes of all wheels, and the bytes of the wheels that no command is using.

    If `clear` is True, remove the wheels that no command is using.
    """
    whole = unused = 0
    for path in folder.glob("[!.]*"):
        size = sum(512 * entry.lstat().st_blocks for entry in (path, *path.rglob("*")))
        whole += size
        with (folder / f".{path.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            unused += size
            if clear:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return whole, unused


def _table(sizes: Sequence[dict[str, object]], unused: str) -> list[str]:
    rows = [
        (str(row["host"]), str(row["cache"]), *map(_gb, (row["bytes"], row["unused_bytes"])))
        for row in sizes
    ]
    return aligned([("host", "cache", "size", unused), *rows])


def _gb(size: object) -> str:
    return f"{int(str(size)) / 1e9:.2f} GB"
