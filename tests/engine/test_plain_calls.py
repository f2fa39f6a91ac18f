"""Functions that `run --fast` replaces, on torch's own samples and under its transforms.

The samples are those of OpInfo and ModuleInfo, with which torch tests its own operators.
"""

import sys
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils import _pytree as pytree

from ftcluster_train.patching.script_functions import SCRIPT_FUNCTIONS
from tests.engine.test_fast import attention_inputs, enabled  # noqa: F401 - a fixture

expecttest = types.ModuleType("expecttest")  # torch's wheel does not bring it
expecttest.TestCase = unittest.TestCase  # type: ignore[attr-defined]
sys.modules.setdefault("expecttest", expecttest)
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

# OpInfo's names of the functions that are replaced
FUNCTIONS = {
    f"nn.functional.{patch.original.__name__}": patch.original.__name__
    for patch in SCRIPT_FUNCTIONS
    if patch.owner is functional
}
FEW = 6  # samples of each operator and dtype; the mark `more` has all of them
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
# modules that call one of these functions
MODULES = (
    "CrossEntropyLoss", "GELU", "SiLU", "LayerNorm", "Linear", "TransformerEncoderLayer",
    "TransformerDecoderLayer", "MultiheadAttention",
)  # fmt: skip
# samples whose results are random, so that only their shape and dtype can be compared
RANDOM: dict[str, Callable[..., bool]] = {
    "dropout": lambda *_, **__: True,
    "scaled_dot_product_attention": lambda *_, **options: options.get("dropout_p", 0) > 0,
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The value, gradients and second derivatives of a call, or the type of its error."""
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), (args, kwargs)
    )
    torch.manual_seed(1)
    try:
        output = function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
    results = tensors_of(output)
    leaves = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
    learned = [x for x in results if x.requires_grad]
    if not learned or not leaves:
        return [x.detach() for x in results]
    first = torch.autograd.grad(
        [x.float().square().sum() if x.dtype == torch.bfloat16 else x.square().sum()
         for x in learned], leaves, create_graph=True, allow_unused=True,
    )  # fmt: skip
    known = [x for x in first if x is not None]
    twice = [x.square().sum() for x in known if x.requires_grad]
    try:
        second = torch.autograd.grad(twice, leaves, allow_unused=True) if twice else ()
    except RuntimeError:  # torch's own attention has none
        return [*results, *known]
    return [*results, *known, *(x for x in second if x is not None)]


def compare(found: Any, wanted: Any, exact: bool, tolerance: float, what: str) -> None:
    assert type(found) is type(wanted), (what, found, wanted)
    if isinstance(wanted, str):
        assert found == wanted, what
        return
    assert len(found) >= len(wanted), what
    for one, other in zip(found, wanted, strict=False):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), what
        if exact:
            torch.testing.assert_close(
                one, other, rtol=tolerance, atol=tolerance * (1 + float(other.detach().abs().amax())
                if other.numel() else 1), equal_nan=True, msg=lambda text: f"{what}: {text}",
            )  # fmt: skip


def op_samples(name: str, dtype: torch.dtype) -> Iterator[Any]:
    for op in op_db:
        if op.name == name and not op.variant_test_name and dtype in op.dtypes:
            yield from op.sample_inputs("cpu", dtype, requires_grad=True)


def check_function(name: str, dtype: torch.dtype, most: int | None, context: Any) -> int:
    short = FUNCTIONS[name]
    ours = getattr(functional, short)
    stock = next(p.original for p in SCRIPT_FUNCTIONS if p.original.__name__ == short)
    assert ours is not stock
    count = 0
    for number, sample in enumerate(op_samples(name, dtype)):
        if most is not None and number >= most:
            break
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        exact = short not in RANDOM or not RANDOM[short](*args, **kwargs)
        with context():
            found, wanted = (outcome(function, args, kwargs) for function in (ours, stock))
        tolerance = TOLERANCE[torch.bfloat16 if context is not nullcontext else dtype]
        if short == "layer_norm":  # a row of one value is divided by sqrt(eps): 300 times as much
            tolerance = max(tolerance, 1e-3)
        compare(found, wanted, exact, tolerance, f"{name} {number} {dtype}")
        count += 1
    return count


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("context", [nullcontext, autocast])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_samples(name: str, context: Any) -> None:
    counts = [check_function(name, dtype, FEW, context) for dtype in DTYPES]
    assert sum(counts) > 0


@pytest.mark.more
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("context", [nullcontext, autocast])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_of_torchs_samples(name: str, context: Any) -> None:
    assert sum(check_function(name, dtype, None, context) for dtype in DTYPES) > 0


@pytest.mark.parametrize("name", MODULES)
def test_torchs_modules(name: str, request: pytest.FixtureRequest) -> None:
    """Modules on ModuleInfo's inputs, in training, without dropout."""
    (info,) = (info for info in module_db if info.module_cls.__name__ == name)
    results = []
    for ours in (False, True):
        if ours:
            request.getfixturevalue("enabled")
        torch.manual_seed(3)
        found = []
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        for number, sample in enumerate(inputs):
            if number == FEW:
                break
            torch.manual_seed(4)
            made = sample.constructor_input
            module = info.module_cls(*made.args, **made.kwargs)
            for part in module.modules():
                if isinstance(part, (nn.Dropout, nn.MultiheadAttention)):
                    vars(part)["p" if isinstance(part, nn.Dropout) else "dropout"] = 0.0
            call = sample.forward_input
            found.append(outcome(module, call.args, call.kwargs))
        results.append(found)
    for number, (wanted, found) in enumerate(zip(*results, strict=True)):
        compare(found, wanted, True, 1e-4, f"{name} {number}")


class Layers(nn.Module):  # type: ignore[misc]
    """Calls each of the functions; dropout drops nothing."""

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
    """What ways to differentiate and to trace make of a model."""
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
    # torch's attention has no forward derivative
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
    """One buffer for the masks of all batches, as a script with a static shape has it."""
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
    """Weights are in fp32; torch returns what it gets."""
    stock = {p.original.__name__: p.original for p in SCRIPT_FUNCTIONS}
    x, weight = torch.randn(4, 8).to(dtype).requires_grad_(), torch.ones(8, requires_grad=True)
    matrix = torch.randn(8, 8, requires_grad=True)
    calls = {"layer_norm": ((8,), weight), "linear": (matrix, weight), "gelu": (), "silu": ()}
    with torch.autocast("cpu", torch.bfloat16):
        for name, others in calls.items():
            found, wanted = (f(x, *others) for f in (getattr(functional, name), stock[name]))
            assert found.dtype == wanted.dtype, name
