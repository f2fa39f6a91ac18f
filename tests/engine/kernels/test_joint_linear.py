"""Linear layers of the same input in one matmul, against torch's layers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_kernels import attention_heads, linear
from ftcluster_kernels.attention import attention_of_documents
from ftcluster_kernels.gradient_sums import GradientSums
from ftcluster_kernels.joint_linear import in_one, joint_linear

SIZES = (16, 24, 8)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MUCH_WORK", 0)


def make_layers(
    dtype: torch.dtype, sizes: Sequence[int] = SIZES, inputs: int = 40
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return weights and biases that are views of one tensor each, as in the engine."""
    weight, bias = torch.randn(sum(sizes), inputs).to(dtype), torch.randn(sum(sizes)).to(dtype)
    return (
        [x.detach().requires_grad_() for x in weight.split(sizes)],
        [x.detach().requires_grad_() for x in bias.split(sizes)],
    )


def separate(
    input: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    return [functional.linear(input, w, b) for w, b in zip(weights, biases, strict=True)]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    if dtype == torch.float32:
        return {"rtol": 1e-5, "atol": 1e-4}
    return {"rtol": 2**-6, "atol": 2**-4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5), (1, 31), (9,)])
@pytest.mark.parametrize("used", [(0, 1, 2), (0, 2), (1,)])
@pytest.mark.parametrize("with_sums", [True, False])
def test_outputs_and_gradients_are_those_of_torch(
    dtype: torch.dtype, shape: tuple[int, ...], used: Sequence[int], with_sums: bool
) -> None:
    torch.manual_seed(1)
    weights, biases = make_layers(dtype)
    x = torch.randn(*shape, 40).to(dtype)
    grads = [torch.randn(*shape, SIZES[i]).to(dtype) for i in used]
    memory = torch.full((sum(SIZES), 40), torch.nan)
    sums = [GradientSums(part, torch.float32) for part in memory.split(SIZES)]
    with_sums = with_sums and dtype == torch.float32
    results = []
    for function in (joint_linear, separate):
        leaves = [t.detach().requires_grad_() for t in (x, *weights, *biases)]
        arguments: list[Any] = [leaves[0], leaves[1:4], leaves[4:]]
        if function is joint_linear:
            arguments.append(sums if with_sums else [None] * 3)
        outputs = function(*arguments)
        assert outputs is not None
        torch.autograd.backward([outputs[i] for i in used], grads)
        results.append(([*outputs], [leaf.grad for leaf in leaves]))
    (found, own), (expected, exact) = results
    if with_sums:
        assert own[1:4] == [None] * 3
        assert all(x.filled for x in sums)
        own[1:4] = memory.split(SIZES)
    for mine, reference in zip((*found, *own), (*expected, *exact), strict=True):
        if reference is None:  # torch gives no gradient to a layer whose output is not used
            assert mine is None or not mine.any()
        else:
            torch.testing.assert_close(mine, reference, **tolerance(dtype))


def test_sums_of_two_passes_are_added() -> None:
    torch.manual_seed(1)
    weights, biases = make_layers(torch.float32)
    memory = torch.full((sum(SIZES), 40), torch.nan)
    sums = [GradientSums(part, torch.float32) for part in memory.split(SIZES)]
    for x in (first := torch.randn(6, 40), second := torch.randn(9, 40)):
        outputs = joint_linear(x, weights, biases, sums)
        assert outputs is not None
        sum(y.square().sum() for y in outputs).backward()
    for x in (first, second):
        sum(y.square().sum() for y in separate(x, weights, biases)).backward()
    expected = torch.cat([w.grad for w in weights])
    torch.testing.assert_close(memory, expected, rtol=1e-5, atol=1e-4)


def test_a_weight_with_a_hook_gets_its_gradient_from_autograd() -> None:
    torch.manual_seed(1)
    weights, biases = make_layers(torch.float32)
    x, seen = torch.randn(6, 40), []
    weights[1].register_hook(seen.append)
    sums = [GradientSums(torch.empty_like(w), torch.float32) for w in weights]
    outputs = joint_linear(x, weights, biases, sums)
    assert outputs is not None
    sum(y.square().sum() for y in outputs).backward()
    expected = torch.autograd.grad(
        sum(y.square().sum() for y in separate(x, weights, biases)), weights
    )
    torch.testing.assert_close(seen[-1], expected[1])
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient)


def test_second_derivatives_are_those_of_torch() -> None:
    torch.manual_seed(1)
    weights, biases = make_layers(torch.float32, (3, 3, 3), 4)
    x = torch.randn(2, 4, requires_grad=True)

    def of(function: Any, *more: Any) -> list[torch.Tensor]:
        total = sum(y.pow(3).sum() for y in function(x, weights, biases, *more))
        (grad,) = torch.autograd.grad(total, x, create_graph=True)
        return [*torch.autograd.grad(grad.square().sum(), (x, *weights))]

    for mine, reference in zip(of(joint_linear, [None] * 3), of(separate), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-3)


def test_layers_that_are_apart_are_refused() -> None:
    x = torch.randn(6, 40)
    weights, biases = make_layers(torch.float32)
    others, more = make_layers(torch.float32)
    assert joint_linear(x, weights, biases, [None] * 3) is not None
    assert joint_linear(x, [*weights[:2], others[2]], biases, [None] * 3) is None
    assert joint_linear(x, weights[::-1], biases[::-1], [None] * 3) is None
    assert joint_linear(x, weights, more[:2] + biases[2:], [None] * 3) is None
    assert joint_linear(x.bfloat16(), weights, biases, [None] * 3) is None
    assert joint_linear(x[:, :20], weights, biases, [None] * 3) is None
    with torch.no_grad():
        assert joint_linear(x, weights, biases, [None] * 3) is None


def test_two_tensors_that_happen_to_follow_each_other_are_not_one() -> None:
    memory = bytearray(64)
    left = torch.frombuffer(memory, dtype=torch.float32, count=8)
    right = torch.frombuffer(memory, dtype=torch.float32, count=8, offset=32)
    assert left.data_ptr() + left.nbytes == right.data_ptr()
    assert in_one([left, right]) is None
    assert in_one([left[:4], left[4:]]) is not None


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_attention_are_next_to_each_other(dtype: torch.dtype) -> None:
    """The gradients of query, key and value are one matrix, as their values are."""
    torch.manual_seed(1)
    lengths, heads, size = (5, 9, 3), 2, 32
    width, tokens = heads * size, sum(lengths)
    weights, biases = make_layers(dtype, (width,) * 3)
    x, grad = torch.randn(1, tokens, 40).to(dtype), torch.randn(1, heads, tokens, size).to(dtype)
    results = []
    for together in (True, False):
        leaves = [t.detach().requires_grad_() for t in (x, *weights, *biases)]
        layers = leaves[0], leaves[1:4], leaves[4:]
        outputs = joint_linear(*layers, [None] * 3) if together else separate(*layers)
        assert outputs is not None
        q, k, v = (y.view(1, tokens, heads, size).transpose(1, 2) for y in outputs)
        if not attention_heads.takes(q, k, v, lengths):
            pytest.skip("the loop for this dtype needs another CPU")
        gradients: list[torch.Tensor] = []
        for y in outputs:
            y.register_hook(gradients.append)
        of_documents = attention_of_documents(q, k, v, lengths, None, 0.0, False, False)
        assert of_documents is not None
        of_documents.backward(grad)
        order = sorted(gradients, key=torch.Tensor.data_ptr)
        apart = [b.data_ptr() - a.data_ptr() for a, b in pairwise(order)]
        assert (apart == [width * x.itemsize] * 2) == together
        results.append([of_documents, *(leaf.grad for leaf in leaves)])
    for mine, reference in zip(*results, strict=True):
        torch.testing.assert_close(mine, reference, **tolerance(dtype))
