"""What a run's folder on the head says of it: the rows of `ftcluster ps`. Standard library only."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

STATES = ("running", "done", "failed", "stopped")
STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")  # behind a name
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


def run_state_of(data: Mapping[str, Any]) -> RunState:
    """A run from its JSON, whatever else is in it.

    An older node package leaves out what has a default.

    Raises:
        KeyError: a field is missing.
    """
    values = {
        field.name: data[field.name]
        for field in fields(RunState)
        if field.default is MISSING or field.name in data
    }
    return RunState(**{**values, "hosts": tuple(data["hosts"])})
