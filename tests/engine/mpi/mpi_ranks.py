"""The work of each rank in tests of the backend over MPI.

mpirun -n 3 python -m tests.engine.mpi.mpi_ranks CASE...
"""

import gc

if __name__ == "__main__":
    gc.disable()  # garbage collection takes a quarter of the CPU time of the imports below

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import ftcluster_train.mpi  # noqa: F401 - registers the backend
from ftcluster_mpi import job as mpi_job
from ftcluster_mpi import progress as mpi_progress
from ftcluster_mpi import types as mpi_types
from ftcluster_mpi.job import SEGMENT
from ftcluster_mpi.progress import Channel
from ftcluster_mpi.types import MPI, adds_bfloat16

RANK = int(os.environ.get("PMI_RANK") or os.environ["RANK"])
SIZE = int(os.environ.get("PMI_SIZE") or os.environ["WORLD_SIZE"])
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TYPES = (*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8)
ALL_TYPES = (*TYPES, torch.int16, torch.bool, torch.complex64)
ROUNDS = 40
Group = dist.ProcessGroup


def join() -> None:
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), SIZE, RANK == 0, wait_for_workers=False
    )
    limit = timedelta(seconds=60)
    dist.init_process_group("impi", store=store, rank=RANK, world_size=SIZE, timeout=limit)


class Draw:
    """Random tensors with the same shape on every rank and different values.

    Args:
        contiguous: gloo needs that all are.
    """

    def __init__(self, seed: int, contiguous: bool) -> None:
        self.contiguous = contiguous
        self.common, self.own = random.Random(seed), random.Random(seed * 1000 + RANK)

    def dtype(self, among: Sequence[torch.dtype]) -> torch.dtype:
        return self.common.choice(among)

    def rank(self, group: Group) -> int:
        return self.common.choice(dist.get_process_group_ranks(group))

    def shape(self) -> list[int]:
        most = self.common.choice((3, 9, 60))
        return [self.common.randrange(most + 1) for _ in range(self.common.randrange(1, 4))]

    def tensor(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        torch.manual_seed(self.own.randrange(1 << 30))
        values = torch.randint(-3 if dtype.is_signed else 0, 4, tuple(shape)).to(dtype)
        layout = self.common.randrange(3)
        if self.contiguous:
            return values
        if layout == 1 and values.dim() > 1:
            return values.transpose(0, 1).contiguous().transpose(0, 1)
        if layout == 2:
            return torch.stack([values, values], dim=-1)[..., 1]  # with gaps
        return values


def all_reduce(draw: Draw, group: Group) -> list[torch.Tensor]:
    kinds = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT]
    tensor, kind = draw.tensor(draw.dtype(TYPES), draw.shape()), draw.common.choice(kinds)
    dist.all_reduce(tensor, kind, group)
    return [tensor]


def reduce(draw: Draw, group: Group) -> list[torch.Tensor]:
    tensor, root = draw.tensor(draw.dtype(TYPES), draw.shape()), draw.rank(group)
    dist.reduce(tensor, root, group=group)
    return [tensor] if dist.get_rank() == root else []


def broadcast(draw: Draw, group: Group) -> list[torch.Tensor]:
    tensor = draw.tensor(draw.dtype(TYPES), draw.shape())
    dist.broadcast(tensor, draw.rank(group), group)
    return [tensor]


def all_gather(draw: Draw, group: Group) -> list[torch.Tensor]:
    tensor = draw.tensor(draw.dtype(TYPES), draw.shape())
    found = [torch.zeros_like(tensor) for _ in range(group.size())]
    dist.all_gather(found, tensor, group)
    whole = tensor.new_empty(group.size() * tensor.numel())
    dist.all_gather_into_tensor(whole, tensor.contiguous().view(-1), group)
    return [*found, whole]


def gather(draw: Draw, group: Group) -> list[torch.Tensor]:
    tensor, root = draw.tensor(draw.dtype(TYPES), draw.shape()), draw.rank(group)
    found = [torch.zeros_like(tensor) for _ in range(group.size())] if root == RANK else None
    dist.gather(tensor, found, root, group)
    return found or []


def scatter(draw: Draw, group: Group) -> list[torch.Tensor]:
    dtype, shape, root = draw.dtype(TYPES), draw.shape(), draw.rank(group)
    parts = [draw.tensor(dtype, shape) for _ in range(group.size())]
    found = torch.zeros_like(parts[0])
    dist.scatter(found, parts if root == RANK else None, root, group)
    return [found]


def all_to_all(draw: Draw, group: Group) -> list[torch.Tensor]:
    dtype, width = draw.dtype(TYPES), draw.common.randrange(1, 5)
    rows = [[draw.common.randrange(4) for _ in range(group.size())] for _ in range(group.size())]
    own = group.rank()
    sends, receives = rows[own], [row[own] for row in rows]
    source = draw.tensor(dtype, (sum(sends), width)).contiguous()
    found = source.new_zeros(sum(receives), width)
    dist.all_to_all_single(found, source, receives, sends, group)
    return [found]


COMPARED: Sequence[Callable[[Draw, Group], list[torch.Tensor]]] = (
    all_reduce, reduce, broadcast, all_gather, gather, scatter, all_to_all,
)  # fmt: skip


def compare() -> None:
    """Compare each collective on random tensors with gloo, in the world and in subgroups."""
    join()
    groups = [(dist.group.WORLD, dist.new_group(backend="gloo"))]
    for ranks in [list(range(SIZE - 1)), [SIZE - 1, 0]]:
        groups.append((dist.new_group(ranks), dist.new_group(ranks, backend="gloo")))
    for seed in range(ROUNDS):
        for ours, gloos in groups:
            if RANK not in dist.get_process_group_ranks(ours):
                continue
            for collective in COMPARED:
                found = collective(Draw(seed, contiguous=False), ours)
                expected = collective(Draw(seed, contiguous=True), gloos)
                torch.testing.assert_close(
                    found,
                    expected,
                    rtol=0,
                    atol=0,
                    msg=(
                        lambda text, seed=seed, name=collective.__name__: f"{name} {seed}: {text}"
                    ),
                )


def beyond_gloo() -> None:
    """Return the features that gloo lacks, by name."""
    join()
    mean = torch.full((5,), float(RANK))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [(SIZE - 1) / 2] * 5
    for dtype in FLOATS:
        source = torch.arange(SIZE * 7).to(dtype).view(7, SIZE).t() * (RANK + 1)
        part = torch.empty(7, dtype=dtype)
        dist.reduce_scatter_tensor(part, source.contiguous().view(-1))
        whole = source.contiguous().view(-1)
        dist.all_reduce(whole)
        assert torch.equal(part, whole.view(SIZE, 7)[RANK])
        dist.reduce_scatter(part, list(source))
        assert torch.equal(part, whole.view(SIZE, 7)[RANK])
    for dtype in ALL_TYPES:
        tensor = torch.tensor([RANK == 0, True, False]).to(dtype)
        dist.broadcast(tensor, 0)
        assert tensor.tolist() == [1, 1, 0]
    assert adds_bfloat16(mpi_types.TYPES[torch.bfloat16])
    large = torch.arange(SEGMENT // 4 + 5, dtype=torch.float32) % 7  # sent in several segments
    dist.all_reduce(total := large + RANK)
    assert torch.equal(total, SIZE * large + SIZE * (SIZE - 1) / 2)
    others = (MPI.INT16_T, MPI.FLOAT16_T, MPI.FLOAT, MPI.BYTE, MPI.DATATYPE_NULL)
    assert not any(map(adds_bfloat16, others))  # another release may use another number for bf16
    flags = torch.tensor([RANK == 1, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False]
    lists = [torch.full((rank + 1,), RANK) for rank in range(SIZE)]
    found = [torch.zeros(RANK + 1, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_to_all(found, lists)
    assert [tensor.tolist() for tensor in found] == [[rank] * (RANK + 1) for rank in range(SIZE)]
    with torch.inference_mode():
        gathered = [torch.zeros(2) for _ in range(SIZE)]
        dist.all_gather(gathered, torch.full((2,), float(RANK)))
        dist.all_reduce(gathered[0], dist.ReduceOp.AVG)
    assert [int(one[0]) for one in gathered] == list(range(SIZE))
    things: list[object] = [None] * SIZE
    dist.all_gather_object(things, {"rank": RANK})
    assert things == [{"rank": rank} for rank in range(SIZE)]


def messages() -> None:
    """Send messages between two ranks: in any order, from any rank, and beside a collective."""
    join()
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sum_of_ranks = torch.tensor([RANK])
    if RANK == 0:  # called before the message that the other ranks wait for
        reduced = dist.all_reduce(sum_of_ranks, async_op=True)
    sent = [dist.isend(torch.full((3,), 10 * RANK + tag), after, tag=tag) for tag in (1, 2)]
    got = [torch.zeros(3, dtype=torch.int64) for _ in (1, 2)]
    dist.recv(got[1], before, tag=2)
    assert dist.recv(got[0], tag=1) == before
    assert [int(one[0]) for one in got] == [10 * before + 1, 10 * before + 2]
    for work in sent:
        work.wait()
    if RANK:
        reduced = dist.all_reduce(sum_of_ranks, async_op=True)
    reduced.wait()
    assert sum_of_ranks.item() == SIZE * (SIZE - 1) // 2
    received = torch.zeros(2)
    ops = [
        dist.P2POp(dist.isend, torch.full((2,), float(RANK)), after),
        dist.P2POp(dist.irecv, received, before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert received.tolist() == [before] * 2


def in_flight() -> None:
    """Start many collectives at once in two groups; wait for them in another order."""
    join()
    other = dist.new_group(list(range(SIZE)))
    tensors = [torch.full((1000 + i,), float(i)) for i in range(100)]
    works = [
        dist.all_reduce(tensor, group=other if i % 3 else None, async_op=True)
        for i, tensor in enumerate(tensors)
    ]
    for i in reversed(range(100)):
        works[i].wait()
        assert works[i].is_success()
        assert torch.equal(tensors[i], torch.full((1000 + i,), float(i * SIZE)))
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0].sum()).wait() == 3 * SIZE
    with dist.distributed_c10d._coalescing_manager() as _:
        together = [torch.ones(4) for _ in range(3)]
        for tensor in together:
            dist.all_reduce(tensor)
    assert [int(tensor[0]) for tensor in together] == [SIZE] * 3


def losses(wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> list[float]:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(40, 300), torch.nn.GELU(), torch.nn.Linear(300, 7)]
    model = wrap(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(RANK + 10)
    found = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.arange(8) % 7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(total := loss.detach().clone())
        found.append(round(float(total), 4))
    return found


def ddp(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=0.02)


def fsdp(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def accelerate(model: torch.nn.Module) -> torch.nn.Module:
    from accelerate import Accelerator

    prepared: torch.nn.Module = Accelerator(cpu=True).prepare(model)
    assert isinstance(prepared, DistributedDataParallel)
    return prepared


def libraries() -> None:
    """Train with DDP, FSDP2 and Accelerate; compare with DDP over gloo."""
    os.environ |= {"RANK": str(RANK), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(RANK)}
    join()
    found = [losses(wrap) for wrap in (ddp, fsdp, accelerate)]
    gloo = dist.new_group(backend="gloo")
    expected = losses(lambda model: DistributedDataParallel(model, process_group=gloo))
    assert found == [expected] * len(found), found


def planned_backend() -> None:
    """Check that a script's libraries use this backend unless they name another one."""
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import InitProcessGroupKwargs
    from transformers import HfArgumentParser, TrainingArguments

    def parsed(*words: str) -> object:
        words = ("--output_dir", "out", *words)
        return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(list(words))

    def named(name: str) -> Accelerator:
        return Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=name)])

    made: Sequence[tuple[Callable[[], object], str]] = (
        (dist.init_process_group, "impi"),
        (lambda: dist.init_process_group("gloo"), "gloo"),
        (Accelerator, "impi"),
        (PartialState, "impi"),
        (lambda: named("gloo"), "gloo"),
        (lambda: named("impi"), "impi"),
        (lambda: TrainingArguments("out"), "impi"),
        (lambda: parsed("--ddp_backend", "gloo"), "gloo"),
        (lambda: parsed("--ddp_backend", "impi"), "impi"),
        (lambda: (dist.init_process_group("gloo"), Accelerator()), "gloo"),
    )
    own_port = os.environ["MASTER_PORT"]
    os.environ |= {"RANK": str(RANK), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(RANK)}
    for port, (make, expected) in zip(os.environ["SPARE_PORTS"].split(","), made, strict=True):
        os.environ["MASTER_PORT"] = port
        AcceleratorState._reset_state(reset_partial_state=True)
        make()
        found = PartialState()
        had = (dist.get_backend_config(), found.backend, found.num_processes)
        assert f"cpu:{expected}" in had[0], (made.index((make, expected)), had)
        assert had[1:] == (expected, SIZE), (made.index((make, expected)), had)
        dist.barrier()
        dist.destroy_process_group()
    os.environ["MASTER_PORT"] = own_port  # a port at which no rank can still find an ended group
    join()


def optimizers() -> None:
    """Train with a sharded optimizer and with bf16 gradients; compare with the whole optimizer."""
    from tests.engine.ranks import Case, learn

    join()
    batches = [list(range(7 * step, 7 * step + 7)) for step in range(4)]
    expected = learn(Case(batches), RANK, SIZE).norms
    for case, error in (
        (Case(batches, bucket=1000, sharded=True), 1e-5),
        (Case(batches, bucket=1000, sharded=True, sent="bf16"), 1e-3),
        (Case(batches, bucket=1000, sent="bf16"), 1e-3),
    ):
        norms = learn(case, RANK, SIZE).norms
        assert all(abs(one - other) < error for one, other in zip(norms, expected, strict=True)), (
            case,
            norms,
            expected,
        )


def other_calls() -> None:
    """A call that differs between the ranks fails on each rank, and the next call succeeds."""
    join()
    for call in (
        lambda: dist.all_reduce(torch.ones(3 + RANK)),
        lambda: dist.all_reduce(torch.ones(3, dtype=(torch.float32, torch.float64)[RANK % 2])),
        lambda: dist.broadcast(torch.ones(3), 0) if RANK else dist.all_reduce(torch.ones(3)),
        lambda: dist.all_to_all_single(
            torch.ones(SIZE), torch.ones(SIZE + RANK), [1] * SIZE, [1] * (SIZE - 1) + [1 + RANK]
        ),
    ):
        try:
            call()
        except dist.DistBackendError as error:
            # a single write, so that lines do not mix
            os.write(1, f"rank {RANK}: {error}\n".encode())
        else:
            raise AssertionError("no error")
    dist.all_reduce(tensor := torch.ones(3))
    assert tensor.tolist() == [SIZE] * 3


def waits_long() -> None:
    """Wait for an idle rank: MPI is polled less and less often."""
    join()
    looks: list[float] = []
    advance = Channel.advance

    def counted(channel: Channel) -> None:
        looks.append(time.monotonic())
        advance(channel)

    Channel.advance = counted  # type: ignore[method-assign]
    if RANK == 1:
        time.sleep(5)
        dist.all_reduce(torch.ones(3))
    else:
        waited = dist.all_reduce(torch.ones(3), async_op=True)
        time.sleep(4)
        in_the_last_second = sum(one > time.monotonic() - 1 for one in looks)
        assert in_the_last_second <= 30, in_the_last_second
        waited.wait()
    Channel.advance = advance  # type: ignore[method-assign]


def blocking_hooks() -> None:
    """Use torch's own hooks, whose callbacks wait for further collectives."""
    join()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    state = PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)
    for _ in range(4):
        model(torch.randn(8, 64)).sum().backward()
    gradient = model.module[0].weight.grad
    dist.all_reduce(total := gradient.clone())
    torch.testing.assert_close(total, gradient * SIZE)


def uneven_inputs() -> None:
    """Use uneven inputs: DDP passes its C++ code a handle that no Python object keeps."""
    join()
    model = DistributedDataParallel(nn.Linear(4, 2))
    with model.join(divide_by_initial_world_size=False):
        for _ in range(RANK + 1):
            model(torch.ones(2, 4)).sum().backward()


def many_groups() -> None:
    """Create and free many groups, even if ranks leave them in different orders."""
    join()
    handles: set[int] = set()
    for _ in range(40):
        groups = [dist.new_group() for _ in range(2)]
        for group in groups:
            dist.all_reduce(torch.ones(3), group=group)
        handles |= {channel.comm.handle for channel in mpi_job._open}
        for group in groups if RANK else reversed(groups):
            dist.destroy_process_group(group)
    assert len(handles) < 20, len(handles)  # the last handles may not be freed yet


def sparse_gradients() -> None:
    """Train torch's embedding with sparse gradients under DDP; compare with gloo."""
    join()
    found = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Embedding(50, 4, sparse=True), process_group=group)
        optimizer = torch.optim.SparseAdam(model.parameters())
        for step in range(3):
            # rank 0 has no rows in the first step
            model(torch.arange(RANK + step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(model.module.weight.detach().clone())
    torch.testing.assert_close(found[0], found[1])


def uneven() -> None:
    """Exchange parts of different sizes, on which the ranks must agree."""
    join()
    parts = [torch.full((rank + 1, 2), float(RANK + 1)) for rank in range(SIZE)]
    mine = torch.zeros(RANK + 1, 2)
    dist.reduce_scatter(mine, parts)
    assert torch.equal(mine, torch.full((RANK + 1, 2), SIZE * (SIZE + 1) / 2))
    for call in (
        lambda: dist.reduce_scatter(torch.zeros(1 + RANK // 2, 2), parts),
        lambda: dist.all_gather_into_tensor(torch.zeros(SIZE + RANK // 2), torch.zeros(1)),
    ):
        try:
            call()
        except (dist.DistBackendError, ValueError):
            continue
        raise AssertionError("no error")
    dist.barrier()


def saves_and_profiles() -> None:
    """Use torch's asynchronous checkpoint and its profiler."""
    import torch.distributed.checkpoint as dcp

    join()
    names = [tempfile.mkdtemp() if RANK == 0 else ""]
    dist.broadcast_object_list(names, 0)
    [folder] = names
    state = {"weight": torch.arange(5.0)}
    dcp.async_save(state, checkpoint_id=folder).result()
    found = {"weight": torch.zeros(5)}
    dcp.load(found, checkpoint_id=folder)
    assert torch.equal(found["weight"], state["weight"])
    dist.barrier()
    if RANK == 0:
        shutil.rmtree(folder)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
    assert [one.count for one in profile.key_averages() if one.key == "impi:all_reduce"] == [1]


def store_is_waited_with() -> None:
    """A thread that waits for a key blocks the store, and MPI must continue nevertheless."""
    join()
    told_after, mpi_progress.TOLD_AFTER = mpi_progress.TOLD_AFTER, 0.05
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        work = dist.all_reduce(tensor := torch.ones(3), async_op=True)
        store.wait(["reduced"], timedelta(seconds=30))
        work.wait()
        assert tensor.tolist() == [SIZE] * 3
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(3))
        store.set("reduced", "")
    mpi_progress.TOLD_AFTER = told_after


def caught_time_out() -> None:
    """After a timeout, MPI may still write data that arrives late, so the memory is kept."""
    join()
    group = dist.new_group(timeout=timedelta(seconds=1))
    made: list[weakref.ref[Any]] = []
    array = mpi_progress.array

    def noted(*args: Any) -> Any:
        memory = array(*args)
        made.append(weakref.ref(memory))
        return memory

    mpi_progress.array = noted  # type: ignore[misc, assignment]
    if RANK == 1:
        time.sleep(6)
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except dist.DistBackendError as error:
        os.write(1, f"rank {RANK}: {error}\n".encode())
    else:
        assert RANK == 1
    mpi_progress.array = array  # type: ignore[misc]
    gc.collect()
    assert made
    assert RANK == 1 or all(memory() is not None for memory in made)
    dist.barrier()


def time_outs() -> None:
    """After a timeout, a group writes nothing into memory that was reused."""
    join()
    assert "libc_malloc_debug" in Path("/proc/self/maps").read_text()
    mpi_progress.TOLD_AFTER = 0.05
    for _ in range(int(os.environ["TIME_OUTS"])):
        group = dist.new_group(timeout=timedelta(milliseconds=100))
        if RANK == 1:
            time.sleep(0.4)
        with contextlib.suppress(dist.DistBackendError):
            dist.all_reduce(torch.full((10,), float(RANK)), group=group)
        zeros = [torch.zeros(10) for _ in range(200)]
        dist.barrier()
        assert not any(tensor.any() for tensor in zeros)


def fails() -> None:
    join()
    if RANK == 1:
        raise KeyError("of rank 1")
    dist.all_reduce(torch.ones(3))


def exits() -> None:
    join()
    if RANK == 1:
        sys.exit(7)
    dist.all_reduce(torch.ones(3))


def is_stopped() -> None:
    join()
    group = dist.new_group(timeout=timedelta(seconds=3))
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1 << 20), group=group)


def memory_of_results() -> None:
    """Handles of finished calls keep few large results alive, but many small ones."""
    join()
    for elements, most in ((1 << 20, 17), (100, 65)):  # 4 MiB and 400 bytes
        made = []
        for _ in range(100):
            result = torch.empty(elements)
            dist.broadcast(result, 0)
            made.append(weakref.ref(result))
        del result
        gc.collect()
        assert sum(one() is not None for one in made) <= most
    work = dist.all_reduce(torch.ones(1 << 25), async_op=True)  # larger than what is kept
    work.wait()
    assert float(work.result()[0][0]) == SIZE


def ends_late() -> None:
    """Rank 0 still works when the other ranks have ended, and no rank destroys the group."""
    join()
    dist.all_reduce(torch.ones(3))
    shared = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/shm/" in line]
    names = " ".join({line.split(maxsplit=5)[5] for line in shared})
    # print would mix the output of several ranks
    os.write(1, f"rank {RANK} shares: {names}\n".encode())
    if RANK == 0:
        time.sleep(1)
        print("saved")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, case in enumerate(sys.argv[1:]):
        if number:
            dist.destroy_process_group()
            os.environ["MASTER_PORT"] = os.environ["MASTER_PORTS"].split(",")[number]
        globals()[case]()
    print(f"rank {RANK} is done")
