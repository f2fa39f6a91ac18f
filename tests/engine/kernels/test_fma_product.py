"""Matmuls by multiply-adds against their formula in fp64, and the choice of calls for them."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ftcluster_kernels import linear as module
from ftcluster_kernels import products, simd
from ftcluster_kernels.cpu import cpuinfo_field
from tests.engine.drawn import LIBRARIES, check_near, tensors, unit

BF16, FP32 = torch.bfloat16, torch.float32
HAS_BF16 = "avx512_bf16" in cpuinfo_field("flags").split()
FOLDER = Path(simd.__file__).parent
dtypes = st.sampled_from([FP32, BF16] if HAS_BF16 else [FP32])
sizes = st.integers(1, 3) | st.integers(1, 70) | st.sampled_from([96, 100, 257])
THREADS = [1, 2, 3, 7]


@pytest.mark.needs("compiler")
@given(
    dtypes, sizes, sizes | st.just(601), sizes,
    *[st.booleans()] * 5, st.sampled_from(THREADS), st.sampled_from(LIBRARIES), st.data(),
)  # fmt: skip
@example(
    FP32, 20, 9001, 50, True, False, True, False, False, 2, LIBRARIES[0], None
)  # the sum in three parts
@example(FP32, 20, 8193, 50, False, True, True, True, False, 3, LIBRARIES[-1], None)
@example(
    FP32, 7, 4096, 1100, False, True, False, False, True, 2, LIBRARIES[-1], None
)  # two groups of columns
def test_it_is_the_product(
    dtype: torch.dtype,
    rows: int,
    depth: int,
    columns: int,
    left_turned: bool,
    right_turned: bool,
    to_sums: bool,
    adds: bool,
    with_bias: bool,
    threads: int,
    library: str,
    data: st.DataObject | None,
) -> None:
    if library == "libavx2.so":
        dtype = FP32
    if dtype == BF16 and (not left_turned or right_turned):
        depth += depth % 2
    with_bias &= not to_sums
    shapes = (rows, depth), (depth, columns), (columns,), (rows, columns)
    drawn = (dtype, dtype, dtype, FP32)
    if data:
        left, right, bias, sums = map(data.draw, map(tensors, shapes, drawn))
    else:
        left, right, bias, sums = (
            torch.randn(shape).to(of) for shape, of in zip(shapes, drawn, strict=True)
        )
    left = left.T.contiguous().T if left_turned else left
    right = right.T.contiguous().T if right_turned else right
    exact, size = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    if with_bias:
        exact, size = exact + bias.double(), size + bias.double().abs()
    if to_sums and adds:
        exact, size = exact + sums.double(), size + sums.double().abs()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simd, "FEW_ELEMENTS", 0)
            loaded = simd.load(FOLDER / library)
            patch.setattr(simd, "loaded_library", lambda: loaded)
            found = products.product_by_fma(
                left, right, bias if with_bias else None, sums if to_sums else None,
                to_sums and adds,
            )  # fmt: skip
    finally:
        torch.set_num_threads(before)
    error = unit(FP32, depth + 2) * size
    if dtype == BF16 and not to_sums:
        error += unit(BF16, 1) * exact.abs()
    check_near(found, exact, error)
    assert not to_sums or found is sums


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simd, "FEW_ELEMENTS", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.needs("compiler")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [FP32, BF16] if HAS_BF16 else [FP32])
def test_the_same_bits_whoever_computes_which_part(dtype: torch.dtype) -> None:
    left, right = torch.randn(700, 600).to(dtype), torch.randn(600, 500).to(dtype)
    found = []
    for count in THREADS * 3:
        torch.set_num_threads(count)
        found.append(products.product_by_fma(left, right))
    assert all(torch.equal(other, found[0]) for other in found[1:])


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_stays_in_its_row_and_column(value: float) -> None:
    left, right = torch.ones(301, 64), torch.ones(64, 100)
    left[300, 5] = value
    found = products.product_by_fma(left, right)
    assert (~found.isfinite()).any(1).nonzero().tolist() == [[300]]
    left[300, 5], right[7, 33] = 1, value
    found = products.product_by_fma(left, right)
    assert (~found.isfinite()).any(0).nonzero().tolist() == [[33]]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Record the shapes of matmuls by multiply-adds, as on a CPU of another vendor."""
    seen: list[torch.Size] = []
    product = products.product_by_fma

    def count(left: torch.Tensor, right: torch.Tensor, *others: object, **named: object) -> object:
        seen.append(torch.Size((*left.shape, right.shape[1])))
        return product(left, right, *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(products, "fma_dtypes", lambda: frozenset({FP32}))
    monkeypatch.setattr(products, "product_by_fma", count)
    return seen


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("bias", [None, torch.randn(768), torch.randn(1).expand(768)])
def test_a_layer_computes_all_of_its_products_so(
    counted: list[torch.Size], bias: torch.Tensor | None
) -> None:
    layer = torch.nn.Linear(640, 768)
    input, grad = torch.randn(3, 200, 640, requires_grad=True), torch.randn(3, 200, 768)
    output = module.linear(input, layer.weight, bias)
    output.backward(grad)
    found = output.detach(), input.grad, layer.weight.grad
    assert counted == [(600, 640, 768), (600, 768, 640), (768, 600, 640)]
    input.grad = layer.weight.grad = None
    expected = torch.nn.functional.linear(input, layer.weight, bias)
    expected.backward(grad)
    for one, other in zip(found, (expected, input.grad, layer.weight.grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.needs("compiler")
def test_what_does_not_fit_is_left_to_torch(counted: list[torch.Size]) -> None:
    left, right = torch.randn(600, 640), torch.randn(640, 768)
    with pytest.raises(RuntimeError):  # C code would read beyond the end
        products.product(left[:, :639], right)
    with pytest.raises(RuntimeError):
        products.product(left, right.double())
    with pytest.raises(ValueError, match="cannot multiply shapes"):
        products.add_columns(
            torch.randn(600, 768), torch.randn(599, 640), torch.empty(768, 640), adds=False
        )
    counted.clear()
    for one in (right[:, ::2], torch.randn(640, 300), torch.randn(1, 640, 768)):
        torch.testing.assert_close(products.product(left, one), left @ one)
    for wide in (left.double(), left.to(torch.float16)):
        torch.testing.assert_close(
            products.product(wide, right.to(wide.dtype)), wide @ right.to(wide.dtype)
        )
    assert not counted
    rows = left[:, ::2]  # strided rows are copied
    torch.testing.assert_close(
        products.product(rows, torch.ones(320, 2048)), rows @ torch.ones(320, 2048)
    )
    torch.testing.assert_close(
        products.product(left[:, :600], right[:600]),
        left[:, :600] @ right[:600],
        rtol=1e-4,
        atol=1e-3,
    )
    assert counted == [(600, 600, 768)]


@pytest.mark.parametrize(
    ("vendor", "flags", "limit", "expected"),
    [
        ("GenuineIntel", "avx2 avx512_bf16", "", set()),
        ("AuthenticAMD", "avx2 fma", "", {FP32}),
        ("AuthenticAMD", "avx2 avx512_bf16", "", {FP32, BF16}),
        ("AuthenticAMD", "avx2 avx512_bf16", "AVX2", {FP32}),
        ("HygonGenuine", "avx2 fma", "AVX2", {FP32}),
    ],
)
def test_which_cpus_have_them(
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
    flags: str,
    limit: str,
    expected: set[torch.dtype],
) -> None:
    fields = {"vendor_id": vendor, "flags": flags}
    monkeypatch.setattr(products, "cpuinfo_field", fields.__getitem__)
    monkeypatch.setattr(products, "adds_bf16", products.adds_bf16.__wrapped__)
    monkeypatch.setattr(simd, "is_available", lambda: True)
    monkeypatch.setattr(products, "_knows_bf16", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    assert products.fma_dtypes.__wrapped__() == expected
    # attention does not check the vendor: Intel's CPUs without AMX, or in a virtual machine that
    # hides it
    assert products.adds_bf16() == ("avx512_bf16" in flags and not limit)
    monkeypatch.setattr(products, "_knows_bf16", lambda: False)  # as with an older compiler
    assert products.fma_dtypes.__wrapped__() == expected - {BF16}
    monkeypatch.setattr(simd, "is_available", lambda: False)
    assert not products.fma_dtypes.__wrapped__()
