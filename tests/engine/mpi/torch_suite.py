"""torch's own tests of a backend, which its wheel has, on the ranks of one launch.

    mpirun -n 3 python -m tests.engine.mpi.torch_suite impi FOLDER PATTERN

A line of FOLDER/results for each test that the pattern matches: its name, its seconds, and passed,
skipped, stuck or why it failed. Tests that are there are not run again, so that a launch after one
that broke continues behind it. The suite wants GPUs for DDP; it is given CPUs under their names.
"""

import contextlib
import faulthandler
import itertools
import os
import re
import sys
import threading
import time
import types
import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
STUCK_SECONDS = 90.0
LIMIT = timedelta(seconds=30)  # timeout of a group; less than half of the limit above
BROKEN = 3  # exit code: start again after the test that broke


def _cpu(device: Any) -> Any:
    number = isinstance(device, int) and not isinstance(device, bool)
    return "cpu" if number or str(device).startswith("cuda") else device


class OnCpus(TorchFunctionMode):
    """A mode in which tensors for a GPU are created on the CPU."""

    def __torch_function__(
        self, function: Any, _: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        words = dict(kwargs or {})
        if "device" in words:
            words["device"] = _cpu(words["device"])
        if function is torch.Tensor.to and len(args) > 1:
            args = (args[0], _cpu(args[1]), *args[2:])
        return function(*args, **words)


def on_cpus() -> Any:
    """Return the suite's module, changed to use CPUs instead of GPUs."""
    expect = types.ModuleType("expecttest")  # torch's wheel does not contain this package
    expect.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", expect)
    from torch.testing._internal import common_distributed

    def always(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda test: test

    for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"):
        setattr(common_distributed, name, always)
    common_distributed.skip_if_no_gpu = lambda test: test
    # tests may expect these settings for gloo
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(SIZE)}
    from torch.testing._internal.distributed import distributed_test

    torch.cuda.device_count, torch.cuda.current_device = lambda: SIZE, lambda: RANK
    torch.cuda.set_device = torch.cuda.synchronize = lambda *_, **__: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.cuda.device = contextlib.nullcontext
    to = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *to_what, **words: to(
        self, *map(_cpu, to_what), **{key: _cpu(value) for key, value in words.items()}
    )
    made = DistributedDataParallel.__init__

    def on_cpu(self: Any, module: Any, *more: Any, **words: Any) -> None:
        words |= {"device_ids": None, "output_device": None}
        made(self, module, None, None, *more[2:], **words) if more else made(self, module, **words)

    DistributedDataParallel.__init__ = on_cpu
    return distributed_test


def barriers(store: dist.Store) -> Callable[..., None]:
    """Replace the suite's barrier, which polls files and has a limit of ten seconds."""
    numbers = itertools.count()

    def sync(wait_for: int | None = None, **_: float) -> None:
        key = f"barrier/{next(numbers)}"
        if store.add(key, 1) == (wait_for or dist.get_world_size()):
            store.set(f"{key}/complete", "")
        store.wait([f"{key}/complete"], LIMIT)

    return sync


def outcome(case: Any, name: str) -> str:
    """Return the result of a test on this rank."""
    try:
        with OnCpus():
            getattr(case, name)()
    except (unittest.SkipTest, SystemExit) as error:
        return f"skipped {error}"
    except Exception as error:
        return f"failed {type(error).__name__}: {error}".split("\n")[0][:200]
    return "passed"


@contextlib.contextmanager
def at_most(seconds: float, say: Callable[[], None]) -> Iterator[None]:
    """End the process if this context takes longer than `seconds`."""

    def end() -> None:
        say()
        faulthandler.dump_traceback()
        os._exit(BROKEN)

    timer = threading.Timer(seconds, end)
    timer.start()
    yield
    timer.cancel()


def main(backend: str, folder: Path, pattern: str) -> None:
    """Run the tests."""
    faulthandler.enable()
    os.environ["TEMP_DIR"] = str(folder)
    suite = on_cpus()
    from torch.testing._internal.common_utils import TestCase, set_rng_seed

    class Suite(suite.DistributedTest._DistTestBase, TestCase):  # type: ignore[misc, name-defined]
        rank, world_size = RANK, str(SIZE)

    results = folder / "results"
    done = {line.split()[0] for line in results.read_text().splitlines()}
    port = int(os.environ["MASTER_PORT"])
    whole = dist.TCPStore("127.0.0.1", port, SIZE, RANK == 0, wait_for_workers=False)
    for name in unittest.TestLoader().getTestCaseNames(Suite):
        if name in done or not re.fullmatch(pattern, name):
            continue
        began = time.monotonic()

        def say(text: str = "stuck", name: str = name, began: float = began) -> None:
            if RANK == 0:
                with results.open("a") as file:
                    file.write(f"{name} {time.monotonic() - began:.2f} {text}\n")

        (folder / "running").write_text(name)
        store = dist.PrefixStore(name, whole)
        # gradient accumulation has no test model for an unknown backend
        suite.BACKEND = "gloo" if "no_sync" in name else backend
        suite.Barrier.sync = barriers(store)
        Suite.init_method = f"file://{folder}/{name}"
        set_rng_seed(1234)  # a test may rely on equal random numbers on all ranks
        with at_most(STUCK_SECONDS, say):
            dist.init_process_group(
                backend, store=dist.PrefixStore("group", store), rank=RANK, world_size=SIZE,
                timeout=LIMIT,
            )  # fmt: skip
            store.set(f"end/{RANK}", outcome(Suite(name), name))
            keys = [f"end/{rank}" for rank in range(SIZE)]
            store.wait(keys, 2 * LIMIT)
            ends = [store.get(key).decode() for key in keys]
            say(next((one for one in ends if one.startswith("failed")), ends[0]))
            with contextlib.suppress(Exception):  # the test may have destroyed the group itself
                dist.destroy_process_group()
    print(f"rank {RANK} is done", flush=True)
    whole.set(f"done/{RANK}", "")  # mpirun ends all ranks if one leaves without finalizing MPI
    with contextlib.suppress(RuntimeError):  # rank 0, which has the store, may leave first
        whole.wait([f"done/{rank}" for rank in range(SIZE)], LIMIT)
    # MPI cannot be finalized after a failure
    os._exit(0) if " failed" in results.read_text() else None


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
