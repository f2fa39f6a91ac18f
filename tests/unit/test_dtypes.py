"""Memory that loops in C fill or read has a dtype of its own, not torch's default.

`torch.set_default_dtype` is the script's: with bfloat16 a loop that writes fp32 would write beyond
the end of what a bare `torch.empty` allocates.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.programs import ROOT

TRAIN = ROOT / "train"
KERNELS = "ftcluster_kernels"
FOLDERS = (
    KERNELS, "ftcluster_mpi", "ftcluster_train/comm", "ftcluster_train/engine/optim",
    "ftcluster_train/patching",
)  # fmt: skip
DEVICES = (KERNELS, "ftcluster_train/patching")  # here, a script's default device applies
MAKERS = {
    "arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand",
    "randint", "randn", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip


def bare_calls(source: str, also_device: bool) -> Iterator[str]:
    """Return the names of torch functions that are called without a dtype, or a device."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            options = {keyword.arg for keyword in node.keywords}
            needed = {"dtype", "device"} if also_device else {"dtype"}
            if of_torch and node.func.attr in MAKERS and not needed <= options:
                yield node.func.attr


@pytest.mark.parametrize("folder", FOLDERS)
def test_memory_has_a_dtype_of_its_own(folder: str) -> None:
    sources = list((TRAIN / folder).rglob("*.py"))
    assert sources
    calls = {
        (path.name, name)
        for path in sources
        for name in bare_calls(path.read_text(encoding="utf-8"), also_device=folder in DEVICES)
    }
    assert calls == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("torch.empty(3)", ["empty"]),
        ("x = [torch.zeros(2, 3) for _ in range(2)]", ["zeros"]),
        ("torch.full(shape, -1.0, device='cpu')", ["full"]),
        ("torch.empty(3, dtype=torch.float32)", ["empty"]),
        ("torch.empty(3, dtype=torch.float32, device='cpu')", []),
        ("torch.empty_like(x), x.new_empty(3), simd.empty(3)", []),
    ],
)
def test_a_bare_call_is_seen(source: str, names: list[str]) -> None:
    assert list(bare_calls(source, also_device=True)) == names
