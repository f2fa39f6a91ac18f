"""Calls of torch.distributed in flight over MPI, and torch's handle of them."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_mpi.types import MPI

RECENT = 64  # of them that keep the caller's tensors
HOLDERS = 3  # of a work that nothing else in Python has: the deque, a variable, an argument


class CallbackThreads:
    """Runs callbacks beside the thread that makes all calls of MPI, because they may block.

    A callback may wait for another collective, whose callbacks need a thread then. As many threads
    are made as callbacks block at a time.
    """

    def __init__(self) -> None:
        self._lock, self._idle = threading.Lock(), 0
        self._work: SimpleQueue[Sequence[Callable[[], None]]] = SimpleQueue()

    def run(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call them in their order, in a thread that nothing blocks."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._run, name="mpi callbacks", daemon=True).start()
        self._work.put(callbacks)

    def _run(self) -> None:
        while True:
            for callback in self._work.get():
                callback()
            with self._lock:
                self._idle += 1


callback_threads = CallbackThreads()


def timed_out(name: str, seconds: float, where: str = "") -> str:
    """What scripts look for that catch torch's time-outs, in gloo's words."""
    return f"{name}: Timed out waiting {seconds * 1000:.0f}ms{' on ' * bool(where)}{where}"


def _no_transfer() -> Iterator[MPI.Request]:
    return iter(())


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Operation:
    """One call of torch.distributed.

    Attributes:
        name: of torch's function, with what it is called on, for messages.
        start: starts the transfers, if any, each when the one before is complete.
        finish: called when the transfer is complete.
        signature: what has to be the same on all ranks; empty for a message between two ranks.
        splits: for all-to-all, the elements for each rank and those from each.
        deadline: of time.monotonic(); infinite: none.
        number: of this call among the group's; 0 for a message between two ranks.
        source: the rank that a message came from.
        waited_for: whether a thread waits for it.
        done: set when it is complete or has failed with `error`.
    """

    name: str
    start: Callable[[], Iterator[MPI.Request]]
    finish: Callable[[], None]
    signature: tuple[int, ...] = ()
    splits: tuple[int, ...] = ()
    deadline: float = float("inf")
    number: int = 0
    error: Exception | None = None
    waited_for: bool = False
    source: int = -1
    done: threading.Event = field(default_factory=threading.Event)
    called: float = field(default_factory=time.monotonic)
    told: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, error: Exception | None = None) -> None:
        """Complete it, or let it fail."""
        with self._lock:
            self.error = error
            self.done.set()
        self.start, self.finish = _no_transfer, _nothing  # they have the caller's tensors
        if self.callbacks:
            callback_threads.run(self.callbacks)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once it is done, at once if it is."""
        with self._lock:
            if not self.done.is_set():
                self.callbacks.append(callback)
                return
        callback()


class Transfer:
    """An operation whose data moves."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._requests = operation.start()
        self._request: MPI.Request | None = None
        self._status = MPI.Status()

    def advance(self) -> bool:
        """Whether everything has moved."""
        while self._request is None or self._request.Test(self._status):
            if self._request is not None:
                self.operation.source = self._status.source
            self._request = next(self._requests, None)
            if self._request is None:
                return True
        return False


class MpiWork(dist.Work):  # type: ignore[misc]
    """Operations that were called together.

    Args:
        outputs: the caller's tensors, the value of the future.
    """

    def __init__(self, operations: Sequence[Operation], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.operations, self.outputs = operations, outputs
        self._future: Any = None
        self._events: list[Any] = []  # futures: the profiler's have ended
        _keep(self)

    @classmethod
    def joined(cls, works: "Sequence[MpiWork]") -> "MpiWork":
        """One handle for several."""
        operations = [operation for work in works for operation in work.operations]
        work = cls(operations, [tensor for work in works for tensor in work.outputs])
        work._events = [event for one in works for event in one._events]
        return work

    def is_completed(self) -> bool:
        return all(operation.done.is_set() for operation in self.operations)

    def is_success(self) -> bool:
        return self.is_completed() and not self.exception()

    def exception(self) -> Exception | None:
        return next((operation.error for operation in self.operations if operation.error), None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until it is complete, or the group's timeout; 0: no other one."""
        seconds = timeout.total_seconds()
        for operation in self.operations:
            operation.waited_for = True
            if not operation.done.wait(seconds if seconds > 0 else None):
                raise dist.DistBackendError(timed_out(operation.name, seconds))
            if operation.error:
                raise operation.error
        for event in self._events:  # else the profiler may be stopped beside it
            event.wait()
        return True

    def profile(self, event: Any) -> None:
        """End an event of torch's profiler with the operations, before any caller goes on."""
        self._future = event._call_end_callbacks_on_future(self.get_future())
        self._events = [self._future]

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return list(self.outputs)

    def get_future(self) -> Any:
        """A future whose value is the outputs, also for torch's C++ code.

        `set_exception` would give that an exception as the value; what a callback raises is an
        error there too.
        """
        if self._future is None:
            done = [torch.futures.Future() for _ in self.operations]
            self._future = torch.futures.collect_all(done).then(lambda _: self._value())
            for one, future in zip(self.operations, done, strict=True):
                one.when_done(partial(future.set_result, None))
        return self._future

    def _value(self) -> list[torch.Tensor]:
        if error := self.exception():
            raise error
        return list(self.outputs)

    def source_rank(self) -> int:
        return self.operations[0].source

    _source_rank = source_rank


# Works that C++ may have alone: torch calls methods of the Python object, which it does not keep.
_works: deque[MpiWork] = deque(maxlen=4096)


def _keep(work: MpiWork) -> None:
    _works.append(work)
    if len(_works) > RECENT:
        previous = _works[-RECENT - 1]
        if previous.is_completed() and sys.getrefcount(previous) <= HOLDERS:
            previous.outputs = ()
