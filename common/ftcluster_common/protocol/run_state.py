"""The state of a run, from its folder on the head: a row of `ftcluster ps`."""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

STATES = ("running", "done", "failed", "stopped")
STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")  # separator between a name and the rest of an id
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
WAITS = "waiting"  # prefix of phases in which a run waits for hosts
INTERRUPTED = "interrupted"  # state of a run whose supervisor is gone, for example after a reboot
MOST_ROWS_BYTES = 64 << 20  # maximum size in bytes of a page's rows as JSON: about 150,000 rows


def is_run_id(text: Any) -> bool:
    """Return True if a value is a run id: a plain name, because run folders are named after it.

    >>> is_run_id("quickstart-20260131-101500-7f3a"), is_run_id(".."), is_run_id("/etc")
    (True, False, False)
    """
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def name_of_run(run: str) -> str:
    """Return the name in a run's id: the name of the recipe or script, or the user's choice.

    >>> name_of_run("my-model-20260131-101500-7f3a"), name_of_run("other")
    ('my-model', 'other')
    """
    return STAMP.sub("", run)


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        state: running, done, failed or stopped.
        recipe: name of the recipe or the script.
        hosts: names of the hosts, the head first; empty before the launch.
        ranks: number of ranks; 0 before the launch.
        steps: total optimizer steps; 0 if unknown, for example for a script.
        started: start in seconds since 1970.
        seconds: duration from the start to the end, or until now.
        model: folder of the trained model on the head, or "".
        checkpoint: folder of the newest checkpoint on the head, or "".
        started_by: user and machine that started the run, such as `ops on bastion`; "" if unknown.
        tags: tags such as `team=nlp ticket=42`, or "".
        doing: text that names the hosts that the run waits for, or INTERRUPTED, or "".
        why: one line that says who stopped the run or how it failed, or "".
        ends: expected end of the training in seconds since 1970; 0 if unknown.
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
    why: str = ""
    ends: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON-ready data."""
        return dict(vars(self))


FIELDS = {field.name: field.default is MISSING for field in fields(RunState)}


def run_state_of(data: Mapping[str, Any]) -> RunState:
    """Return a run's state from its JSON; unknown fields are ignored.

    The JSON of an older node package may lack fields that have a default here.

    Raises:
        KeyError: a field is missing.
    """
    values = {name: data[name] for name, needed in FIELDS.items() if needed or name in data}
    return RunState(**{**values, "hosts": tuple(data["hosts"])})


def pack(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as compressed text, because ansible-runner drops large results."""
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def unpack(text: str) -> Any:
    """Return the rows that `pack` has packed.

    Raises:
        ValueError: the text is not from `pack`, or its rows are larger than MOST_ROWS_BYTES.
    """
    reader = zlib.decompressobj()
    try:
        rows = reader.decompress(base64.b64decode(text, validate=True), MOST_ROWS_BYTES)
        if not reader.eof:
            raise ValueError("the rows are truncated, or there are too many")
        return json.loads(rows)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None
