"""The calls of torch.distributed that are in flight over MPI, and their handles for torch."""

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

# the most recent handles keep the caller's tensors alive: up to this number and size in bytes
RECENT, RECENT_BYTES = 64, 64 << 20
HOLDERS = 3  # references to an unused handle: the deque, a variable, an argument


class CallbackThreads:
    """Threads that run callbacks, because a callback must not block the thread of the MPI calls.

    A callback may wait for another collective, whose callbacks then need another thread. The number
    of threads grows with the number of callbacks that block at the same time.
    """

    def __init__(self) -> None:
        self._lock, self._idle = threading.Lock(), 0
        self._work: SimpleQueue[Sequence[Callable[[], None]]] = SimpleQueue()

    def run(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call the callbacks in order, in a thread that no other callback blocks."""
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
    """Return gloo's message for a timeout; scripts detect timeouts by this text."""
    return f"{name}: Timed out waiting {seconds * 1000:.0f}ms{' on ' * bool(where)}{where}"


def _no_transfer() -> Iterator[MPI.Request]:
    return iter(())


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Operation:
    """One call of torch.distributed.

    Attributes:
        name: name of torch's function and a description of its data, for messages.
        start: function that starts the transfers one after the other; it may start no transfer.
        finish: function that is called when all transfers are complete.
        signature: properties that must be the same on all ranks; empty for a message between two
            ranks.
        splits: number of elements that all-to-all sends to each rank, then receives from each.
        deadline: time limit as a value of time.monotonic(); infinite if there is no limit.
        number: number of this call in the group; 0 for a message between two ranks.
        source: rank that sent the message; -1 if unknown.
        waited_for: True if a thread waits for the operation.
        is_reported: True if this rank has reported to the store that it waits.
        done: event that is set when the operation is complete or has failed with `error`.
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
    is_reported: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, error: Exception | None = None) -> None:
        """Mark the operation as complete, or as failed with `error`."""
        with self._lock:
            self.error = error
            self.done.set()
        self.start, self.finish = _no_transfer, _nothing  # frees the caller's tensors
        if self.callbacks:
            callback_threads.run(self.callbacks)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the operation is done, or at once if it already is."""
        with self._lock:
            if not self.done.is_set():
                self.callbacks.append(callback)
                return
        callback()


class Transfer:
    """An operation whose data is moving."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._requests = operation.start()
        self._request: MPI.Request | None = None
        self._status = MPI.Status()

    def advance(self) -> bool:
        """Start further transfers if possible; return True if all data has moved."""
        while self._request is None or self._request.Test(self._status):
            if self._request is not None:
                self.operation.source = self._status.source
            self._request = next(self._requests, None)
            if self._request is None:
                return True
        return False


class MpiWork(dist.Work):  # type: ignore[misc]
    """A handle for one or more operations of a single call.

    Args:
        outputs: the caller's tensors, which the handle's future returns as its value.
    """

    def __init__(self, operations: Sequence[Operation], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.operations, self.outputs = operations, outputs
        self._future: Any = None
        self._events: list[Any] = []  # futures that end with the profiler's events
        _recent.add(self)

    @classmethod
    def joined(cls, works: "Sequence[MpiWork]") -> "MpiWork":
        """Return one handle for the operations of several handles."""
        operations = [operation for work in works for operation in work.operations]
        work = cls(operations, [tensor for work in works for tensor in work.outputs])
        work._events = [event for part in works for event in part._events]
        return work

    def is_completed(self) -> bool:
        return all(operation.done.is_set() for operation in self.operations)

    def is_success(self) -> bool:
        return self.is_completed() and not self.exception()

    def exception(self) -> Exception | None:
        return next((operation.error for operation in self.operations if operation.error), None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for completion, limited by the group's timeout and by `timeout` unless it is 0."""
        seconds = timeout.total_seconds()
        for operation in self.operations:
            operation.waited_for = True
            if not operation.done.wait(seconds if seconds > 0 else None):
                raise dist.DistBackendError(timed_out(operation.name, seconds))
            if operation.error:
                raise operation.error
        for event in self._events:  # otherwise the profiler may be stopped too early
            event.wait()
        return True

    def profile(self, event: Any) -> None:
        """End a profiler event when the operations end; `wait` returns only after that."""
        self._future = event._call_end_callbacks_on_future(self.get_future())
        self._events = [self._future]

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return list(self.outputs)

    def get_future(self) -> Any:
        """Return a future whose value is the outputs; torch's C++ code can use it too.

        C++ code would treat an exception that `set_exception` sets as the future's value. Only an
        exception that a callback raises is an error for C++ code.
        """
        if self._future is None:
            done = [torch.futures.Future() for _ in self.operations]
            self._future = torch.futures.collect_all(done).then(lambda _: self._value())
            for operation, future in zip(self.operations, done, strict=True):
                operation.when_done(partial(future.set_result, None))
        return self._future

    def _value(self) -> list[torch.Tensor]:
        if error := self.exception():
            raise error
        return list(self.outputs)

    def source_rank(self) -> int:
        return self.operations[0].source

    _source_rank = source_rank


class _Recent:
    """Keeps handles alive that otherwise only C++ refers to: C++ code does not keep the object."""

    def __init__(self) -> None:
        self._works: deque[MpiWork] = deque(maxlen=4096)
        self._with_outputs: deque[tuple[MpiWork, int]] = deque()
        self._lock, self._bytes = threading.Lock(), 0

    def add(self, work: MpiWork) -> None:
        """Keep a handle; drop the tensors of older handles that are complete and not in use."""
        size = sum(x.nbytes for x in work.outputs if x.layout is torch.strided)
        with self._lock:
            self._works.append(work)
            self._with_outputs.append((work, size))
            self._bytes += size
            while len(self._with_outputs) > (RECENT if self._bytes <= RECENT_BYTES else 1):
                previous, size = self._with_outputs.popleft()
                self._bytes -= size
                if previous.is_completed() and sys.getrefcount(previous) <= HOLDERS:
                    previous.outputs = ()


_recent = _Recent()
