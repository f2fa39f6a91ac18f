"""The states of a process of ansible-playbook, and the transitions between them.

`after` returns the next state from this table; `playbook` starts and ends the process.

    state   | cancelled late    too_large raised  | succeeded failed
    playing | stopped   timeout failed    stopped | done      failed
    stopped | stopped   stopped stopped   stopped | stopped   stopped
    timeout | timeout   timeout timeout   timeout | timeout   timeout
    failed  | failed    failed  failed    failed  | failed    failed
    done    | done      done    done      done    | done      done

The first event decides, because a second event can follow: a process that is being ended exits with
success or failure, and two threads can have a reason to end the process at the same time.
"""

from typing import Literal

EndState = Literal["done", "failed", "stopped", "timeout"]
PlaybookState = Literal["playing"] | EndState
# Reasons for ending the process: the caller cancelled it, the time limit passed, it used too much
# memory, or a callback or a signal raised an exception.
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
    """Return the state after an event."""
    return _END_OF[event] if state == "playing" else state
