"""Two backward passes through one graph add up, so no kernel changes its saved tensors."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch.autograd.graph import Node

import ftcluster_kernels
from ftcluster_kernels import nf4, norms
from ftcluster_kernels.gradient_sums import make_sums
from ftcluster_kernels.private_torch import function_of
from ftcluster_kernels.token_rows import TokenRows
from tests.engine.kernels.test_derivatives import (
    CASES,
    Function,
    draw,
    small_calls,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.needs("avx2", "compiler")
DTYPES = (torch.float32, torch.bfloat16)


def rounded_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the bf16 copy of a norm's output, which linear layers of a training use."""
    copies = norms.RoundedCopies()
    with torch.autocast("cpu", torch.bfloat16):
        output = norms.norm(x.float(), weight.float(), None, 1e-5, centered=True, copies=copies)
    rounded = copies.of(output)
    assert rounded is not None
    return rounded + output


def frozen_linear(x: torch.Tensor) -> torch.Tensor:
    """Return the function for weights in NF4; a dense weight is its own dense copy."""
    return nf4.linear_in_nf4(x, draw((64, 64))[0].to(x.dtype))


IDS, HIDDEN = torch.tensor([1, 3]), draw((7, 8))[0]


def looked_up(output: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rows = TokenRows(IDS, cast("torch.nn.Parameter", values))
    return rows.of_lookup(output, torch.tensor([1, 3, 1, 0, 5, 3, 2]))


def logits_of_rows(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rows = TokenRows(IDS, cast("torch.nn.Parameter", values))
    return rows.of_logits(logits, HIDDEN.to(logits.dtype))


KERNELS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    **{name: (kernel, inputs) for name, (kernel, _, inputs) in CASES.items()},
    "rounded norm": (rounded_norm, draw((7, 33), (33,))),
    "frozen linear": (frozen_linear, draw((7, 64))),
    "trained rows of an embedding": (looked_up, draw((7, 8), (2, 8))),
    "trained rows of an output layer": (logits_of_rows, draw((7, 9), (2, 8))),
}
ONLY_FP32 = {"layer norm", "low rank"}  # their cases have inputs or weights in fp32


def functions_of(*outputs: torch.Tensor) -> Iterator[type]:
    """Return the Python autograd functions in a graph."""
    nodes: list[Node] = [x.grad_fn for x in outputs if x.grad_fn is not None]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        function = function_of(node)
        if function is not None:
            yield function
        nodes += [other for other, _ in node.next_functions if other is not None]


def leaves_of(inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [x.detach().to(dtype).clone().requires_grad_() for x in inputs]


def gradients(
    call: Callable[[], torch.Tensor], leaves: list[torch.Tensor], passes: int
) -> list[torch.Tensor]:
    """Return the sums over repeated backward passes through one graph."""
    torch.manual_seed(5)
    output = call()
    along = output.detach().float().cos().to(output.dtype)
    for _ in range(passes):
        output.backward(along, retain_graph=True)
    found = [x.grad for x in leaves]
    for x in leaves:
        x.grad = None
    return found


def check_twice(kernel: Function, leaves: list[torch.Tensor]) -> None:
    once, twice = (gradients(lambda: kernel(*leaves), leaves, n) for n in (1, 2))
    assert any(x is not None for x in once)
    for one, two in zip(once, twice, strict=True):
        if one is not None:
            assert one.count_nonzero() > 0
            torch.testing.assert_close(two, 2 * one, rtol=1e-6, atol=0)


def marks_of(name: str, dtype: torch.dtype) -> list[pytest.MarkDecorator]:
    """Return a case's marks: some CPUs leave packed bf16 sequences to the caller."""
    packed_in_bf16 = name.startswith("documents") and dtype == torch.bfloat16
    return [pytest.mark.needs("avx512_bf16")] if packed_in_bf16 else []


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(x, dtype, marks=marks_of(x, dtype))
        for x in KERNELS
        for dtype in DTYPES
        if dtype == DTYPES[0] or x not in ONLY_FP32
    ],
)
def test_two_passes_are_twice_one(name: str, dtype: torch.dtype) -> None:
    kernel, inputs = KERNELS[name]
    check_twice(kernel, leaves_of(inputs, dtype))


@pytest.mark.parametrize("name", ["linear", "linear_cross_entropy", "token_losses"])
def test_sums_of_gradients_get_both_passes(name: str) -> None:
    """Gradients of weights go to the training's sums instead of autograd."""
    kernel, inputs = KERNELS[name]
    found: list[Any] = []
    for passes in (1, 2):
        leaves = leaves_of(inputs, torch.float32)
        sums = make_sums(torch.empty(leaves[1].shape), torch.float32)
        assert sums is not None
        gradients(partial(kernel, *leaves, sums=sums), leaves, passes)
        found.append(sums.values)
    torch.testing.assert_close(found[1], 2 * found[0], rtol=1e-6, atol=0)


def test_each_function_is_tried() -> None:
    modules = [
        importlib.import_module(f"{ftcluster_kernels.__name__}.{module.name}")
        for module in pkgutil.iter_modules(ftcluster_kernels.__path__)
        if not module.name.startswith("lib")
    ]
    functions = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, torch.autograd.Function)
    }
    tried = {
        function
        for kernel, inputs in KERNELS.values()
        for function in functions_of(kernel(*leaves_of(inputs, torch.float32)))
    }
    assert functions
    assert functions - tried == set()
