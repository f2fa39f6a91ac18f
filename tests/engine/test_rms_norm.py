"""RMSNorm is the formula in fp64, except for its roundings; which modules compute with it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from ftcluster_train.kernels.norm import rms_norm
from ftcluster_train.patching.fused_modules import FUSED_RMS_NORMS
from tests.engine.drawn import check_near, dtypes, tensors, unit

pytestmark = pytest.mark.needs("avx2", "compiler")  # the package has the loops, then
EPSILON = 1e-6
TINY = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


@given(st.integers(1, 40), st.integers(1, 40), dtypes, dtypes, st.booleans(),
       st.data())  # fmt: skip
def test_output_and_gradients(
    rows: int, width: int, dtype: torch.dtype, weight_dtype: torch.dtype, learned: bool,
    data: Any,
) -> None:  # fmt: skip
    x = data.draw(tensors((1, rows, width), dtype)).requires_grad_()
    weight = data.draw(tensors((width,), weight_dtype)).requires_grad_(learned)
    wider = torch.promote_types(dtype, weight_dtype)
    upstream = data.draw(tensors((1, rows, width), wider))
    wanted = (x, weight) if learned else (x,)
    found = rms_norm(x, weight, EPSILON)
    gradients = torch.autograd.grad(found, wanted, upstream)
    assert [one.dtype for one in (found, *gradients)] == [wider, *(one.dtype for one in wanted)]

    exact_x, w, g = (one.detach()[0].double() for one in (x, weight[None], upstream))
    scale = (exact_x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    normed = exact_x * scale
    pulled = g * w * scale
    along = (pulled * normed).mean(-1, keepdim=True) * normed
    exact = (normed * w, pulled - along, (g * normed).sum(0))
    most_along = (pulled * normed).abs().mean(-1, keepdim=True) * normed.abs()
    most = (exact[0].abs(), pulled.abs() + most_along, (g * normed).abs().sum(0))
    u = 8 * unit(torch.float32, rows + width)
    for one, other, allowed in zip((found, *gradients), exact, most, strict=False):
        check_near(one.view(other.shape), other, (unit(one.dtype, 1) + u) * allowed)


@pytest.mark.parametrize(
    ("architecture", "count"),
    [("llama", 5), ("qwen2", 5), ("qwen3", 9), ("mistral", 5), ("gemma2", 0), ("gpt2", 0)],
)
def test_modules_that_compute_the_same(architecture: str, count: int) -> None:
    """Gemma adds 1 to the weight."""
    config = AutoConfig.for_model(architecture, **TINY)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    names = list(model.state_dict())
    tokens = torch.arange(8).view(1, 8)
    before = model(input_ids=tokens).logits
    assert FUSED_RMS_NORMS.apply(model) == count
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(input_ids=tokens).logits, before, rtol=1e-4, atol=1e-5)
