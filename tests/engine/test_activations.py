"""The fused activations are those that transformers writes out."""

import pytest
import torch
from torch import nn
from transformers import activations

from ftcluster_train.kernels.activations import fuse_activations
from tests.engine.models import make_model


@pytest.mark.parametrize(
    "kind", [activations.NewGELUActivation, activations.FastGELUActivation], ids=["new", "fast"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients(kind: type[nn.Module], dtype: torch.dtype) -> None:
    model = nn.Sequential(kind())
    values = torch.linspace(-6, 6, 10_001, dtype=dtype)
    made = []
    for count in (1, 0):
        own = values.clone().requires_grad_()
        found = model(own)
        found.backward(torch.cos(values))
        made.append((found.detach(), own.grad))
        assert fuse_activations(model) == count
    assert type(model[0]) is nn.GELU
    # FastGELU's 0.7978845608 has ten digits of the constant
    for one, other in zip(*made, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9 if dtype.itemsize == 8 else 1e-6)


@pytest.mark.parametrize(("kind", "task", "count"), [("gpt2", "causal-lm", 2), ("bert", "", 0)])
def test_count_of_a_model(kind: str, task: str, count: int) -> None:
    model = make_model(kind, task or "text-classification").eval()
    tokens = torch.arange(4, 20).unsqueeze(0)
    before = model(input_ids=tokens).logits
    assert fuse_activations(model) == count
    assert fuse_activations(model) == 0
    assert torch.allclose(model(input_ids=tokens).logits, before, atol=1e-6)
