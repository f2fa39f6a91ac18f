"""Matmuls by AMX tiles against their formula in fp64, and the choice of calls for them."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ftcluster_kernels import products, simd
from ftcluster_kernels.linear import linear
from tests.engine.drawn import check_near, tensors, unit

BF16 = torch.bfloat16
sizes = st.sampled_from([32, 64, 96, 320])
rows = st.integers(1, 100) | st.sampled_from([480, 481, 1000])
THREADS = [1, 2, 3, 7]


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make each call use as many threads as torch has, even for small calls."""
    assert products.has_amx()  # asks Linux for permission to use tiles
    monkeypatch.setattr(simd, "FEW_ELEMENTS", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.needs("amx", "compiler")
@given(rows, sizes, sizes, st.booleans(), st.booleans(), st.sampled_from(THREADS), st.data())
@example(1000, 4096, 320, True, True, 7, None)  # the lowest possible panel
@example(1760, 96, 512, False, False, 2, None)
def test_tiles_compute_the_product(
    rows: int,
    depth: int,
    columns: int,
    turned: bool,
    with_bias: bool,
    threads: int,
    data: st.DataObject | None,
) -> None:
    assert products.has_amx()  # asks Linux for permission to use tiles
    shapes = (rows, depth), ((columns, depth) if turned else (depth, columns)), (columns,)
    if data:
        left, right, bias = (data.draw(tensors(shape, BF16)) for shape in shapes)
    else:
        left, right, bias = (torch.randn(shape).to(BF16) for shape in shapes)
    right = right.T if turned else right
    exact, size = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    if with_bias:
        exact, size = exact + bias.double(), size + bias.double().abs()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simd, "FEW_ELEMENTS", 0)
            found = products.product_on_tiles(left, right, bias if with_bias else None)
    finally:
        torch.set_num_threads(before)
    check_near(found, exact, unit(torch.float32, depth + 1) * size + unit(BF16, 1) * exact.abs())


@pytest.mark.needs("amx", "compiler")
@given(rows, sizes, sizes, st.sampled_from([32, 64, 96]), st.booleans(), st.booleans(),
       st.sampled_from(THREADS), st.data())  # fmt: skip
@example(70, 4096, 4128, 32, True, True, 2, None)  # packed in two groups of columns
@example(70, 4096, 4128, 64, False, False, 2, None)
def test_tiles_add_what_an_adapter_adds(
    rows: int,
    depth: int,
    columns: int,
    rank: int,
    turned: bool,
    with_bias: bool,
    threads: int,
    data: st.DataObject | None,
) -> None:
    assert products.has_amx()
    shapes = (rows, depth), (depth, columns), (depth, rank), (rank, columns), (columns,)
    if data:
        left, right, down, up, bias = (data.draw(tensors(shape, BF16)) for shape in shapes)
    else:
        left, right, down, up, bias = (torch.randn(shape).to(BF16) for shape in shapes)
    if turned:
        right, down, up = (x.T.contiguous().T for x in (right, down, up))
    low, added = torch.full((rows, rank), math.nan, dtype=BF16), bias if with_bias else None
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simd, "FEW_ELEMENTS", 0)
            found = products.product_on_tiles(
                left, right, added, products.LowRank(down, up, 0.5, low)
            )
    finally:
        torch.set_num_threads(before)
    wide = [x.double() for x in (left, right, down, up, bias)]
    sizes = [x.abs() for x in wide]
    exact, size = wide[0] @ wide[2] / 2, sizes[0] @ sizes[2] / 2
    check_near(low, exact, unit(torch.float32, depth + 1) * size + unit(BF16, 1) * exact.abs())
    exact = wide[0] @ wide[1] + low.double() @ wide[3]
    size = sizes[0] @ sizes[1] + low.double().abs() @ sizes[3]
    if with_bias:
        exact, size = exact + wide[4], size + sizes[4]
    error = unit(torch.float32, depth + rank + 1) * size
    check_near(found, exact, error + unit(BF16, 1) * exact.abs())


@pytest.mark.needs("amx", "compiler")
@pytest.mark.usefixtures("many_threads")
def test_the_same_bits_whoever_computes_which_part() -> None:
    torch.manual_seed(1)
    left, right = torch.randn(700, 256).to(BF16), torch.randn(256, 512).to(BF16)
    grad, sums = torch.randn(700, 512).to(BF16), torch.zeros(512, 256)
    down, up = torch.randn(256, 32).to(BF16), torch.randn(32, 512).to(BF16)
    found = []
    for threads in THREADS * 3:  # another thread is the first in each run
        torch.set_num_threads(threads)
        low = torch.empty(700, 32, dtype=BF16)
        products.weight_gradient_(grad, left, sums, adds=False)
        added = products.product_on_tiles(left, right, None, products.LowRank(down, up, 2, low))
        found.append((products.product_on_tiles(left, right, None), sums.clone(), added, low))
    for others in found[1:]:
        assert all(map(torch.equal, others, found[0]))


@pytest.mark.needs("amx", "compiler")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_stays_in_its_row_and_column(value: float) -> None:
    assert products.has_amx()
    left, right = torch.ones(301, 64, dtype=BF16), torch.ones(64, 96, dtype=BF16)
    left[300, 5] = value
    assert (~products.product_on_tiles(left, right, None).isfinite()).any(1).nonzero().tolist() == [
        [300]
    ]
    left[300, 5], right[7, 33] = 1, value
    assert (~products.product_on_tiles(left, right, None).isfinite()).any(0).nonzero().tolist() == [
        [33]
    ]


def test_other_products_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("taken by the tiles")

    monkeypatch.setattr(products, "has_amx", lambda: True)
    monkeypatch.setattr(products, "product_on_tiles", refuse)
    many, weight, bias = torch.randn(600, 544), torch.randn(512, 544), torch.randn(512)
    bf16 = [x.to(BF16) for x in (many, weight, bias)]
    for left, right, added in (
        (many, weight, bias),  # fp32
        (bf16[0][:511], bf16[1], bf16[2]),
        (bf16[0], bf16[1], bias),
        (bf16[0], bf16[1][:480], bf16[2][:480]),
        (bf16[0][:, :530], bf16[1][:, :530], None),
        (bf16[0], torch.randn(512, 1088).to(BF16)[:, ::2], bf16[2]),
        # oneDNN treats a bias as contiguous
        (bf16[0][:511], bf16[1], torch.randn(1024).to(BF16)[::2]),
        (bf16[0][:511], bf16[1], torch.randn(1).to(BF16).expand(512)),
        (bf16[0][:511], bf16[1], torch.randn(1).to(BF16)),
    ):
        expected = left.double() @ right.T.double()
        expected = expected if added is None else expected + added.double()
        found = products.product(left, right.T, added)
        torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=2**-3)
    with pytest.raises(RuntimeError, match="dtype"):
        products.product(bf16[0], weight.T)
    with pytest.raises(AssertionError, match="taken by the tiles"):
        products.product(bf16[0], bf16[1].T, bf16[2])


@pytest.mark.needs("amx", "compiler")
@pytest.mark.parametrize(
    "bias", [torch.arange(1024.0)[::2], torch.ones(1).expand(512), torch.ones(1)]
)
def test_a_bias_that_is_not_contiguous(bias: torch.Tensor) -> None:
    left, weight, bias = torch.zeros(512, 512, dtype=BF16), torch.zeros(512, 512), bias.to(BF16)
    found = products.product(left, weight.to(BF16).T, bias)
    assert torch.equal(found, bias.expand(512, 512))


@pytest.mark.needs("amx", "compiler")
def test_the_first_dimensions_stay() -> None:
    torch.manual_seed(2)
    left, weight = torch.randn(4, 130, 512).to(BF16), torch.randn(544, 512).to(BF16)
    for x in (left, left.transpose(0, 1)):
        found = products.product(x, weight.T)
        assert found.shape == (*x.shape[:-1], 544)
        torch.testing.assert_close(found, x @ weight.T, rtol=2**-7, atol=2**-6)


@pytest.mark.needs("amx", "compiler")
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_that_is_summed_over_many(turned: bool) -> None:
    """Sum over many rows, as for the gradient of hidden states from logits."""
    torch.manual_seed(3)
    left, right = torch.randn(515, 9024).to(BF16), torch.randn(9024, 544).to(BF16)
    right = right.T.contiguous().T if turned else right
    found = products.product(left, right)
    exact = left.double() @ right.double()
    check_near(found, exact, unit(BF16, 1) * exact.abs() + 1e-3)
    wide = products.product(left.view(5, 103, 9024), right)
    assert torch.equal(wide.flatten(0, 1), found)


@pytest.mark.needs("amx", "compiler")
def test_sizes_that_do_not_match_are_refused_by_torch() -> None:
    left, narrow = torch.zeros(600, 1024, dtype=BF16), torch.zeros(512, 512, dtype=BF16)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        products.product(left, narrow.T)
    with pytest.raises(RuntimeError, match="must match"):
        products.product(left[:, :512], narrow.T, torch.zeros(96, dtype=BF16))
    for down, up in (((32, 512), (512, 32)), ((32, 1024), (96, 32)), ((32, 1024), (512, 64))):
        adapter = (torch.zeros(shape, dtype=BF16).T for shape in (down, up))
        with pytest.raises(RuntimeError, match=r"cannot be multiplied|should match"):
            products.product_with_adapter(left, left[:512].T, None, *adapter, 1.0)
    weight = torch.zeros(1024, dtype=BF16, requires_grad=True)
    linear(left, weight).sum().backward()  # a vector, whose output has no last dimension
    assert weight.grad is not None
