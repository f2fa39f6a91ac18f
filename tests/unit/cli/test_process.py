"""Signals that end a command while Python would drop an exception from a handler."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ftcluster.ansible.signals import Interrupts
from ftcluster.cli.process import ended_in_order

FORKING: list[Callable[[], None]] = []  # Python keeps registered functions forever
os.register_at_fork(before=lambda: [call() for call in FORKING])
SECONDS = 10


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {one: signal.getsignal(one) for one in signal.valid_signals()}
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    # programs that later tests start inherit the mask
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    FORKING.clear()
    # the lock is free; an exception during a fork may have left it locked
    with contextlib.suppress(RuntimeError):
        while True:
            logging._lock.release()  # type: ignore[attr-defined]
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


def strike(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def while_it_forks(number: signal.Signals) -> None:
    FORKING.append(lambda: strike(number))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitpid(pid, 0)
    finally:  # the signal may arrive during the fork, and other tests count their children
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def in_a_finalizer(number: signal.Signals) -> None:
    class Ends:
        def __del__(self) -> None:
            strike(number)

    Ends()


@pytest.mark.parametrize("moment", [strike, while_it_forks, in_a_finalizer])
@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_ends_a_command_whatever_python_is_doing(
    moment: Callable[[signal.Signals], None],
    number: signal.Signals,
    ends: type[BaseException],
) -> None:
    did = []

    def command() -> None:
        with ended_in_order():
            try:
                moment(number)
                time.sleep(SECONDS)
                did.append("went on")
            finally:
                time.sleep(0.1)  # this wait is not interrupted again
                did.append("cleaned up")

    with pytest.raises(ends) as raised:
        command()
    assert did == ["cleaned up"]
    if isinstance(raised.value, SystemExit):
        assert raised.value.code == 128 + number
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_what_is_dropped_of_others_is_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError

    shown: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: shown.append(one.exc_type))
    with ended_in_order():
        Broken()
    assert shown == [ValueError]


def test_a_signal_that_nobody_looked_at_is_for_the_handler_before() -> None:
    did = []

    def command() -> None:
        with ended_in_order():
            with Interrupts() as interrupts:
                assert interrupts.count == 0
                strike(signal.SIGTERM)
                did.append("ended")
            did.append("went on")

    with pytest.raises(SystemExit) as raised:
        command()
    assert did == ["ended"]
    assert raised.value.code == 128 + signal.SIGTERM


def test_a_signal_that_was_looked_at_is_for_nobody_else() -> None:
    with ended_in_order():
        with Interrupts() as outer:
            with Interrupts() as inner:
                strike(signal.SIGTERM)
                assert inner.count == 1
            assert outer.count == 0
        time.sleep(0.1)


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("threads", [0, 3])
def test_handlers_are_exchanged_whole(
    nth: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, exchanges, done = signal.signal, 0, threading.Event()
    # these threads may receive a signal
    others = [threading.Thread(target=done.wait) for _ in range(threads)]
    of_ctrl_c, of_hangup = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)

    def exchanged(number: signal.Signals, handler: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        before = exchange(number, handler)
        if exchanges == nth:
            strike(signal.SIGTERM)
        return before

    def command() -> None:
        with ended_in_order():
            monkeypatch.setattr(signal, "signal", exchanged)
            try:
                with Interrupts():
                    pass
            finally:
                monkeypatch.undo()

    for one in others:
        one.start()
    try:
        with pytest.raises(SystemExit):
            command()
    finally:
        done.set()
        for one in others:
            one.join()
    assert exchanges >= nth
    assert signal.getsignal(signal.SIGINT) == of_ctrl_c
    assert signal.getsignal(signal.SIGHUP) == of_hangup
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_in_a_fork_leaves_no_lock_taken() -> None:
    free: list[bool] = []

    def look() -> None:
        if taken := logging._lock.acquire(timeout=SECONDS):  # type: ignore[attr-defined]
            logging._lock.release()  # type: ignore[attr-defined]
        free.append(taken)

    def interrupted() -> None:
        raise SystemExit(143)

    with ended_in_order():
        release = getattr(logging, "_releaseLock", interrupted)
        logging._lock.acquire()  # type: ignore[attr-defined]
        sys.unraisablehook(SimpleNamespace(exc_value=SystemExit(143), object=release))  # type: ignore[arg-type]
        signal.setitimer(signal.ITIMER_REAL, 0)
        if release is interrupted:  # this Python releases the lock without a Python function
            logging._lock.release()  # type: ignore[attr-defined]
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert free == [True]
