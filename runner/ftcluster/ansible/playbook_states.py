"""The states of a process of ansible-playbook, and the transitions between them.

A pure table: `playbook` starts and ends the process; `after` decides the resulting state.

    state   | cancelled late    too_large raised  | succeeded failed
    playing | stopped   timeout failed    stopped | done      failed
    stopped | stopped   stopped stopped   stopped | stopped   stopped
    timeout | timeout   timeout timeout   timeout | timeout   timeout
    failed  | failed    failed  failed    failed  | failed    failed
    done    | done      done    done      done    | done      done

The first event decides: a process that was ended for a reason may exit in either way, and two
threads may have a reason at the same time.
"""

from typing import Literal

EndState = Literal["done", "failed", "stopped", "timeout"]
PlaybookState = Literal["playing"] | EndState
# reasons for ending the process: the caller, the time limit, too much memory, or an exception
# raised by a callback of the caller or by a signal
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
