"""Runs collectives over MPI: one thread makes all MPI calls.

The collectives of a group start in the order of their calls. Before data moves, the ranks compare
their calls in a small all-gather. If the calls differ, each rank raises an error instead of
hanging. A rank that waits for a rank that still computes does not poll at full speed.
"""

import contextlib
import ctypes
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

import torch
import torch.distributed as dist

from ftcluster_mpi.types import MPI, describe
from ftcluster_mpi.work import Operation, Transfer, callback_threads, timed_out

# Seconds between two polls: a fraction of the wait so far, up to LONGEST. After a long wait, the
# fraction is smaller and the limit is PATIENT, because a rank that waits for a hung rank must not
# look like a rank that computes (see rank_life.IDLE_CPU). A poll takes 2 us, or longer if it moves
# data.
SHORTEST, LONGEST, PART_OF_WAIT = 10e-6, 500e-6, 0.125
PATIENT, PART_OF_LONG_WAIT = 50e-3, 0.02
# MPI needs several polls per message, and the shortest sleep takes longer than a message between
# hosts. While the script waits, the thread therefore polls without sleeping for AT_ONCE seconds.
# With a longer time or with sched_yield, ranks on the same core would compete for the core.
LOOKS, AT_ONCE = 3, 60e-6
PR_SET_TIMERSLACK, SLACK = (
    29,
    1000,
)  # prctl(2); slack in ns: the default of 50 us prolongs each sleep
# A poll that takes longer than this has moved data, so the next poll follows at once. After a long
# pause the caches are cold, so the limit is higher.
MOVED, MOVED_COLD = 15e-6, 150e-6
TOLD_AFTER = 2.0  # seconds after which a waiting rank informs the other ranks
ANSWER_SECONDS = 3.0  # maximum wait for the store after an operation has timed out

Result = TypeVar("Result")

# Buffers that MPI may still write to after a failure. They are never freed, because the memory
# could then belong to other objects.
_unfinished: list[tuple[object, ...]] = []


class Channel:
    """The operations of one group.

    Args:
        hosts: host name of each rank.
        store: store in which ranks report that they are waiting.

    Attributes:
        moving: operations whose transfer has started.
        broken: reason why no operation of this group can succeed any more.
    """

    def __init__(self, comm: MPI.Intracomm, hosts: Sequence[str], store: dist.Store) -> None:
        self.comm, self._agreements = comm, comm.Dup()
        self.broken: Exception | None = None
        # collectives that the ranks have not compared yet, in the order of their calls
        self.queue: deque[Operation] = deque()
        # operations between two ranks, independent of collectives
        self._messages: deque[Operation] = deque()
        self._hosts, self._store = hosts, store
        self.moving: list[Transfer] = []
        self._agreement: Iterator[None] | None = None
        self._agreed_on: deque[Operation] = deque()
        self._collective: Transfer | None = None  # the collective in `moving`, if any
        self._calls = 0

    @property
    def active(self) -> bool:
        """True if any operation is not complete."""
        return bool(self.queue or self._agreed_on or self._messages or self.moving)

    def add(self, operation: Operation) -> None:
        """Queue an operation after the earlier calls."""
        if operation.signature:
            self._calls += 1
            operation.number = self._calls
            self.queue.append(operation)
        else:
            self._messages.append(operation)

    def advance(self) -> None:
        """Poll all operations in flight once."""
        try:
            if self.broken:
                raise self.broken
            while self._messages:
                self.moving.append(Transfer(self._messages.popleft()))
            while self.queue and self._agreed():
                self._agreed_on.append(self.queue.popleft())
            self._advance_moving()
            # only one collective at a time, so that all ranks have the same order
            while self._agreed_on and not self._collective:
                self._collective = Transfer(self._agreed_on.popleft())
                self.moving.append(self._collective)
                self._advance_moving()
            now = time.monotonic()
            for operation in self.all():
                if not operation.is_reported and now > operation.called + TOLD_AFTER:
                    self._tell(operation)
                if now > operation.deadline:
                    raise self._timed_out(operation)
        except Exception as error:
            self._break(error)

    def _advance_moving(self) -> None:
        for transfer in list(self.moving):
            operation = transfer.operation
            try:
                complete = transfer.advance()
            except MPI.Exception as error:
                raise dist.DistBackendError(f"{operation.name}: {error}") from error
            if complete:
                with torch.inference_mode():  # the caller's tensors may be inference tensors
                    operation.finish()
                self.moving.remove(transfer)
                if transfer is self._collective:
                    self._collective = None
                operation.end()

    def _agreed(self) -> bool:
        """Return True if all ranks have called the first operation of the queue."""
        self._agreement = self._agreement or self._agree(self.queue[0])
        try:
            next(self._agreement)
        except StopIteration:
            self._agreement = None
            return True
        except ValueError as error:  # all ranks raise this error, so their next call may succeed
            self._agreement = None
            self.queue.popleft().end(dist.DistBackendError(str(error)))
        return False

    def _agree(self, operation: Operation) -> Iterator[None]:
        """Yield until all ranks have made the same call.

        Raises:
            ValueError: the ranks have made different calls.
        """
        for compare, values in (
            (self._compare, operation.signature),
            (self._compare_splits, operation.splits),
        ):
            if values:
                row = array("q", values)
                table = array("q", bytes(row.itemsize * len(row) * self.comm.size))
                request = self._agreements.Iallgather([row, MPI.BYTE], [table, MPI.BYTE])
                while not request.Test():
                    yield
                if compare == self._compare_splits or table != row * self.comm.size:
                    size = len(row)
                    compare(
                        operation, [list(table[n : n + size]) for n in range(0, len(table), size)]
                    )

    def _compare(self, operation: Operation, table: list[list[int]]) -> None:
        by_call: dict[tuple[int, ...], list[int]] = {}
        for rank, values in enumerate(table):
            by_call.setdefault(tuple(values), []).append(rank)
        if len(by_call) > 1:
            calls = "; ".join(
                f"{self._names(ranks)}: {describe(values)}" for values, ranks in by_call.items()
            )
            raise ValueError(
                f"the ranks made different calls as call {operation.number} of their group: {calls}"
            )

    def _compare_splits(self, operation: Operation, table: list[list[int]]) -> None:
        size = self.comm.size
        for sender, row in enumerate(table):
            for receiver in range(size):
                sent, expected = row[receiver], table[receiver][size + sender]
                if sent != expected:
                    raise ValueError(
                        f"{operation.name}: {self._names([sender])} sends {sent} elements to "
                        f"{self._names([receiver])}, which expects {expected}"
                    )

    def _names(self, ranks: Sequence[int]) -> str:
        hosts = ", ".join(dict.fromkeys(self._hosts[rank] for rank in ranks))
        what = "rank" if len(ranks) == 1 else "ranks"
        return f"{what} {', '.join(map(str, ranks))} ({hosts})"

    def _tell(self, operation: Operation) -> None:
        """Report to the store that this rank waits.

        Another thread writes the report, because the store is blocked while a thread of the script
        waits for a key.
        """
        operation.is_reported = True

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the store's host is gone
                self._store.set(self._key(operation, self.comm.rank), "")

        if operation.signature:
            callback_threads.run([tell])

    def _key(self, operation: Operation, rank: int) -> str:
        return f"waits/{operation.number}/{rank}"

    def _timed_out(self, operation: Operation) -> dist.DistBackendError:
        text = timed_out(
            operation.name, operation.deadline - operation.called, self._names([self.comm.rank])
        )
        if not operation.signature:
            return dist.DistBackendError(text)
        self._tell(operation)
        absent: list[int] = []

        def ask() -> None:
            others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
            absent.extend(r for r in others if not self._store.check([self._key(operation, r)]))

        time.sleep(TOLD_AFTER)  # the other ranks time out a little later
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWER_SECONDS)  # the store is on a host that may be silent
        if asking.is_alive():
            return dist.DistBackendError(
                f"{text}; the host of the rendezvous store does not respond"
            )
        if not absent:
            return dist.DistBackendError(f"{text}, although every rank has called it")
        return dist.DistBackendError(
            f"{text}: {self._names(absent)} did not call it, or no longer responds"
        )

    def free(self) -> None:
        """Free the communicators; call this after all ranks have left the group."""
        self.comm.Free()
        self._agreements.Free()
        self.broken = dist.DistBackendError("the group was destroyed")

    def all(self) -> list[Operation]:
        """Return the operations that are not complete."""
        moving = (transfer.operation for transfer in self.moving)
        return [*moving, *self._agreed_on, *self._messages, *self.queue]

    def _break(self, error: Exception) -> None:
        if self._agreement or self.moving:
            _unfinished.append((self._agreement, *self.moving))
        self.broken, self._agreement = error, None
        failed = self.all()
        for operations in (self.moving, self._messages, self._agreed_on, self.queue):
            operations.clear()
        for operation in failed:
            operation.end(error)


class Progress:
    """The thread that makes all MPI calls."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._new: list[tuple[Channel, Operation]] = []
        self._calls: list[Callable[[], None]] = []
        threading.Thread(target=self._run, name="mpi", daemon=True).start()

    def submit(self, channel: Channel, operation: Operation) -> None:
        """Add an operation to its group."""
        with self._changed:
            self._new.append((channel, operation))
            self._changed.notify()

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread; return its result, or raise its exception."""
        answer: Future[Result] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)

        with self._changed:
            self._calls.append(run)
            self._changed.notify()
        return answer.result()

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, SLACK)  # for this thread
        active: list[Channel] = []
        pause, moved = SHORTEST, time.perf_counter()  # `moved`: time at which data last moved
        while True:
            with self._changed:
                while not (self._new or self._calls or active):
                    self._changed.wait()
                new, self._new = self._new, []
                calls, self._calls = self._calls, []
            for call in calls:
                call()
            for channel, operation in new:
                channel.add(operation)
                if channel not in active:
                    active.append(channel)
            long = MOVED if pause < LONGEST else MOVED_COLD
            now, has_moved = time.perf_counter(), bool(new)
            for _ in range(LOOKS if pause <= LONGEST else 1):
                began = now
                for channel in active:
                    channel.advance()
                active = [channel for channel in active if channel.active]
                now = time.perf_counter()
                if now - began > long and any(channel.moving for channel in active):
                    has_moved = True
            if has_moved:
                pause, moved = SHORTEST, now
            elif active and ((waited := now - moved) > AT_ONCE or not _waited_for(active)):
                patient = min(waited * PART_OF_LONG_WAIT, PATIENT)
                pause = max(SHORTEST, min(waited * PART_OF_WAIT, LONGEST), patient)
                self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        """Wait; if the wait is long, a submitted operation or call ends it early."""
        if seconds <= LONGEST:
            time.sleep(seconds)
            return
        with self._changed:
            if not (self._new or self._calls):
                self._changed.wait(seconds)


def _waited_for(channels: Sequence[Channel]) -> bool:
    return any(operation.waited_for for channel in channels for operation in channel.all())
