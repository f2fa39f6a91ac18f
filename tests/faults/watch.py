"""The outcome of a training after a fault."""

import re
import time
from dataclasses import dataclass, field
from typing import Any

from tests.faults.injections import Struck
from tests.faults.observe import Process, processes_of
from tests.faults.training import Training

PAUSE_SECONDS = 0.25
# seconds of steps after which a fault counts as unnoticed; longer than any detection takes
UNDISTURBED_SECONDS = 17.0
DEAD_SECONDS = 5.0  # seconds without any process of the run after which it counts as dead
CLEAN_SECONDS = 60.0


@dataclass
class Outcome:
    """The outcome of a fault; times are seconds from the fault.

    Attributes:
        state: undisturbed, continued, ended (with its cause), died (without) or stuck.
        noticed: time until the run reported the fault.
        moving: time until the next step was done.
        resumed: step after which the training was resumed.
        steps_lost: number of steps that were done a second time.
        named: True if the report has the right cause, host and rank.
        left: remains a minute later.
    """

    state: str
    noticed: float | None = None
    moving: float | None = None
    resumed: int | None = None
    steps_lost: int = 0
    cause: str = ""
    named: bool = True
    left: list[str] = field(default_factory=list)


def watch(training: Training, struck: Struck) -> Outcome:
    """Wait until a training has recovered from a fault or has ended; revert the fault."""
    healed = False
    quiet_since = moved_at = struck.at
    last_step = training.step()
    while True:
        time.sleep(PAUSE_SECONDS)
        now = time.time()
        if not healed and now >= struck.at + struck.heal_after:
            struck.heal()
            healed, now = True, time.time()
            moved_at = max(moved_at, now)
        outcome = _outcome(training, struck, healed)
        if outcome and healed:
            return _with_leftovers(training, outcome)
        if processes_of(training.run):
            quiet_since = now
        elif healed and now - quiet_since > DEAD_SECONDS and training.follower.poll() is not None:
            cause = _last_line(training.said())
            noticed = now - struck.at
            named = _is_named(struck, {"message": cause})
            return _with_leftovers(training, Outcome("died", noticed, cause=cause, named=named))
        if training.step() != last_step or not healed:
            last_step, moved_at = training.step(), now
        if now - moved_at > training.place.patience_seconds:
            return Outcome("stuck", cause=_last_line(training.said()), named=False)


def _outcome(training: Training, struck: Struck, healed: bool) -> Outcome | None:
    """Return the outcome as far as it is known."""
    events = [event for event in training.events() if event["time"] >= struck.at]
    signs = [number for number, event in enumerate(events) if _is_sign(event)]
    said = [event for event in events if _is_sign(event) or _has_cause(struck, event)]
    outcome = Outcome("undisturbed", named=not struck.cause)
    if said:
        outcome.noticed = round(said[0]["time"] - struck.at, 1)
        outcome.cause = _text(said[0])
        outcome.named = any(_is_named(struck, event) for event in said)
    ended = events[-1]["state"] if events and events[-1]["event"] == "end" else ""
    if ended:
        outcome.state = "done" if ended == "done" else "ended"
        return outcome
    if not signs:
        began = struck.at + (struck.heal_after if healed else 0)
        steps = [event for event in events if event["event"] == "step" and event["time"] > began]
        last = events[-1]["time"] - struck.at if events else 0
        over = len(steps) > 2 and last > max(UNDISTURBED_SECONDS, struck.heal_after)
        return outcome if over else None
    sign = events[signs[0]]
    outcome.state = "continued"
    starts = [n for n, event in enumerate(events) if event["event"] == "start" and n > signs[0]]
    steps = [e for e in events[starts[-1] :] if e["event"] == "step"] if starts else []
    if not steps:
        return None
    outcome.moving = round(steps[0]["time"] - struck.at, 1)
    outcome.resumed = steps[0]["step"] - 1
    done = [
        e["step"] for e in training.events() if e["event"] == "step" and e["time"] < sign["time"]
    ]
    outcome.steps_lost = max(0, (done[-1] if done else 0) - outcome.resumed)
    return outcome


def _text(event: dict[str, Any]) -> str:
    """Return the reason that an event contains, or else the run's state."""
    return str(event.get("message") or event.get("why") or event.get("state"))


def _is_sign(event: dict[str, Any]) -> bool:
    """Return True if the event reports that ranks are being ended or were ended."""
    return event["event"] in ("error", "restart") or event.get("state", "done") != "done"


def _has_cause(struck: Struck, event: dict[str, Any]) -> bool:
    """Return True if a notice names a fault after which the training continues."""
    text = event["message"] if event["event"] in ("notice", "restart") else ""
    return bool(struck.cause and re.search(struck.cause, text))


def _is_named(struck: Struck, event: dict[str, Any]) -> bool:
    """Return True if an event has the cause, the host and the rank of a fault."""
    text = f"{event.get('host')}: {_text(event)}"
    rank = struck.rank is None or event.get("rank") == struck.rank or (
        re.search(rf"\brank {struck.rank}\b", text) is not None
    )  # fmt: skip
    return bool(re.search(struck.cause, text)) and struck.host in text and rank


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _with_leftovers(training: Training, outcome: Outcome) -> Outcome:
    """Wait up to a minute until no process of the earlier ranks remains."""
    deadline = time.monotonic() + CLEAN_SECONDS
    over = outcome.state not in ("continued", "undisturbed")
    while left := _left(training, over):
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    outcome.left = [str(one) for one in left]
    return outcome


def _left(training: Training, over: bool) -> list[Process]:
    processes = training.processes()
    if over:
        return processes
    newest = max((one.restart for one in processes if one.restart is not None), default=0)
    return [one for one in processes if one.restart is not None and one.restart < newest]
