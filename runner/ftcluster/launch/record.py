"""Read and write the records of runs on this control node.

A record is a folder with run.json and a copy of the run's events.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import LOCALHOST
from ftcluster.errors import FtclusterError
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.paths import (
    PRIVATE_FILE,
    locked_state,
    make_state_dir,
    read_state,
    state_dir,
    write_atomically,
)
from ftcluster.progress.state import RunProgress
from ftcluster_common import __version__
from ftcluster_common.protocol.formats import RUN_RECORD, opened, stamped
from ftcluster_common.protocol.run_state import RunState, is_run_id

LOG = logging.getLogger(__name__)

END_LINE = b'\n "end": {'  # the text with which the field `end` starts, as written by `_write`

FORMS: dict[str, type | tuple[type, ...]] = {  # JSON types of a record's fields
    "run": str, "ftcluster": str, "command": list, "started": (int, float), "kind": str,
    "inventories": list, "options": list, "slurm_job": str, "facts": list, "stack": dict,
    "plan": dict, "launch": dict, "recipe": dict, "end": dict,
    "code": list,
}  # fmt: skip


def record_dir(run: str) -> Path:
    """Return the folder of a run's record.

    Raises:
        FtclusterError: the id is not a plain name.
    """
    if not is_run_id(run):
        raise FtclusterError(f"{run!a} is not the id of a run", "to list the runs: ftcluster ps")
    return state_dir() / "runs" / run


def events_file(run: str) -> Path:
    """Return the path of the local copy of a run's events.jsonl."""
    return record_dir(run) / "events.jsonl"


def begin_events(run: str) -> None:
    """Create an empty copy of a run's events, so that a reader can open the file."""
    make_state_dir(record_dir(run))
    events_file(run).touch(mode=PRIVATE_FILE)


def begin_record(run: str, content: Mapping[str, Any]) -> None:
    """Write run.json with the fields that are known before the run's launch."""
    document = {
        "run": run,
        "ftcluster": __version__,
        "started": round(time.time(), 3),
        **content,
    }
    _write(run, document)


def complete_record(run: str, end: Mapping[str, Any]) -> None:
    """Add the field `end` to a run's run.json, if this control node has the file."""
    with locked_state():
        document = read_record(run)
        if document is not None and document.get("end") != end:
            _write(run, {**document, "end": dict(end)})


def complete_from(listed: RunState) -> None:
    """Add the run's end that the head has reported, if the record does not contain it yet."""
    if listed.state == "running" or _has_end(listed.run):
        return
    record = read_record(listed.run)
    if record is not None and "end" not in record:
        names = ("state", "seconds", "model")
        end = {name: getattr(listed, name) for name in names}
        ended = round(listed.started + listed.seconds, 3)
        complete_record(listed.run, {**end, "ended": ended, "steps": listed.step})


def end_of(progress: RunProgress) -> dict[str, Any]:
    """Return the field `end` of the record of a run that was followed."""
    return {
        **progress.document(),
        "exit_code": progress.end.get("exit_code"),
        "ended": progress.end.get("time"),
        "errors": progress.errors,
    }


def recorded_runs(beginning: str = "") -> list[str]:
    """Return the sorted ids of the runs that have a record on this control node.

    Args:
        beginning: beginning of the ids to return.
    """
    runs = []
    with contextlib.suppress(FileNotFoundError), os.scandir(state_dir() / "runs") as folders:
        for folder in folders:
            # there may be thousands of records; a Path for each would double the time
            if folder.name.startswith(beginning) and os.path.exists(f"{folder.path}/run.json"):  # noqa: PTH110
                runs.append(folder.name)
    return sorted(runs)


def read_record(run: str) -> dict[str, Any] | None:
    """Return the content of a run's run.json; None if the file is missing or cannot be read."""
    try:
        return read_state(_file(run), _record)
    # another version of ftcluster wrote the file; an error would hide all other runs
    except FtclusterError as error:
        LOG.warning("note: %s", error.message)
        return None


def recorded_digests(run: str) -> set[str]:
    """Return the SHA-256 digests of the user's Python files in a run's record."""
    files = (read_record(run) or {}).get("code", [])
    return {str(file.get("sha256")) for file in files if isinstance(file, dict)}


def recorded_env(run: str) -> dict[str, str]:
    """Return the variables of a run's ranks from its record; {} without a record."""
    env = (read_record(run) or {}).get("launch", {}).get("env", {})
    return {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}


def recorded_run_hosts(run: str) -> RunHosts | None:
    """Return the hosts of a run that has a record on this control node; None without a record."""
    record = read_record(run) or {}
    plan = record.get("plan")
    if not plan or "inventories" not in record:
        return None
    names = tuple(host["name"] for host in (*plan["hosts"], *plan["spares"]))
    return RunHosts(
        inventories=tuple(map(Path, record["inventories"])),
        hosts=(LOCALHOST,) if record.get("slurm_job") else names,
        rank_user=plan["rank_user"],
        prefix=plan["prefix"],
        options=tuple(record.get("options", ())),
    )


def _has_end(run: str) -> bool:
    """Return True if a run's record has the field `end`, or if there is no record.

    There may be thousands of records, so the file is searched for END_LINE instead of parsed.
    """
    try:
        return END_LINE in _file(run).read_bytes()
    except OSError:
        return True


def _file(run: str) -> Path:
    return record_dir(run) / "run.json"


def _record(document: Any) -> dict[str, Any]:
    """Return a record after checking the types of all fields that its readers use.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: a field has the wrong type.
        FormatError: a newer version of ftcluster wrote the record.
    """
    document = opened(RUN_RECORD, document)
    for name, kind in FORMS.items():
        if name in document and not isinstance(document[name], kind):
            raise TypeError(name)
    texts = [*document.get("options", ()), *document.get("inventories", ())]
    for host in document.get("facts", ()):
        texts += [host["name"], host.get("price_per_hour", "")]
    if plan := document.get("plan"):
        texts += [plan["rank_user"], plan["prefix"]]
        texts += [host["name"] for host in (*plan["hosts"], *plan["spares"])]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise TypeError(wrong)
    record: dict[str, Any] = document
    return record


def _write(run: str, document: Mapping[str, Any]) -> None:
    write_atomically(_file(run), json.dumps(stamped(RUN_RECORD, document), indent=1) + "\n")
