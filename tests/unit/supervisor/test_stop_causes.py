"""The sentences about who stopped a run."""

import pytest

from ftcluster_train.io.signals import OUTSIDE, Received
from ftcluster_train.supervisor.monitors import Ending
from ftcluster_train.supervisor.rank_launch import explained
from ftcluster_train.supervisor.rank_life import RankLife
from ftcluster_train.supervisor.restarts import place_and_message
from ftcluster_train.supervisor.stop_causes import (
    SHUTDOWN,
    SIGNAL,
    StopCause,
    by_command,
    by_signal,
    first_signalled,
    is_pending,
)

TWELVE = 43384.0  # 12:03:04 on the first day of 1970
# from strace during a reboot of Debian 12: si_signo=SIGTERM, si_code=SI_USER, si_pid=1, si_uid=0
REBOOT = Received(15, 1, "root", "systemd", stopping=True)
USER = Received(15, 4711, "ops", "bash")
SAVED = Ending("stopped", 143, [])
KILLED = Ending("failed", 1, [{"message": "killed", "hint": "", "host": "xeon2", "rank": 1}])


def lives(*received: Received | None) -> list[RankLife]:
    """Return one rank on each host: xeon1, the head, xeon2 and so on."""
    return [
        RankLife(rank, f"xeon{rank + 1}", f"10.0.0.{rank}", received=one, signalled=TWELVE + rank)
        for rank, one in enumerate(received)
    ]


@pytest.mark.parametrize("ending", [SAVED, KILLED])
def test_a_host_that_shuts_down_counts_as_lost(ending: Ending) -> None:
    found = explained(ending, lives(None, REBOOT), "xeon1", 0.0)
    assert (found.state, found.restartable) == ("failed", True)
    [error] = found.errors
    assert (error["host"], error["rank"], error["cause"]) == ("xeon2", None, SHUTDOWN)
    assert place_and_message(error) == (
        "xeon2 is shutting down: systemd sent SIGTERM to its ranks at 12:03:05 UTC"
    )


def test_the_shutdown_of_the_head_ends_the_run() -> None:
    found = explained(KILLED, lives(REBOOT, None), "xeon1", 0.0)
    assert (found.state, found.restartable, found.errors) == ("stopped", False, [])
    assert found.cause.cause == SHUTDOWN
    assert found.cause.message.startswith("xeon1 is shutting down: ")


def test_a_users_signal_is_no_reason_for_a_restart() -> None:
    found = explained(SAVED, lives(None, USER), "xeon1", 0.0)
    assert (found.state, found.restartable) == ("stopped", False)
    message = "ops (process 4711, bash) sent SIGTERM to rank 1 on xeon2 at 12:03:05 UTC"
    assert found.cause == StopCause(SIGNAL, message)
    [error] = explained(KILLED, lives(None, USER), "xeon1", 0.0).errors
    assert (error["message"], error["hint"]) == ("killed", message)


def test_without_a_signal_nothing_changes() -> None:
    assert explained(KILLED, lives(None, None), "xeon1", 0.0) is KILLED


def test_of_several_signals_that_of_a_shutdown_counts_else_the_first() -> None:
    both = lives(USER, None, REBOOT)
    assert first_signalled(both) is both[2]
    users = lives(None, USER, USER)
    assert first_signalled(users) is users[1]


@pytest.mark.parametrize(
    ("received", "sender"),
    [
        (USER, "ops (process 4711, bash)"),
        (Received(15, 4711, "4000000"), "4000000 (process 4711, which has ended)"),
        (Received(15, OUTSIDE, "root"), "a process outside this container"),
        (Received(15), "an unknown process"),
        (Received(15, 1, "root", "systemd"), "systemd (process 1, as after systemctl stop"),
    ],
)
def test_each_sender_has_a_name(received: Received, sender: str) -> None:
    cause = by_signal(received, "xeon1", "the supervisor", TWELVE)
    assert cause.cause == SIGNAL
    assert cause.message.startswith(sender)
    assert cause.message.endswith("sent SIGTERM to the supervisor on xeon1 at 12:03:04 UTC")


def test_systemd_that_cannot_be_asked_any_more_counts_as_a_shutdown() -> None:
    gone = Received(15, 1, "root", "systemd", stopping=None)
    assert by_signal(gone, "xeon1", "the supervisor", TWELVE).cause == SHUTDOWN
    [life] = lives(gone)
    assert is_pending(life)
    life.lost = True
    assert not is_pending(life)
    assert not any(map(is_pending, lives(None, USER, REBOOT)))


def test_the_command_names_its_user() -> None:
    assert by_command("ops on bastion").message == "stopped with ftcluster stop by ops on bastion"
    assert by_command("").message == "stopped with ftcluster stop"
