"""Properties of the loss of a large vocabulary: the formula in fp64, but for its roundings."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_train.kernels.linear_cross_entropy import ALIGNMENT, ROWS, linear_cross_entropy
from tests.engine.drawn import ROUNDOFF, TINY, check_near, dtypes, tensors, unit

FP32 = ROUNDOFF[torch.float32]
# on both sides of where rows are cut and columns are padded
rows = st.sampled_from([1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 5]) | st.integers(1, 3 * ROWS)
columns = st.sampled_from([1, 2, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1]) | st.integers(
    1, 3 * ALIGNMENT
)
large = st.sampled_from([1.0, 1e-3, 10.0])


@given(rows, columns, st.integers(1, 24), dtypes, dtypes, st.sampled_from([1.0, 0.37, 1e-3, 64.0]),
       st.data())  # fmt: skip
def test_loss_and_gradients(
    count: int, vocabulary: int, width: int, of_hidden: torch.dtype, dtype: torch.dtype,
    scale: float, data: Any,
) -> None:  # fmt: skip
    hidden = data.draw(tensors((count, width), of_hidden, large)).requires_grad_()
    weight = data.draw(tensors((vocabulary, width), dtype, large)).requires_grad_()
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    tokens = torch.randint(vocabulary, (count,), generator=numbers)
    found = linear_cross_entropy(hidden, weight, tokens)
    gradients = torch.autograd.grad(found * scale, (hidden, weight))
    assert found.dtype == torch.float32
    assert [g.dtype for g in gradients] == [of_hidden, dtype]

    h, w = hidden.detach().double(), weight.detach().double()
    logits = h @ w.T
    wanted = torch.nn.functional.one_hot(tokens, vocabulary).double()
    losses = torch.logsumexp(logits, -1) - (logits * wanted).sum(-1)
    shares = torch.softmax(logits, -1)
    of_logits = (shares - wanted) * scale

    # hidden states and logits are rounded; fp32 holds what is taken off them, and the sums
    u = unit(dtype, max(width, vocabulary, count))
    off = 2 * u * (h.abs() @ w.abs().T).amax(-1, keepdim=True)
    spread = logits.amax(-1) - logits.amin(-1)
    of_loss = 2 * off.squeeze(1) + FP32 * (2 * spread + losses + 2 * vocabulary)
    check_near(found, losses.sum(), (of_loss + count * FP32 * losses).sum())
    relative = torch.where(off < 1, torch.expm1(2 * off) + (vocabulary + 8) * FP32, torch.inf)
    error = (shares * relative + TINY).nan_to_num(torch.inf).clamp(max=1 + u)
    error = (error + u * (shares - wanted).abs() + (shares + wanted) * FP32) * scale
    most = of_logits.abs() + error
    bounds = ((error + 3 * u * most) @ w.abs(), (error + 4 * u * most).T @ h.abs())
    for gradient, exact, bound in zip(
        gradients, (of_logits @ w, of_logits.T @ h), bounds, strict=True
    ):
        check_near(gradient, exact, bound + ROUNDOFF[gradient.dtype] * (exact.abs() + bound))
