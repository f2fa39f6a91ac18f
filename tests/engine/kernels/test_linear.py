"""Linear layers that skip rows without a gradient, against torch's layers."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_kernels import linear as module
from ftcluster_kernels.linear import linear, rows_with_gradient
from tests.engine.models import make_model


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MUCH_WORK", 0)


def gradients(
    function: Any, tensors: list[torch.Tensor], grad: torch.Tensor
) -> list[torch.Tensor | None]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    function(*leaves).backward(grad)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(31, 24, 16), (310, 512, 544)])
def test_gradients_are_those_of_torch(
    dtype: torch.dtype, kept: float, bias: bool, tokens: int, inputs: int, outputs: int
) -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(7, tokens, inputs), torch.randn(outputs, inputs)]
    tensors = [tensor.to(dtype) for tensor in (*tensors, *[torch.randn(outputs)] * bias)]
    grad = torch.randn(7, tokens, outputs).to(dtype) * (torch.rand(7, tokens, 1) < kept)
    found = gradients(linear, tensors, grad)
    terms = {"rtol": 1e-5 if dtype == torch.float32 else 2**-6, "atol": 1e-6 * 7 * tokens}
    for own, reference in zip(found, gradients(functional.linear, tensors, grad), strict=True):
        torch.testing.assert_close(own, reference, **terms)


@pytest.mark.parametrize("shape", [(7, 31), (1, 1), (0, 31), (5,)])
@pytest.mark.parametrize("strided", [True, False])
def test_a_bias_is_added_as_torch_adds_it(shape: tuple[int, ...], strided: bool) -> None:
    torch.manual_seed(1)
    input = torch.randn(*shape, 48).bfloat16()[..., :: 2 if strided else 1]
    weight, bias = torch.randn(16, input.shape[-1]).bfloat16(), torch.randn(16).bfloat16()
    weight.requires_grad_()
    exact = functional.linear(input.double(), weight.double(), bias.double()).bfloat16()
    torch.testing.assert_close(linear(input, weight, bias), exact, atol=4e-3, rtol=8e-3)


@pytest.mark.parametrize("bias", [torch.arange(32.0)[::2], torch.ones(1).expand(16), torch.ones(1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_in_another_form(dtype: torch.dtype, bias: torch.Tensor) -> None:
    input, weight = torch.zeros(40, 24, dtype=dtype), torch.zeros(16, 24, dtype=dtype)
    weight.requires_grad_()
    bias = bias.to(dtype).detach().requires_grad_()
    output = linear(input, weight, bias)
    assert torch.equal(output, bias.expand(40, 16))
    output.sum().backward()
    assert bias.grad is not None
    assert bias.grad.sum() == 40 * 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_stored_the_other_way_round(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensors = [t.to(dtype) for t in (torch.randn(40, 24), torch.randn(24, 16), torch.randn(16))]
    grad = torch.randn(40, 16).to(dtype)
    found = gradients(lambda x, w, b: linear(x, w.T, b), tensors, grad)
    expected = gradients(lambda x, w, b: torch.addmm(b, x, w), tensors, grad)
    for own, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(own, reference)
        assert own is not None
        assert own.is_contiguous()  # so that adding it to other gradients needs no transposition


def test_rows_without_gradient_are_found() -> None:
    grad = torch.zeros(320, 8)
    assert rows_with_gradient(grad).tolist() == []  # type: ignore[union-attr]
    grad[::32, 3] = 1  # the first token of each sample
    assert rows_with_gradient(grad).tolist() == list(range(0, 320, 32))  # type: ignore[union-attr]
    grad[:, 5] = torch.nan  # NaN is also a gradient and must arrive
    assert rows_with_gradient(grad) is None


def test_a_frozen_weight_and_an_input_without_gradient() -> None:
    input, weight = torch.randn(40, 6), torch.randn(5, 6)
    grad = torch.randn(40, 5) * (torch.arange(40) % 4 == 0).unsqueeze(1)
    learned = weight.clone().requires_grad_()
    linear(input, learned).backward(grad)
    torch.testing.assert_close(learned.grad, grad.T @ input)
    leaf = input.clone().requires_grad_()
    linear(leaf, weight).backward(grad)
    torch.testing.assert_close(leaf.grad, grad @ weight)


def test_a_classifiers_last_layer_has_a_row_for_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functional, "linear", linear)
    rows: list[int] = []

    def spy(grad: torch.Tensor) -> torch.Tensor | None:
        chosen = rows_with_gradient(grad)
        rows.append(len(grad) if chosen is None else len(chosen))
        return chosen

    monkeypatch.setattr(module, "rows_with_gradient", spy)
    model = make_model("distilbert").train()
    tokens = torch.randint(5, 50, (3, 20))
    model(input_ids=tokens, labels=torch.tensor([0, 1, 0])).loss.backward()
    layers = model.config.n_layers
    # two layers of the head; output, its inner layer, attention's output; value, key and query
    head, last, others = rows[:2], rows[2:8], rows[8:]
    assert head == [3, 3]
    assert sorted(last) == [3, 3, 3, 3, 60, 60]
    assert others == [60] * 6 * (layers - 1)
