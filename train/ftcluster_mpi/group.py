"""torch.distributed's process group over MPI.

Every collective is a nonblocking MPI collective, so several collectives can be in flight while the
caller computes. Reductions use MPI's operators for the tensor's type; all other collectives move
bytes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from ftcluster_mpi.job import (
    SEGMENT,
    SEGMENT_BETWEEN_HOSTS,
    leave,
    open_channel,
    progress,
    ranks_here,
    track,
)
from ftcluster_mpi.registration import NAME
from ftcluster_mpi.types import (
    AVG,
    CALLS,
    LEAVE,
    MPI,
    REFUSED,
    SUM,
    Tensors,
    apart_from,
    as_bytes,
    as_elements,
    as_parts,
    contiguous,
    counts_of_sparse,
    describe,
    elements_of,
    empty_for,
    flat,
    kind_of,
    operator_of,
    require_equal,
    set_sparse,
    signature,
    unflatten,
)
from ftcluster_mpi.work import MpiWork, Operation

Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]  # destination, source


def shares_errors(method: Callable[..., MpiWork]) -> Callable[..., MpiWork]:
    """Decorate a collective so that wrong arguments on one rank raise an error on all ranks."""

    @wraps(method)
    def checked(self: "MpiGroup", *args: Any, **kwargs: Any) -> MpiWork:
        try:
            return method(self, *args, **kwargs)
        except ValueError as error:
            if not hasattr(error, "is_shared"):  # no inner call has informed the other ranks
                error.is_shared = True  # type: ignore[attr-defined]
                self._operation(REFUSED, lambda _: None, (), signature(REFUSED))
            raise

    return checked


class MpiGroup(dist.ProcessGroup):  # type: ignore[misc]
    """One rank's membership in a group: it joins, runs collectives in MPI's thread, and leaves.

    The methods have the names and arguments that torch calls. Tensors may have any layout; tensors
    that are not contiguous are copied.

    Args:
        timeout: time limit for operations that are called without a timeout.

    Attributes:
        segment: size in bytes of the segments that an all-reduce sends one after the other.

    Raises:
        DistBackendError: see `open_channel`.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._this_rank, self._ranks, self._timeout = rank, size, timeout
        self._channel = open_channel(store, rank, size, timeout)
        here, ranks = ranks_here()
        self.segment = SEGMENT if here == ranks else SEGMENT_BETWEEN_HOSTS
        self._name = self._description = ""
        self._together: list[MpiWork] | None = None  # calls since `_start_coalescing`
        self._collectives = 0
        track(self._channel, self._leave)

    def _get_backend(self, _: torch.device) -> "MpiGroup":  # torch 2.14 and newer calls this
        return self

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    def getGroupDesc(self) -> str:
        return self._description

    def shutdown(self) -> None:
        """Leave the group without waiting for the other ranks; called by destroy_process_group."""
        leave(self._channel)

    abort = shutdown

    def _leave(self) -> Operation:
        work = self._operation(LEAVE, lambda _: None, (), signature(LEAVE), then=self._channel.free)
        return work.operations[0]

    @property
    def _device_types(self) -> list[torch.device]:  # torch reads it before dcp.async_save
        return [torch.device("cpu")]

    def _get_sequence_number_for_group(self) -> int:
        return self._collectives

    def _start_coalescing(self, _: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, _: torch.device) -> MpiWork:
        works, self._together = self._together or [], None
        return MpiWork.joined(works)

    def _operation(
        self,
        name: str,
        start: Callable[[MPI.Intracomm], Iterator[MPI.Request] | MPI.Request | None],
        outputs: Tensors,
        values: tuple[int, ...] = (),
        copies: Copies = (),
        opts: Any = None,
        splits: tuple[int, ...] = (),
        divide: torch.Tensor | None = None,
        then: Callable[[], None] | None = None,
    ) -> MpiWork:
        """Submit an operation to the thread that makes all MPI calls.

        Args:
            values: signature of the call, see `signature`.
            copies: pairs of destination and source, copied after completion; pairs whose two
                tensors are the same are ignored.
            divide: tensor that is divided by the number of ranks after completion, or None.
            then: function that is called last, or None.
        """

        def finish() -> None:
            if divide is not None:
                mode = None if divide.is_floating_point() or divide.is_complex() else "trunc"
                divide.div_(self._ranks, rounding_mode=mode)
            for target, data in copies:
                if target is not data:
                    target.copy_(data.view(target.shape))
            if then is not None:
                then()

        def begin() -> Iterator[MPI.Request]:
            requests = start(self._channel.comm)
            if isinstance(requests, Iterator):
                yield from requests
            elif requests:
                yield requests

        limit = getattr(opts, "timeout", None)
        seconds = (limit if limit and limit > timedelta(0) else self._timeout).total_seconds()
        operation = Operation(
            describe(values) if values else name,
            begin,
            finish,
            values,
            splits,
            deadline=time.monotonic() + seconds,
        )
        self._collectives += bool(values)
        work = MpiWork([operation], outputs)
        if torch.autograd._profiler_enabled():
            with record_function(
                f"{NAME}:{CALLS[values[0]] if values else name.split()[0]}"
            ) as event:
                work.profile(event)  # first: the event ends in another thread
        progress().submit(self._channel, operation)
        if self._together is not None:
            self._together.append(work)
        return work

    # reductions

    @shares_errors
    def allreduce(self, tensors: Tensors, opts: Any = None) -> MpiWork:
        opts = opts or dist.AllreduceOptions()
        return MpiWork.joined(
            [
                self._all_reduce_sparse(tensor, opts)
                if tensor.layout == torch.sparse_coo
                else self._all_reduce(tensor, opts)
                for tensor in tensors
            ]
        )

    allreduce_coalesced = allreduce

    def _all_reduce(self, tensor: torch.Tensor, opts: Any) -> MpiWork:
        data, kind = contiguous(tensor), kind_of(opts.reduceOp)
        op = operator_of(kind, data.dtype)
        return self._operation(
            "all_reduce",
            lambda comm: (
                comm.Iallreduce(MPI.IN_PLACE, as_elements(part), op)
                for part in data.view(-1).split(self.segment // data.element_size())
            ),
            [tensor],
            signature("all_reduce", data, kind),
            [(tensor, data)],
            opts,
            divide=data if kind == AVG else None,
        )

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> MpiWork:
        """Gather the elements of all ranks and sum them, as gloo does; wait for the result."""
        if kind_of(opts.reduceOp) not in (SUM, AVG):
            raise ValueError("impi reduces sparse tensors only with SUM and AVG")
        summand = tensor.detach().coalesce()
        count = summand._nnz()
        sizes = torch.tensor([count, summand.sparse_dim(), *summand.shape], dtype=torch.int64)
        shapes = self._gathered(sizes, opts).tolist()
        counts = counts_of_sparse(shapes)
        parts = []
        for data in (summand.indices().t(), summand.values()):
            padded = data.new_zeros(max(counts), *data.shape[1:])
            padded[:count] = data
            gathered = self._gathered(padded, opts)
            parts.append(torch.cat([part[:n] for part, n in zip(gathered, counts, strict=True)]))
        set_sparse(tensor, parts[0], parts[1], self._ranks if kind_of(opts.reduceOp) == AVG else 1)
        return MpiWork([], [tensor])

    def _gathered(self, data: torch.Tensor, opts: Any) -> torch.Tensor:
        """Return the tensors of all ranks, stacked by rank; their shapes must be equal."""
        self.all_gather_single(whole := data.new_empty(self._ranks, *data.shape), data, opts).wait()
        return whole

    @shares_errors
    def reduce(self, tensors: Tensors, opts: Any) -> MpiWork:
        (tensor,), root = tensors, opts.rootRank
        data, kind = contiguous(tensor), kind_of(opts.reduceOp)
        op = operator_of(kind, data.dtype)
        here = self._this_rank == root
        return self._operation(
            "reduce",
            lambda comm: comm.Ireduce(
                MPI.IN_PLACE if here else as_elements(data),
                as_elements(data) if here else None,
                op,
                root,
            ),
            [tensor],
            signature("reduce", data, kind, root),
            [(tensor, data)] if here else [],
            opts,
            divide=data if kind == AVG and here else None,
        )

    @shares_errors
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> MpiWork:
        opts = opts or dist.ReduceScatterOptions()
        require_equal(
            "input",
            source.numel(),
            "elements of the output times ranks",
            output.numel() * self._ranks,
        )
        data, kind = contiguous(source), kind_of(opts.reduceOp)
        result = apart_from(data, output)
        op = operator_of(kind, data.dtype)
        return self._operation(
            "reduce_scatter",
            lambda comm: comm.Ireduce_scatter_block(as_elements(data), as_elements(result), op),
            [output],
            signature("reduce_scatter", result, kind),
            [(output, result)],
            opts,
            divide=result if kind == AVG else None,
        )

    _reduce_scatter_base = reduce_scatter_single

    @shares_errors
    def reduce_scatter(
        self, outputs: Tensors, sources: Sequence[Tensors], opts: Any = None
    ) -> MpiWork:
        opts = opts or dist.ReduceScatterOptions()
        return MpiWork.joined(
            [
                self.reduce_scatter_single(output, flat(parts), opts)
                if all(part.numel() == output.numel() for part in parts)
                else self._reduce_scatter_uneven(output, parts, opts)
                for output, parts in zip(outputs, sources, strict=True)
            ]
        )

    def _reduce_scatter_uneven(self, output: torch.Tensor, parts: Tensors, opts: Any) -> MpiWork:
        counts = [part.numel() for part in parts]
        data, kind = flat(parts), kind_of(opts.reduceOp)
        result, op = apart_from(data, output), operator_of(kind, data.dtype)
        return self._operation(
            "reduce_scatter",
            lambda comm: comm.Ireduce_scatter(as_elements(data), as_elements(result), counts, op),
            [output],
            signature("reduce_scatter", data, kind),
            [(output, result)],
            opts,
            (*counts, *[output.numel()] * self._ranks),
            divide=result if kind == AVG else None,
        )

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, sources: Tensors, opts: Any = None
    ) -> MpiWork:
        pairs = zip(outputs, sources, strict=True)
        return MpiWork.joined([self.reduce_scatter_single(*pair, opts) for pair in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # moves

    @shares_errors
    def broadcast(self, tensors: Tensors, opts: Any = None) -> MpiWork:
        (tensor,), root = tensors, opts.rootRank if opts else 0
        data = contiguous(tensor)
        return self._operation(
            "broadcast",
            lambda comm: comm.Ibcast(as_bytes(data), root),
            [tensor],
            signature("broadcast", data, root=root),
            [(tensor, data)],
            opts,
        )

    @shares_errors
    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> MpiWork:
        require_equal(
            "output",
            output.numel(),
            "elements of the input times ranks",
            source.numel() * self._ranks,
        )
        result = empty_for(output)
        return self._all_gather(result, source, [output], [(output, result)], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, sources: Tensors, opts: Any = None
    ) -> MpiWork:
        pairs = zip(outputs, sources, strict=True)
        return MpiWork.joined([self.all_gather_single(*pair, opts) for pair in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @shares_errors
    def allgather(self, outputs: Sequence[Tensors], sources: Tensors, opts: Any = None) -> MpiWork:
        works = []
        for tensors, source in zip(outputs, sources, strict=True):
            result = source.new_empty(self._ranks, source.numel())
            works.append(
                self._all_gather(result, source, tensors, unflatten(tensors, result), opts)
            )
        return MpiWork.joined(works)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], sources: Tensors, opts: Any = None
    ) -> MpiWork:  # a list of tensors for each rank
        return self.allgather(list(zip(*outputs, strict=True)), sources, opts)

    def _all_gather(
        self,
        result: torch.Tensor,
        source: torch.Tensor,
        outputs: Tensors,
        copies: Copies,
        opts: Any,
    ) -> MpiWork:
        data = contiguous(source)
        # FSDP gathers in place
        in_place = data.data_ptr() == result.data_ptr() + self._this_rank * data.nbytes
        return self._operation(
            "all_gather",
            lambda comm: comm.Iallgather(
                MPI.IN_PLACE if in_place else as_bytes(data), as_bytes(result)
            ),
            outputs,
            signature("all_gather", data),
            copies,
            opts,
        )

    @shares_errors
    def gather(self, outputs: Sequence[Tensors], sources: Tensors, opts: Any) -> MpiWork:
        (source,), root = sources, opts.rootRank
        data, here = contiguous(source), self._this_rank == root
        tensors = outputs[0] if here else ()
        result = source.new_empty(self._ranks, source.numel()) if here else None
        return self._operation(
            "gather",
            lambda comm: comm.Igather(
                as_bytes(data), None if result is None else as_bytes(result), root
            ),
            tensors,
            signature("gather", data, root=root),
            [] if result is None else unflatten(tensors, result),
            opts,
        )

    @shares_errors
    def scatter(self, outputs: Tensors, sources: Sequence[Tensors], opts: Any) -> MpiWork:
        (output,), root = outputs, opts.rootRank
        result, data = empty_for(output), flat(sources[0]) if self._this_rank == root else None
        return self._operation(
            "scatter",
            lambda comm: comm.Iscatter(
                None if data is None else as_bytes(data), as_bytes(result), root
            ),
            [output],
            signature("scatter", result, root=root),
            [(output, result)],
            opts,
        )

    @shares_errors
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> MpiWork:
        """Exchange parts between ranks.

        Args:
            output_splits: rows to receive from each rank; empty if all parts are equal.
            input_splits: rows to send to each rank; empty if all parts are equal.
        """
        data = contiguous(source)
        result = apart_from(data, output)
        sends = elements_of(source, input_splits, self._ranks)
        receives = elements_of(output, output_splits, self._ranks)
        return self._all_to_all(result, data, receives, sends, [output], [(output, result)], opts)

    alltoall_base = all_to_all_single

    @shares_errors
    def alltoall(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> MpiWork:
        receives = [tensor.numel() for tensor in outputs]
        sends = [tensor.numel() for tensor in sources]
        result = outputs[0].new_empty(sum(receives))
        copies = unflatten(outputs, result.split(receives))
        return self._all_to_all(result, flat(sources), receives, sends, outputs, copies, opts)

    def _all_to_all(
        self,
        result: torch.Tensor,
        data: torch.Tensor,
        receives: list[int],
        sends: list[int],
        outputs: Tensors,
        copies: Copies,
        opts: Any,
    ) -> MpiWork:
        return self._operation(
            "all_to_all",
            lambda comm: comm.Ialltoallv(as_parts(data, sends), as_parts(result, receives)),
            outputs,
            (*signature("all_to_all", data)[:2], -1, -1, -1),
            copies,
            opts,
            splits=(*sends, *receives),
        )

    def barrier(self, opts: Any = None) -> MpiWork:
        return self._operation("barrier", lambda _: None, (), signature("barrier"), (), opts)

    # messages between two ranks

    def send(self, tensors: Tensors, rank: int, tag: int) -> MpiWork:
        (tensor,) = tensors
        data = contiguous(tensor)
        name = f"send to rank {rank}"
        return self._operation(name, lambda comm: comm.Isend(as_bytes(data), rank, tag), [tensor])

    def recv(self, tensors: Tensors, rank: int, tag: int) -> MpiWork:
        (tensor,) = tensors
        data = empty_for(tensor)
        return self._operation(
            f"recv from rank {rank}" if rank != MPI.ANY_SOURCE else "recv from any rank",
            lambda comm: comm.Irecv(as_bytes(data), rank, tag),
            [tensor],
            copies=[(tensor, data)],
        )

    def recv_anysource(self, tensors: Tensors, tag: int) -> MpiWork:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)
