"""What a run's folder on the head says of it: the rows of `ftcluster ps`. Standard library only."""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

STATES = ("running", "done", "failed", "stopped")
STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")  # behind a name
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
WAITS = "waiting"  # how a phase begins in which a run waits for hosts
INTERRUPTED = "interrupted"  # what a run is whose supervisor is gone, as after a reboot
MOST_ROWS_BYTES = 64 << 20  # of the rows of a page as JSON: some 150,000


def is_run_id(text: Any) -> bool:
    """Whether a text names a run: a plain name, because it is a folder's on every machine.

    >>> is_run_id("quickstart-20260131-101500-7f3a"), is_run_id(".."), is_run_id("/etc")
    (True, False, False)
    """
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def name_of_run(run: str) -> str:
    """What an id begins with: the recipe's or the script's name, or one that was given.

    >>> name_of_run("my-model-20260131-101500-7f3a"), name_of_run("other")
    ('my-model', 'other')
    """
    return STAMP.sub("", run)


@dataclass(frozen=True)
class RunState:
    """A run.

    Attributes:
        state: running, done, failed or stopped.
        recipe: the recipe's name, or that of the script.
        hosts: names of its hosts, the head first; none before the launch.
        ranks: how many it was launched with; 0 before the launch.
        steps: optimizer steps in all; 0 where they are not known, as of a script.
        started: seconds since 1970.
        seconds: from its start to its end, or until now.
        model: the folder of the trained model on the head, or "".
        checkpoint: the folder of the newest checkpoint on the head, or "".
        started_by: who started it, such as `ops on bastion`; "" if that is not known.
        tags: such as `team=nlp ticket=42`, or "".
        doing: for which hosts it waits, or INTERRUPTED; else "".
    """

    run: str
    state: str
    recipe: str
    hosts: tuple[str, ...]
    ranks: int
    step: int
    steps: int
    started: float
    seconds: float
    model: str
    checkpoint: str = ""
    started_by: str = ""
    doing: str = ""
    tags: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return dict(vars(self))


FIELDS = {field.name: field.default is MISSING for field in fields(RunState)}


def run_state_of(data: Mapping[str, Any]) -> RunState:
    """A run from its JSON, whatever else is in it.

    An older node package leaves out what has a default.

    Raises:
        KeyError: a field is missing.
    """
    values = {name: data[name] for name, needed in FIELDS.items() if needed or name in data}
    return RunState(**{**values, "hosts": tuple(data["hosts"])})


def pack(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as text, a tenth of their JSON: Ansible's runner brings no large answers."""
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def unpack(text: str) -> Any:
    """The inverse of `pack`.

    Raises:
        ValueError: it is something else, or more than MOST_ROWS_BYTES.
    """
    reader = zlib.decompressobj()
    try:
        rows = reader.decompress(base64.b64decode(text, validate=True), MOST_ROWS_BYTES)
        if not reader.eof:
            raise ValueError("the rows are cut, or too many")
        return json.loads(rows)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None
