"""torch's handle of operations in flight."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_train.comm.mpi_progress import Operation


class MpiWork(dist.Work):  # type: ignore[misc]
    """Operations that were called together.

    Args:
        outputs: the caller's tensors, the value of the future.
    """

    def __init__(self, operations: Sequence[Operation], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.operations, self.outputs = operations, outputs
        self._future: Any = None

    @classmethod
    def joined(cls, works: "Sequence[MpiWork]") -> "MpiWork":
        """One handle for several."""
        operations = [one for work in works for one in work.operations]
        return cls(operations, [tensor for work in works for tensor in work.outputs])

    def is_completed(self) -> bool:
        return all(one.done.is_set() for one in self.operations)

    def is_success(self) -> bool:
        return self.is_completed() and not self.exception()

    def exception(self) -> Exception | None:
        return next((one.error for one in self.operations if one.error), None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until it is complete, or the group's timeout; 0: no other one."""
        seconds = timeout.total_seconds()
        for one in self.operations:
            if not one.done.wait(seconds if seconds > 0 else None):
                raise dist.DistBackendError(f"{one.name} is not complete after {seconds:g} s")
            if one.error:
                raise one.error
        return True

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
        self.wait()
        return list(self.outputs)

    def source_rank(self) -> int:
        return self.operations[0].source

    _source_rank = source_rank
