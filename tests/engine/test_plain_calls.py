"""Functions that `run --fast` replaces, on torch's own samples and under its transforms.

The samples are those of OpInfo and ModuleInfo, with which torch tests its own operators.
"""

import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import make_tensor
from torch.utils import _pytree as pytree

from ftcluster_kernels import linear
from ftcluster_kernels.activations import _Activation
from ftcluster_kernels.attention import _Attention, _HeadAttention
from ftcluster_kernels.cross_entropy import _CrossEntropy
from ftcluster_kernels.dropout import _Dropout
from ftcluster_kernels.linear import _Linear
from ftcluster_kernels.norms import _Norm
from ftcluster_train.patching.script_functions import SCRIPT_FUNCTIONS
from tests.engine.test_fast import attention_inputs, enabled  # noqa: F401 - a fixture
from tests.engine.test_repeated_backward import functions_of

expecttest = types.ModuleType("expecttest")  # torch's wheel does not contain this package
expecttest.TestCase = unittest.TestCase  # type: ignore[attr-defined]
sys.modules.setdefault("expecttest", expecttest)
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402
from torch.testing._internal.common_utils import noncontiguous_like  # noqa: E402

# OpInfo's names of the replaced functions
FUNCTIONS = {
    f"nn.functional.{patch.original.__name__}": patch.original.__name__
    for patch in SCRIPT_FUNCTIONS
    if patch.owner is functional
}
STOCK = {patch.original.__name__: patch.original for patch in SCRIPT_FUNCTIONS}
ATTENTION, DROPOUT, CROSS_ENTROPY = "scaled_dot_product_attention", "dropout", "cross_entropy"
# the autograd function of each kernel
KERNELS = {
    ATTENTION: (_HeadAttention, _Attention), DROPOUT: (_Dropout,), CROSS_ENTROPY: (_CrossEntropy,),
    "linear": (_Linear,), "gelu": (_Activation,), "silu": (_Activation,), "layer_norm": (_Norm,),
}  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
# by function and name of a sample: the reason why only shapes and dtypes are compared
IN_PART = {
    (DROPOUT, "p=0.5"): "the mask comes from another generator",
    (ATTENTION, "dropout_p=0.5"): "the mask comes from another generator",
}
# derivatives that torch does not compute; ours are compared with its math backend
NOT_IN_TORCH = {
    (ATTENTION, "second"): "the flash kernel has no second derivatives",
    ("LinearCrossEntropyLoss", "first"): "some of its options refuse gradients with a graph",
    ("LinearCrossEntropyLoss", "batched"): "some of its options refuse batched gradients",
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}
# by function and dtype, a larger tolerance
LARGER = {
    # a row with one value is divided by sqrt(eps), which multiplies errors by 300
    ("layer_norm", torch.float32): 1e-3,
    # the kernel rounds scores, which are up to 200 in these samples, by up to 0.5
    (ATTENTION, torch.bfloat16): 0.15,
}
# derivatives whose values are not compared
COARSE = {
    (ATTENTION, "second", torch.bfloat16): "they begin with probabilities that are rounded to bf16",
}
FEW = 6  # samples of each module; tests with the mark `more` use all samples
CLASSES = 4099  # enough classes for the kernel


def in_part(short: str, kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the entry of IN_PART that a sample has, or None."""
    options = {f"{name}={value}" for name, value in kwargs.items()}
    if short == DROPOUT and (kwargs.get("training") is False or not kwargs):
        options = {"p=0.5"} if not kwargs else set()  # the default during training is 0.5
    entries = [entry for entry in IN_PART if entry[0] == short and entry[1] in options]
    return entries[0] if entries else None


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def total(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return sums of squares, one for each tensor."""
    return [(x.float() if x.dtype == torch.bfloat16 else x).square().sum() for x in values]


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the output and derivatives of a call, as lists of tensors or types of errors.

    `second` are gradients of the gradients, `batched` those of several gradients of the output.
    """
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), (args, kwargs)
    )
    torch.manual_seed(1)
    try:
        output = function(*args, **kwargs)
    except Exception as error:
        return {"output": type(error).__name__}
    results = tensors_of(output)
    found: dict[str, Any] = {"output": [x.detach() for x in results]}
    leaves = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
    learned = [x for x in results if x.requires_grad]
    if not learned or not leaves:
        return found
    found["kernels"] = set(functions_of(*learned))

    def gradients(of: list[torch.Tensor], **options: Any) -> Any:
        try:
            grads = torch.autograd.grad(of, leaves, allow_unused=True, **options)
        except RuntimeError:
            return "RuntimeError"
        return [
            torch.zeros_like(x) if grad is None else grad
            for x, grad in zip(leaves, grads, strict=True)
        ]

    found["plain"] = gradients(total(learned), retain_graph=True)
    batch = [torch.stack([torch.ones_like(x), x.detach().cos()]) for x in learned]
    found["batched"] = gradients(
        learned, grad_outputs=batch, is_grads_batched=True, retain_graph=True
    )
    if not isinstance(found["batched"], str):
        found["batched"] = [
            x if x.ndim > leaf.ndim else x.expand(2, *x.shape)
            for x, leaf in zip(found["batched"], leaves, strict=True)
        ]
    found["first"] = gradients(total(learned), create_graph=True)
    if isinstance(found["first"], str):
        return found
    twice = [x for x in total(found["first"]) if x.requires_grad]
    found["second"] = gradients(twice) if twice else [torch.zeros_like(x) for x in leaves]
    return found


def alike(found: Any, wanted: Any, tolerance: float) -> bool:
    return all(
        torch.allclose(
            one.double(), other.double(), rtol=tolerance, equal_nan=True,
            atol=tolerance * (1 + float(other.detach().abs().nan_to_num().amax()))
            if other.numel() else 0,
        )
        for one, other in zip(found, wanted, strict=True)
    )  # fmt: skip


def compare(
    found: dict[str, Any], wanted: dict[str, Any], tolerance: float, where: str
) -> list[str]:
    """Compare types, shapes and dtypes; return the parts whose values differ."""
    different = []
    for part in wanted.keys() - {"kernels"}:
        ours, theirs = found.get(part), wanted[part]
        assert type(ours) is type(theirs), (where, part, ours, theirs)
        if isinstance(theirs, str):
            assert ours == theirs, (where, part)
            continue
        assert [(x.dtype, x.shape) for x in ours] == [(x.dtype, x.shape) for x in theirs], (
            where, part,
        )  # fmt: skip
        if not alike(ours, theirs, tolerance):
            different.append(part)
    return different


def outcome_by_math(args: Any, kwargs: Any) -> dict[str, Any]:
    """Compute torch's attention with operations that have all derivatives."""
    with sdpa_kernel(SDPBackend.MATH):
        return outcome(STOCK[ATTENTION], args, kwargs)


def refused(found: dict[str, Any]) -> list[str]:
    """Return the derivatives that an outcome lacks."""
    return [part for part in found if part != "output" and found[part] == "RuntimeError"]


class Checked:
    """A comparison of a function's calls with torch's, with counters.

    Attributes:
        calls: number of calls.
        by_kernel: number of calls with a kernel in their graph.
        listed: entries of IN_PART, NOT_IN_TORCH, LARGER and COARSE that a call needed.
    """

    def __init__(self, short: str) -> None:
        self.short, self.ours, self.stock = short, getattr(functional, short), STOCK[short]
        assert self.ours is not self.stock
        self.calls = self.by_kernel = 0
        self.listed: set[Any] = set()

    def check(self, args: Any, kwargs: Any, dtype: torch.dtype, where: str) -> None:
        """Compare one call."""
        where = f"{self.short} {where} {dtype}"
        found, wanted = (outcome(function, args, kwargs) for function in (self.ours, self.stock))
        for part in refused(wanted):
            assert (self.short, part) in NOT_IN_TORCH, (where, part, "torch has no such derivative")
            self.listed.add((self.short, part))
            if found[part] == "RuntimeError":
                del wanted[part]
            else:
                wanted[part] = outcome_by_math(args, kwargs)[part]
        entry = in_part(self.short, kwargs)
        different = compare(found, wanted, TOLERANCE[dtype], where)
        if entry is None and different:
            coarse = {(self.short, part, dtype) for part in different} & COARSE.keys()
            self.listed |= coarse
            if {part for _, part, _ in coarse} != {*different}:
                self.listed.add((self.short, dtype))
            different = compare(found, wanted, LARGER.get((self.short, dtype), 0), where)
            assert {(self.short, part, dtype) for part in different} <= COARSE.keys(), (
                where, different,
            )  # fmt: skip
        elif different:
            self.listed.add(entry)
        self.calls += 1
        self.by_kernel += bool(found.get("kernels", set()) & {*KERNELS[self.short]})

    def check_lists(self) -> None:
        """Check that each entry in the lists for the function was needed."""
        lists = (*IN_PART, *NOT_IN_TORCH, *LARGER, *COARSE)
        assert self.listed == {entry for entry in lists if entry[0] == self.short}


def op_samples(name: str, dtype: torch.dtype) -> Iterator[tuple[str, Any, Any]]:
    """Yield the number, arguments and options of OpInfo's samples."""
    for op in op_db:
        if op.name == name and not op.variant_test_name and dtype in op.dtypes:
            samples = op.sample_inputs("cpu", dtype, requires_grad=True)
            for number, sample in enumerate(samples):
                yield f"sample {number}", (sample.input, *sample.args), sample.kwargs
                if name.endswith(CROSS_ENTROPY) and sample.input.ndim < 4:
                    yield (
                        f"many classes {number}",
                        *with_many_classes(sample, noncontiguous=number % 2 > 0),
                    )


def with_many_classes(sample: Any, **options: Any) -> tuple[Any, Any]:
    """Return arguments and options for cross entropy with CLASSES classes."""
    logits, (target, *_), kwargs = sample.input, sample.args, dict(sample.kwargs)
    shape = [CLASSES if i == min(1, logits.ndim - 1) else n for i, n in enumerate(logits.shape)]
    make = partial(make_tensor, device="cpu", **options)
    if target.dtype == torch.int64:
        target = make(target.shape, dtype=torch.int64, low=0, high=CLASSES)
    else:
        target = make(shape, dtype=target.dtype, low=0, high=1).requires_grad_(target.requires_grad)
    if "weight" in kwargs:
        kwargs["weight"] = make((CLASSES,), dtype=logits.dtype, low=0, high=1)
    return (make(shape, dtype=logits.dtype).requires_grad_(), target), kwargs


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim > 1 else x


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape) if x.ndim > 1 else x


def negative(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-x) if x.is_floating_point() else x


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": noncontiguous_like,
    "turned": turned,
    "expanded": expanded,
    "negative": negative,
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
}


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


@contextmanager
def float64_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture
def small_calls(monkeypatch: pytest.MonkeyPatch, enabled: None) -> None:  # noqa: ARG001, F811
    """Make the kernels accept small linear layers too."""
    monkeypatch.setattr(linear, "MUCH_WORK", 1)
    torch.manual_seed(2)


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize("context", [nullcontext, autocast, float64_by_default])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_samples(name: str, context: Any) -> None:
    """Compare all samples of OpInfo."""
    checked = Checked(FUNCTIONS[name])
    for dtype in DTYPES:
        for where, args, kwargs in op_samples(name, dtype):
            with context():
                checked.check(args, kwargs, torch.bfloat16 if context is autocast else dtype, where)
    assert checked.by_kernel > 0
    if context is nullcontext:
        checked.check_lists()


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_samples_at_other_strides(name: str, layout: str) -> None:
    checked = Checked(FUNCTIONS[name])

    def change(x: torch.Tensor) -> torch.Tensor:
        return LAYOUTS[layout](x.detach()).requires_grad_(x.requires_grad)

    for where, *call in op_samples(name, torch.float32):
        args, kwargs = pytree.tree_map_only(torch.Tensor, change, call)
        checked.check(args, kwargs, torch.float32, f"{where} {layout}")
    assert checked.calls > 0
    # torch supports negative views
    assert (checked.by_kernel == 0) == (layout == "negative")


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_samples_without_elements(name: str) -> None:
    """Compare all samples without rows, or without columns if torch allows this."""
    checked, short = Checked(FUNCTIONS[name]), FUNCTIONS[name]
    # arguments that have a batch dimension
    batches = {ATTENTION: 3, CROSS_ENTROPY: 2}.get(short, 1)

    def cut(x: Any, dim: int) -> Any:
        return x.detach().narrow(dim, 0, 0).requires_grad_(x.requires_grad)

    for where, args, kwargs in op_samples(name, torch.float32):
        for dim in (0, -1):
            first = [cut(x, dim) if x.ndim else x for x in args[:batches]]
            checked.check([*first, *args[batches:]], kwargs, torch.float32, f"{where} {dim}")
    assert checked.calls > 0


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize("name", ["linear", "gelu"])
def test_outputs_are_written_where_a_call_says(name: str) -> None:
    for _, args, kwargs in op_samples(f"nn.functional.{name}", torch.float32):
        args = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        kwargs = {key: x for key, x in kwargs.items() if not isinstance(x, torch.Tensor)}
        wanted = STOCK[name](*args, **kwargs)
        memory = torch.empty_like(wanted)
        found = getattr(functional, name)(*args, **kwargs, out=memory)
        assert found is memory
        assert torch.equal(memory, wanted)


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectorized_jacobians(name: str) -> None:
    """Compare in reverse mode, for the first sample of each number of dimensions."""
    checked, ranks = Checked(FUNCTIONS[name]), set()
    for _, args, kwargs in op_samples(name, torch.float32):
        few = 0 < args[0].numel() <= 500
        if in_part(checked.short, kwargs) or args[0].ndim in ranks or not few:
            continue
        ranks.add(args[0].ndim)
        found, wanted = (
            torch.autograd.functional.jacobian(
                lambda x, function=function: function(x, *args[1:], **kwargs),  # noqa: B023
                args[0], vectorize=True,
            )
            for function in (checked.ours, checked.stock)
        )  # fmt: skip
        tolerance = max(TOLERANCE[torch.float32], LARGER.get((checked.short, torch.float32), 0))
        assert alike([found], [wanted], tolerance), args[0].shape
    assert ranks


# modules that call one of the functions, with ModuleInfo's samples
MODULES = (
    "CrossEntropyLoss", "GELU", "SiLU", "LayerNorm", "Linear", "TransformerEncoderLayer",
    "TransformerDecoderLayer", "MultiheadAttention", "TransformerEncoder", "Transformer",
    "LinearCrossEntropyLoss",
)  # fmt: skip
WITHOUT_KERNEL = {"CrossEntropyLoss": "its samples have few classes"}


def drops(module: nn.Module) -> bool:
    """Return True if a part of a module has dropout, whose masks would differ."""
    parts = [x for x in module.modules() if isinstance(x, (nn.Dropout, nn.MultiheadAttention))]
    return any(x.p if isinstance(x, nn.Dropout) else x.dropout for x in parts)


@pytest.mark.parametrize("name", MODULES)
def test_torchs_modules(name: str, request: pytest.FixtureRequest) -> None:
    check_module(name, request, most=FEW)


@pytest.mark.more
@pytest.mark.parametrize("name", MODULES)
def test_all_samples_of_torchs_modules(name: str, request: pytest.FixtureRequest) -> None:
    check_module(name, request, most=None)


def check_module(name: str, request: pytest.FixtureRequest, most: int | None) -> None:
    """Compare a module on ModuleInfo's inputs in training mode."""
    (info,) = (info for info in module_db if info.module_cls.__name__ == name)
    results = []
    for ours in (False, True):
        if ours:
            request.getfixturevalue("small_calls")
        torch.manual_seed(3)
        found = []
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        for sample in islice(samples, most):
            torch.manual_seed(4)
            made, call = sample.constructor_input, sample.forward_input
            module = info.module_cls(*made.args, **made.kwargs)
            assert not drops(module)
            found.append(outcome(module, call.args, call.kwargs))
        results.append(found)
    for number, (wanted, found) in enumerate(zip(*results, strict=True)):
        for part in refused(wanted):
            assert {(ATTENTION, part), (name, part)} & NOT_IN_TORCH.keys(), (name, part)
            del wanted[part]
        assert not compare(found, wanted, 1e-4, f"{name} {number}"), number
    assert any(found.get("kernels") for found in results[1]) != (name in WITHOUT_KERNEL)


def test_the_list_of_torchs_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """MODULES contains each module of ModuleInfo that calls one of the functions."""
    called: set[str] = set()
    for short in FUNCTIONS.values():

        def counted(*args: Any, short: str = short, **kwargs: Any) -> Any:
            called.add(short)
            return STOCK[short](*args, **kwargs)

        monkeypatch.setattr(functional, short, counted)
    modules = set()
    for info in module_db:
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        for sample in islice(samples, 1):
            called.clear()
            made, call = sample.constructor_input, sample.forward_input
            with suppress(RuntimeError):  # FractionalMaxPool's samples need another dtype
                info.module_cls(*made.args, **made.kwargs)(*call.args, **call.kwargs)
            if called:
                modules.add(info.module_cls.__name__)
    assert modules == {*MODULES}


class Layers(nn.Module):  # type: ignore[misc]
    """A model that calls each of the functions, with dropout of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor, attends: bool = True) -> torch.Tensor:
        x = functional.layer_norm(x, (8,), self.weight[0], self.bias)
        x = functional.gelu(functional.linear(x, self.weight, self.bias))
        x = functional.dropout(functional.silu(x), 0.0, True)
        if not attends:
            return x
        heads = x.view(2, 1, 4, 8)
        return functional.scaled_dot_product_attention(heads, heads, heads)


def of_transforms(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Return the results of each way to differentiate and trace a model."""
    found: dict[str, Any] = {}
    found["jit.script"] = torch.jit.script(model)(x)
    found["jit.trace"] = torch.jit.trace(model, x)(x)
    graph = torch.fx.symbolic_trace(model, concrete_args={"attends": True})
    found["fx"] = graph(x)
    found["fx code"] = [node.name for node in graph.graph.nodes]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found["forward mode"] = forward_ad.unpack_dual(model(dual, False)).tangent
    jacobian = torch.autograd.functional.jacobian
    found["jacobian"] = jacobian(model, x)
    # torch's attention has no forward-mode derivative
    found["forward jacobian"] = jacobian(
        lambda x: model(x, False), x, vectorize=True, strategy="forward-mode"
    )
    found["jacrev"] = torch.func.jacrev(model)(x)
    found["vmap"] = torch.func.vmap(model)(torch.stack([x, 2 * x]))
    return found


def test_transforms(request: pytest.FixtureRequest) -> None:
    model, x = Layers(), torch.randn(2, 4, 8)
    wanted = of_transforms(model, x)
    request.getfixturevalue("enabled")
    found = of_transforms(model, x)
    assert found.pop("fx code") == wanted.pop("fx code")
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_quantization_aware_training_by_fx(request: pytest.FixtureRequest) -> None:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, quantize_fx

    names = []
    for ours in (False, True):
        if ours:
            request.getfixturevalue("enabled")
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.SiLU(), nn.LayerNorm(8), nn.Dropout(0))
        prepared = quantize_fx.prepare_qat_fx(
            model.train(), get_default_qat_qconfig_mapping("x86"), (torch.randn(2, 8),)
        )
        prepared(torch.randn(2, 8)).sum().backward()
        names.append([node.name for node in prepared.graph.nodes])
    assert names[0] == names[1]


@pytest.mark.usefixtures("enabled")
def test_tensors_that_are_not_ordinary() -> None:
    values = torch.randn(3, 8)
    negated = torch.imag(torch.complex(values, values).conj()).requires_grad_()
    assert negated.is_neg()
    torch.testing.assert_close(functional.silu(negated), functional.silu(-values))
    nested = torch.nested.nested_tensor([values, values[:2]], requires_grad=True)
    layer = functional.linear(nested, torch.eye(8), torch.ones(8))
    torch.testing.assert_close(layer[1], values[:2] + 1)
    jagged = torch.nested.nested_tensor([values, values[:2]], layout=torch.jagged)
    torch.testing.assert_close(functional.gelu(jagged).values()[:3], functional.gelu(values))


@pytest.mark.usefixtures("enabled")
def test_queries_that_are_broadcast() -> None:
    query, key, value = attention_inputs()
    one = query[:1].detach().requires_grad_()
    found = functional.scaled_dot_product_attention(one, key, value)
    wanted = functional.scaled_dot_product_attention(one.expand(2, -1, -1, -1), key, value)
    torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_masks_of_integers_are_refused(dtype: torch.dtype) -> None:
    query, key, value = attention_inputs()
    for mask in (torch.ones(2, 1, 12, 12, dtype=dtype), torch.tensor([[[[7, 5]]]], dtype=dtype)):
        with pytest.raises(RuntimeError):
            functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        with torch.no_grad(), pytest.raises(RuntimeError):
            functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def by_numpy(mask: torch.Tensor, values: torch.Tensor) -> None:
    mask.numpy()[...] = values.numpy()


def by_data(mask: torch.Tensor, values: torch.Tensor) -> None:
    mask.data.copy_(values)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def by_inference(mask: torch.Tensor, values: torch.Tensor) -> None:
    mask.numpy()[...] = values.numpy()


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("refill", [by_numpy, by_data, by_inference])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("expanded", [True, False])
def test_masks_that_are_filled_again(refill: Any, dtype: torch.dtype, expanded: bool) -> None:
    """Use one buffer for the masks of all batches, like a script with static shapes."""
    query, key, value = attention_inputs(200)
    memory = torch.zeros(2, 1, 1 if expanded else 200, 200, dtype=dtype)
    mask = memory.expand(2, 1, 200, 200)
    for length in (50, 120, 200):
        seen = (torch.arange(200) < length).expand(memory.shape)
        refill(memory, seen if dtype == torch.bool else torch.where(seen, 0.0, -torch.inf))
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        wanted = functional.scaled_dot_product_attention(
            query, key[:, :, :length], value[:, :, :length]
        )
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_under_autocast(dtype: torch.dtype) -> None:
    """Weights are in fp32, and torch returns the dtype that it gets."""
    stock = {p.original.__name__: p.original for p in SCRIPT_FUNCTIONS}
    x, weight = torch.randn(4, 8).to(dtype).requires_grad_(), torch.ones(8, requires_grad=True)
    matrix = torch.randn(8, 8, requires_grad=True)
    calls = {"layer_norm": ((8,), weight), "linear": (matrix, weight), "gelu": (), "silu": ()}
    with torch.autocast("cpu", torch.bfloat16):
        for name, others in calls.items():
            found, wanted = (f(x, *others) for f in (getattr(functional, name), stock[name]))
            assert found.dtype == wanted.dtype, name
