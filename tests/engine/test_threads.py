"""Kernels with more threads than cores, and in processes that are forked afterwards."""

import copy
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.architectures import Size, kinds, make_kind
from tests.engine.jobs import make_job, make_task_of
from tests.engine.test_gradients import errors, make_inputs, plain

KINDS = kinds(Size(width=256, heads=4, layers=2, window=8))
SECONDS = 60


@pytest.mark.parametrize("threads", [5, 8, 13])
@pytest.mark.parametrize("name", ["minilm", "deberta-v2", "gpt2", "gemma3_text", "llama"])
def test_gradients_on_many_threads(tmp_path: Path, name: str, threads: int) -> None:
    kind = KINDS[name]
    task = make_task_of(make_job(tmp_path, kind.task))
    batch = make_inputs(kind, "right", 8, 64)  # large enough for more than one thread
    model = make_kind(name, kind)
    exact = plain(copy.deepcopy(model), task, batch, bf16=False)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with patch_model(model, task, True, Optimizations(), ProgressLog()):
            found = plain(model.train(), task, batch, bf16=False)
    finally:
        torch.set_num_threads(before)
    assert found.keys() == exact.keys()
    assert max(errors([found], [exact]).values()) < 2e-4


FORKS = """
    import os, sys, torch
    from torch.nn import functional
    from ftcluster_train import fast

    torch.set_num_threads(4)
    fast.enable()
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 512, generator=draw)
    weight = torch.randn(512, generator=draw)

    def computed():
        x = rows.clone().requires_grad_()
        y = functional.gelu(functional.layer_norm(x, (512,), weight))
        heads = y.view(1, 8, 64, 64)
        y = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        y.pow(2).sum().backward()
        return x.grad

    def forked():
        read, write = os.pipe()
        if os.fork() == 0:
            torch.set_num_threads(1)  # as torch's DataLoader does in its workers
            os.write(write, b"1" if torch.allclose(computed(), before, rtol=1e-4) else b"0")
            os._exit(0)
        os.close(write)
        return os.read(read, 1)

    before = computed()
    assert forked() == b"1"
    assert torch.equal(computed(), before)  # the parent goes on
    assert forked() == b"1"
    print("done")
"""


def test_a_fork_behind_kernels() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FORKS)], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("a forked process did not end")
    assert output.endswith("done\n"), output
