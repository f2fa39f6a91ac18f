"""MLPs in one loop: the modules that use it, and that their results are unchanged."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, T5Config, activations
from transformers.models.mt5.modeling_mt5 import MT5DenseActDense, MT5DenseGatedActDense
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense
from transformers.models.umt5.modeling_umt5 import UMT5DenseActDense, UMT5DenseGatedActDense

from ftcluster_train.patching.patch_model import kernels_in_use
from ftcluster_train.patching.registry import ObjectPatch
from ftcluster_train.patching.shared_entries import (
    EXACT_MLPS,
    FUSED_MLPS,
    FUSED_TANH_GELUS,
    FusedForward,
)

TINY = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0,
    # five times the default, because activations are almost linear near 0
    "initializer_range": 0.1,
}  # fmt: skip
# Phi-3's MLPs have other layers; GPT-2's MLPs have no gate but an activation of transformers
COUNTS = {
    "llama": 2, "qwen2": 2, "qwen3": 2, "mistral": 2, "gemma": 2, "gemma2": 2, "gemma3_text": 2,
    "phi3": 0, "gpt2": 2,
}  # fmt: skip
architectures = pytest.mark.parametrize("architecture", COUNTS)
TOKENS = torch.arange(32).view(2, 16)


def fuse_activations(model: nn.Module) -> int:
    """Fuse activations as a training does; return the number of fused modules."""
    return FUSED_TANH_GELUS.apply(model) + FUSED_MLPS.apply(model)


def make_model(architecture: str) -> PreTrainedModel:
    """Return a model in fp32 with random weights that bf16 can represent."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(architecture, **TINY)
    return AutoModelForCausalLM.from_config(config).eval().bfloat16().float()


def mlp_gradients(loss: torch.Tensor, model: nn.Module) -> dict[str, torch.Tensor]:
    loss.backward()
    return {n: one.grad.double() for n, one in model.named_parameters() if ".mlp." in n}


@pytest.mark.needs("avx2", "compiler")
@architectures
def test_gradients_of_a_model_in_bf16(architecture: str) -> None:
    """Gradients are as close to fp32 as bf16 allows; without fusion the error is 0.9 to 1.8 %.

    A rounding is off by up to 2^-8, or 0.4 %, and dozens precede each gradient.
    """
    exact, model = make_model(architecture), make_model(architecture).bfloat16()
    fuse_activations(model)
    loss = model(input_ids=TOKENS, labels=TOKENS).loss
    assert ("activations" in kernels_in_use(loss, model)) == (COUNTS[architecture] > 0)
    found = mlp_gradients(loss, model)
    wanted = mlp_gradients(exact(input_ids=TOKENS, labels=TOKENS).loss, exact)
    for name, one in wanted.items():
        assert float((found[name] - one).norm() / one.norm()) < 0.02, name


class Mlp(nn.Module):  # type: ignore[misc]
    """A gated MLP with the structure of most models."""

    def __init__(self, act_fn: nn.Module | None = None, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(6, 10, bias=bias)
        self.up_proj = nn.Linear(6, 10, bias=bias)
        self.down_proj = nn.Linear(10, 6, bias=bias)
        self.act_fn = nn.SiLU() if act_fn is None else act_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Norm(Mlp):
    """A gated MLP behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)


class Weighted(Mlp):
    """A gated MLP with an additional weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))


class ScaledByDefault(Mlp):
    """A class with a default setting that single modules may override."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


Forward = Callable[[Mlp, torch.Tensor], object]


def mlp_with(forward: Forward) -> Mlp:
    """Return a module of a class with another forward pass."""
    kind = type("Other", (Mlp,), {"forward": forward})
    module: Mlp = kind()
    return module


OTHERS: dict[str, Forward] = {
    "scales the gate": lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x) * 0.9) * m.up_proj(x)),
    "scales the output": lambda m, x: Mlp.forward(m, x) * 1.01,
    "activates the product": lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x) * m.up_proj(x))),
    "activates nothing": lambda m, x: m.down_proj(m.gate_proj(x) * m.up_proj(x)),
    "cuts": lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x)).clamp(max=1) * m.up_proj(x)),
    "drops": lambda m, x: functional.dropout(Mlp.forward(m, x), 0.1, m.training),
    "drops as it was told": lambda m, x: functional.dropout(Mlp.forward(m, x), m.p, m.training),
    "adds": lambda m, x: x + Mlp.forward(m, x),
    "takes one token": lambda m, x: Mlp.forward(m, x[:, :1]),
    "raises": lambda m, x: m.experts(x),
    "activates the other one": lambda m, x: m.down_proj(m.gate_proj(x) * m.act_fn(m.up_proj(x))),
    "has one product": lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x)) * m.gate_proj(x)),
    "returns two": lambda m, x: (Mlp.forward(m, x), None),
    "returns a shape": lambda m, x: Mlp.forward(m, x).shape,
    "returns fp64": lambda m, x: Mlp.forward(m, x).double(),
    "cuts what is large": lambda m, x: m.down_proj(
        m.act_fn(m.gate_proj(x).clamp(max=10)) * m.up_proj(x)
    ),
    "computes something else after training": lambda m, x: (
        Mlp.forward(m, x) * (1 if m.training else 2)
    ),
}


def check_left_alone(module: nn.Module) -> None:
    assert fuse_activations(nn.Sequential(module)) == 0
    assert "forward" not in vars(module)


@pytest.mark.parametrize("forward", OTHERS.values(), ids=OTHERS)
def test_a_class_that_computes_something_else(forward: Forward) -> None:
    check_left_alone(mlp_with(forward))


@pytest.mark.parametrize("kind", [Norm, Weighted, ScaledByDefault])
def test_a_class_with_further_weights_or_settings(kind: type[Mlp]) -> None:
    check_left_alone(kind())


def test_an_activation_stays_in_its_mode() -> None:
    module = Mlp()
    fuse_activations(nn.Sequential(module))
    assert module.act_fn.training


def test_a_module_whose_forward_pass_was_replaced() -> None:
    """Libraries replace a forward pass, or move weights before each call."""
    module = Mlp()
    module.forward = lambda x: x
    fuse_activations(nn.Sequential(module))
    assert torch.equal(module(torch.ones(2, 6)), torch.ones(2, 6))


def test_the_name_of_the_argument() -> None:
    class Named(Mlp):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states)

    module, values = Named(), torch.randn(2, 6)
    before = module(hidden_states=values)
    fuse_activations(module)
    torch.testing.assert_close(module(hidden_states=values), before)


@pytest.mark.parametrize(
    ("activation", "count"),
    [
        (nn.SiLU(), 1), (nn.SiLU(inplace=True), 1), (nn.GELU(), 1), (nn.GELU("tanh"), 1),
        # the activation itself is replaced too
        (activations.NewGELUActivation(), 2), (activations.FastGELUActivation(), 2),
        (activations.GELUTanh(), 1), (activations.QuickGELUActivation(), 0),
        (nn.ReLU(), 1), (nn.Mish(), 0), (nn.Identity(), 0), (nn.PReLU(), 0),
    ],
    ids=str,
)  # fmt: skip
def test_activations(activation: nn.Module, count: int) -> None:
    """The C loop supports these activations; layers may have a bias."""
    module, values = Mlp(activation, bias=True), torch.randn(2, 3, 6)
    before = module(values)
    assert fuse_activations(module) == count
    assert ("forward" in vars(module)) == (count > 0)
    torch.testing.assert_close(module(values), before)


# classes of transformers with dropout, and the names of activations that they may have
DROPPED = [
    (kind, activation)
    for kind in (T5DenseActDense, MT5DenseActDense, UMT5DenseActDense)
    for activation in ("relu", "gelu_new", "silu")
] + [
    (kind, activation)
    for kind in (T5DenseGatedActDense, MT5DenseGatedActDense, UMT5DenseGatedActDense)
    for activation in ("relu", "gelu_new", "silu")
]


def make_dropped(kind: type[nn.Module], activation: str, p: float = 0.25) -> nn.Module:
    """Return an MLP whose last layer returns its input."""
    config = T5Config(d_model=32, d_ff=32, dense_act_fn=activation, dropout_rate=p)
    torch.manual_seed(2)
    module = kind(config)
    module.wo.weight = nn.Parameter(torch.eye(32))
    return module


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.parametrize(("kind", "activation"), DROPPED)
@pytest.mark.parametrize("entry", [FUSED_MLPS, EXACT_MLPS], ids=["train", "scripts"])
def test_an_mlp_with_dropout(
    kind: type[nn.Module], activation: str, entry: ObjectPatch[FusedForward]
) -> None:
    """Each element is 0 or scaled, and gradients belong to the elements that are kept."""
    plain, module = make_dropped(kind, activation).eval(), make_dropped(kind, activation)
    assert entry.apply(module) == 1
    values, grad = torch.randn(64, 32), torch.randn(64, 32)
    before, found = plain(values), module(values)
    assert "activations" in kernels_in_use(found.sum(), module)
    kept = found != 0
    assert 0.15 < 1 - float(kept.sum() / (before != 0).sum()) < 0.35
    ratio = (found / before)[kept]
    torch.testing.assert_close(ratio, torch.full_like(ratio, float(ratio.median())))
    assert abs(float(ratio.median()) - 1 / 0.75) < (1e-6 if entry is EXACT_MLPS else 0.01)
    found.backward(grad)
    before.backward(grad * kept * ratio.median())
    inner = [name for name, _ in module.named_parameters() if name.startswith("wi")]
    for name in inner:
        wanted = plain.get_parameter(name).grad
        torch.testing.assert_close(module.get_parameter(name).grad, wanted, rtol=1e-4, atol=1e-4)
    # evaluation drops nothing
    torch.testing.assert_close(module.eval()(values), before)


OTHER_PLACES: dict[str, Forward] = {
    "drops the input": lambda m, x: m.wo(m.act(m.wi(m.dropout(x)))),
    "drops before the activation": lambda m, x: m.wo(m.act(m.dropout(m.wi(x)))),
    "drops the output": lambda m, x: m.dropout(m.wo(m.act(m.wi(x)))),
    "drops twice": lambda m, x: m.wo(m.dropout(m.dropout(m.act(m.wi(x))))),
    "drops nothing": lambda m, x: m.wo(m.act(m.wi(x))),
}


@pytest.mark.parametrize("forward", OTHER_PLACES.values(), ids=OTHER_PLACES)
def test_a_class_that_drops_elsewhere(forward: Forward) -> None:
    kind = type("Other", (T5DenseActDense,), {"forward": forward})
    check_left_alone(kind(T5Config(d_model=32, d_ff=32)))


def test_a_dropout_that_a_script_replaces_later() -> None:
    class Doubled(nn.Dropout):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    module, values = make_dropped(T5DenseActDense, "relu"), torch.randn(4, 32)
    FUSED_MLPS.apply(module)
    module.dropout = Doubled(0.25)
    for _ in range(2):
        torch.testing.assert_close(module(values), 2 * functional.relu(module.wi(values)))
        module.eval()
    module.train()
    module.dropout = nn.Dropout(0.25)
    module.dropout.forward = lambda x: 3 * x
    torch.testing.assert_close(module(values), 3 * functional.relu(module.wi(values)))
    module.dropout = nn.Dropout(1.0)
    assert not module(values).any()


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
def test_a_copy_computes_with_its_own_layers(make_copy: Callable[[nn.Module], nn.Module]) -> None:
    model = make_model("llama")
    fuse_activations(model)
    before = model(input_ids=TOKENS).logits
    other = make_copy(model)
    for name, weight in other.named_parameters():
        if ".mlp." in name:
            nn.init.normal_(weight)
    plain = make_model("llama")
    plain.load_state_dict(other.state_dict())
    torch.testing.assert_close(other(input_ids=TOKENS).logits, plain(input_ids=TOKENS).logits)
    assert torch.equal(model(input_ids=TOKENS).logits, before)
