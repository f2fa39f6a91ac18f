"""The states of one process of ansible-playbook, and what leads from one to the next.

A pure table: `playbook` starts the process and ends it; `after` decides what its end means.

    state   | cancelled late    too_large raised  | succeeded failed
    playing | stopped   timeout failed    stopped | done      failed
    stopped | stopped   stopped stopped   stopped | stopped   stopped
    timeout | timeout   timeout timeout   timeout | timeout   timeout
    failed  | failed    failed  failed    failed  | failed    failed
    done    | done      done    done      done    | done      done

The first event decides: a process that was ended for a reason may exit in either way, and two
threads may find a reason at the same time.
"""

from typing import Literal

EndState = Literal["done", "failed", "stopped", "timeout"]
PlaybookState = Literal["playing"] | EndState
# why the process is ended: by the caller, at its time limit, because it needs too much memory, or
# because a callback of the caller or a signal has raised an exception
Reason = Literal["cancelled", "late", "too_large", "raised"]
Exit = Literal["succeeded", "failed"]

_END_OF: dict[Reason | Exit, EndState] = {
    "cancelled": "stopped",
    "late": "timeout",
    "too_large": "failed",
    "raised": "stopped",
    "succeeded": "done",
    "failed": "failed",
}


def after(state: PlaybookState, event: Reason | Exit) -> EndState:
    """Return the state that the event leads to."""
    return _END_OF[event] if state == "playing" else state
