"""A linear layer with an adapter is the formula in fp64, except for its roundings."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_train.kernels.linear import Adapter, linear_with_adapter
from tests.engine.drawn import check_near, dtypes, tensors, unit


@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 24), st.integers(1, 8), dtypes,
       st.booleans(), st.sampled_from([1.0, 2.0, 0.3]), st.data())  # fmt: skip
def test_output_and_gradients(
    tokens: int, inputs: int, outputs: int, rank: int, dtype: torch.dtype, biased: bool,
    scale: float, data: Any,
) -> None:  # fmt: skip
    shapes = ((1, tokens, inputs), (outputs, inputs), (rank, inputs), (outputs, rank))
    x, weight, down, up = (data.draw(tensors(shape, dtype)) for shape in shapes)
    bias = data.draw(tensors((outputs,), dtype)) if biased else None
    upstream = data.draw(tensors((1, tokens, outputs), dtype))
    trained = [torch.nn.Parameter(one) for one in (x, down, up)]
    adapter = Adapter(trained[1], trained[2], scale)
    found = linear_with_adapter(trained[0], weight, bias, adapter)
    gradients = torch.autograd.grad(found, trained, upstream)
    assert [one.dtype for one in (found, *gradients)] == [dtype] * 4

    x, weight, down, up, g = (one.double() for one in (x[0], weight, down, up, upstream[0]))
    b = torch.zeros(outputs).double() if bias is None else bias.double()

    def formulas(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, down, up, g, b = tensors
        low, of_low = x @ down.mT, scale * g @ up
        return (
            x @ weight.mT + b + scale * low @ up.mT,
            g @ weight + of_low @ down,
            of_low.mT @ x,
            scale * g.mT @ low,
        )

    exact = formulas(x, weight, down, up, g, b)
    # each of the products is rounded, what the adapter adds up to four times
    most = formulas(*(one.abs() for one in (x, weight, down, up, g, b)))
    u = unit(dtype, max(tokens, inputs, outputs) + rank)
    for one, other, allowed in zip((found, *gradients), exact, most, strict=True):
        check_near(one.flatten(0, -2), other, 5 * u * allowed)
