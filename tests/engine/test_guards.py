"""Unknown models: loss and all gradients equal the results without our kernels.

Each case changes a class of transformers as users do, or is a new class. It takes one step without
changes, one with the changes of `ftcluster train`, and one with the changes of `ftcluster run
--fast`.
"""

import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from ftcluster_train.engine.optim.flat_params import FlatWeights
from ftcluster_train.engine.optim.gradient_buckets import GradientBuckets
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.step import enable_gradient_checkpointing
from ftcluster_train.patching.kernel_mode import KernelMode, find_head
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.beside import COMPARED
from tests.engine.test_fast import enabled, said  # noqa: F401 - fixtures

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.2,
    "pad_token_id": 0, "max_position_embeddings": 32,
}  # fmt: skip
LLAMA = LlamaConfig(**SMALL)
Gradients = dict[str, torch.Tensor]


class OwnConfig(PreTrainedConfig):  # type: ignore[misc]
    model_type = "an-own-one"


class OddRMSNorm(nn.Module):  # type: ignore[misc]
    """A norm with a known name and known fields that computes the mean of absolute values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.linspace(0.5, 2, size)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)


class CappedMLP(nn.Module):  # type: ignore[misc]
    """An MLP with known layers that clamps the values between them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, 48, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(48, size, bias=False), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(between.clamp(-0.1, 0.1))


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """A function with a known name that rotates only queries."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    half = torch.cat((-q[..., q.shape[-1] // 2 :], q[..., : q.shape[-1] // 2]), -1)
    return q * cos + half * sin, k


class OwnModel(PreTrainedModel):  # type: ignore[misc]
    """A new architecture whose weights are also used outside of layers."""

    config_class = OwnConfig

    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config)
        self.embed, self.norm, self.mlp = nn.Embedding(64, 32), OddRMSNorm(32), CappedMLP(32)
        self.qkv = nn.Linear(32, 96)
        self.decay = nn.Parameter(torch.linspace(-1, 1, 32))
        self.head = nn.Linear(32, 64)
        self.post_init()

    def forward(self, input_ids: Any, labels: Any = None, **_: Any) -> Any:
        hidden = self.embed(input_ids) * self.decay.exp()
        q, k, v = self.qkv(self.norm(hidden)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        angles = torch.linspace(0, 3, hidden.shape[1] * 8).view(1, -1, 8)
        q, k = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + mixed.transpose(1, 2).flatten(2)
        hidden = functional.layer_norm(self.mlp(self.norm(hidden)), (32,)) + hidden
        logits = self.head(hidden) + self.embed.weight.sum(1)
        return (functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


def own() -> PreTrainedModel:
    return OwnModel(OwnConfig())


class ScaledLlama(LlamaForCausalLM):  # type: ignore[misc]
    """A subclass whose forward pass uses the stock layers for another computation."""

    def forward(self, input_ids: Any, labels: Any = None, **_: Any) -> Any:
        hidden = self.model(input_ids=input_ids).last_hidden_state
        logits = self.lm_head(hidden.cumsum(1)) / 3
        return (functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


class MaskedLlamaMLP(nn.Module):  # type: ignore[misc]
    """An MLP that equals the stock MLP only during evaluation and for ordinary numbers."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            stock.gate_proj, stock.up_proj, stock.down_proj,
        )  # fmt: skip
        self.act_fn = stock.act_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.arange(x.shape[1]) % 2 if self.training else torch.ones(x.shape[1])
        gate = self.act_fn(self.gate_proj(x)) * kept.to(x.dtype)[:, None]
        return self.down_proj(gate * self.up_proj(x))


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LLAMA)


def with_masked_mlps() -> PreTrainedModel:
    model = llama()
    for layer in model.model.layers:
        layer.mlp = MaskedLlamaMLP(layer.mlp)
    return model


def with_renamed_layers() -> PreTrainedModel:
    model = llama()
    for layer in model.model.layers:
        norm = layer.input_layernorm
        norm.scale = norm.weight
        del norm.weight
        norm.forward = lambda x, n=norm: functional.rms_norm(x, (32,), n.scale, 1e-6)
    return model


def with_hooks(kind: str) -> PreTrainedModel:
    """Add hooks that change values to all modules, also to modules that a fusion would skip."""
    model = llama()

    def scale(numbers: Any, factor: float) -> Any:
        return tuple(None if one is None else one * factor for one in numbers)

    for module in model.modules():
        if type(module).__name__ in ("LlamaRMSNorm", "LlamaMLP", "SiLUActivation", "Linear"):
            if kind == "forward":
                module.register_forward_hook(lambda *call: call[-1] * 1.5)
            elif kind == "pre":
                module.register_forward_pre_hook(lambda _, args: scale(args, 0.7))
            elif kind == "backward":
                module.register_full_backward_hook(lambda _, inputs, __: scale(inputs, 0.5))
            else:
                module.register_full_backward_pre_hook(lambda _, outputs: scale(outputs, 0.5))
    return model


REMOTE = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

class RemoteRMSNorm(nn.Module):
    def __init__(self, stock):
        super().__init__()
        self.weight, self.variance_epsilon = stock.weight, stock.variance_epsilon

    def forward(self, x):
        return self.weight * torch.tanh(x) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

class RemoteLlama(LlamaForCausalLM):
    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.input_layernorm = RemoteRMSNorm(layer.input_layernorm)
"""


def remote(folder: Path) -> PreTrainedModel:
    """Load code that is stored beside the weights, as trust_remote_code does."""
    config = copy.deepcopy(LLAMA)
    config.auto_map = {"AutoModelForCausalLM": "modeling.RemoteLlama"}
    config.save_pretrained(folder)
    (folder / "modeling.py").write_text(REMOTE)
    made(llama).save_pretrained(folder)
    config.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def with_adapters() -> PreTrainedModel:
    sys.path.append(COMPARED)
    try:
        peft = importlib.import_module("peft")
    finally:
        sys.path.remove(COMPARED)
    config = peft.LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(llama(), config)


OWN: dict[str, Callable[[], PreTrainedModel]] = {
    "an architecture of one's own": own,
    "a subclass with another forward pass": lambda: ScaledLlama(LLAMA),
    "an MLP that differs in training": with_masked_mlps,
    "renamed weights": with_renamed_layers,
    "forward hooks": lambda: with_hooks("forward"),
    "forward pre-hooks": lambda: with_hooks("pre"),
    "backward hooks": lambda: with_hooks("backward"),
    "backward pre-hooks": lambda: with_hooks("backward pre"),
    "tied weights": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "adapters of PEFT": with_adapters,
    "GPT-2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                   attn_pdrop=0.0, embd_pdrop=0.0)
    ),
}  # fmt: skip


class Task:
    """A task whose model computes the loss."""

    large_vocabulary = False
    reads_padding = True

    def use_fused_loss(self, _: Any) -> None:
        return None


def step(model: nn.Module, context: Any = None, bf16: bool = False) -> Gradients:
    """Return the loss and the gradients of a step."""
    model.train().zero_grad()
    with context or torch.enable_grad():
        loss = loss_of(model, bf16)
        loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **grads}


def loss_of(model: nn.Module, bf16: bool) -> torch.Tensor:
    torch.manual_seed(2)
    tokens = torch.randint(1, 64, (3, 16))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        output = model(input_ids=tokens, labels=tokens)
    loss: torch.Tensor = output[0]
    return loss


def differing(found: Gradients, stock: Gradients) -> dict[str, float]:
    """Return relative errors of the results that differ by more than rounding."""
    assert found.keys() == stock.keys()
    assert len(stock) > 5
    floor = 1e-6 * max(float(one.norm()) for one in stock.values())
    errors = {name: float((found[name] - one).norm()) for name, one in stock.items()}
    return {n: e for n, e in errors.items() if e > 1e-4 * float(stock[n].norm()) + floor}


def patched(model: nn.Module) -> KernelMode:
    """Apply the changes of `train`, and yield the context of its training."""
    return patch_model(model, Task(), True, Optimizations(), ProgressLog())


def made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(1)
    return make()


of_cases = pytest.mark.parametrize("make", OWN.values(), ids=OWN.keys())


@of_cases
def test_train(make: Callable[[], PreTrainedModel]) -> None:
    stock, model = step(made(make)), made(make)
    assert differing(step(model, patched(model)), stock) == {}


@of_cases
def test_run_fast(make: Callable[[], PreTrainedModel], request: pytest.FixtureRequest) -> None:
    stock = step(made(make))
    request.getfixturevalue("enabled")
    assert differing(step(made(make)), stock) == {}


def test_code_beside_the_weights(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """trust_remote_code imports such code from a package outside of transformers."""
    model = remote(tmp_path)
    assert type(model).__module__.startswith("transformers_modules.")
    stock, trained = step(model), copy.deepcopy(model)
    assert differing(step(trained, patched(trained)), stock) == {}
    request.getfixturevalue("enabled")
    assert differing(step(remote(tmp_path)), stock) == {}


def test_gradient_checkpointing(request: pytest.FixtureRequest) -> None:
    stock, model = step(made(llama)), made(llama)
    kernels = patched(model)
    enable_gradient_checkpointing(model, kernels)
    assert differing(step(model, kernels), stock) == {}
    request.getfixturevalue("enabled")
    for reentrant in (False, True):
        model = made(llama)
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        assert differing(step(model), stock) == {}


def test_a_compiled_model(request: pytest.FixtureRequest) -> None:
    """Compile the model before the kernels are enabled, and after."""

    def compiled() -> Any:
        return torch.compile(made(own), backend="eager")

    stock, before = step(made(own)), compiled()
    request.getfixturevalue("enabled")
    for model in (before, compiled()):
        found = step(model)
        assert differing({n.removeprefix("_orig_mod."): g for n, g in found.items()}, stock) == {}


@pytest.mark.usefixtures("world")
def test_a_model_under_ddp(request: pytest.FixtureRequest) -> None:
    """Wrap the model with DDP before the kernels are enabled, and after."""
    stock, before = step(made(llama)), DistributedDataParallel(made(llama))
    request.getfixturevalue("enabled")
    for model in (before, DistributedDataParallel(made(llama))):
        found = step(model)
        assert differing({n.removeprefix("module."): g for n, g in found.items()}, stock) == {}


def hook_activations(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn.register_forward_hook(lambda *call: call[-1] * 1.5)


def replace_activations(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.Tanh()


def set_epsilons(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.input_layernorm.variance_epsilon = 0.5


@pytest.mark.parametrize("change", [hook_activations, replace_activations, set_epsilons])
def test_a_change_of_a_model_that_is_fused_already(
    change: Callable[[PreTrainedModel], None], request: pytest.FixtureRequest
) -> None:
    model = made(llama)
    change(model)
    stock, trained = step(model), made(llama)
    kernels = patched(trained)
    change(trained)
    assert differing(step(trained, kernels), stock) == {}
    request.getfixturevalue("enabled")
    model = made(llama)
    step(model)
    change(model)
    assert differing(step(model), stock) == {}


def test_hooks_see_nothing_but_the_model_s_own_numbers(request: pytest.FixtureRequest) -> None:
    """Hooks do not see the trial calls of the guards."""
    request.getfixturevalue("enabled")
    model, seen = made(llama), []
    for module in model.modules():
        module.register_forward_hook(lambda *call: seen.append(type(call[0]).__name__))
    patched(copy.deepcopy(model))
    assert seen == []
    step(model)
    assert seen.count("LlamaRMSNorm") == 5
    assert seen.count("LlamaMLP") == seen.count("SiLUActivation") == 2


def trained_in_bf16(model: PreTrainedModel) -> Gradients:
    """Use bf16 copies of the weights, as `train` does."""
    names = {p: name for name, p in model.named_parameters()}
    kernels = patched(model.train())
    weights = FlatWeights(model, torch.bfloat16)
    buckets = GradientBuckets(weights, 1)
    with kernels:
        loss = loss_of(model, bf16=True)
        buckets.start_backward(last=True)
        loss.backward()
    flat = buckets.wait()
    found = {names[p]: flat[place].view(p.shape) for p, place in weights.layout.slices.items()}
    return {"loss": loss.detach(), **found}


OF_BF16 = {n: OWN[n] for n in ("an architecture of one's own", "forward hooks", "tied weights")}


@pytest.mark.parametrize("make", OF_BF16.values(), ids=OF_BF16.keys())
def test_bf16(make: Callable[[], PreTrainedModel], request: pytest.FixtureRequest) -> None:
    """Errors compared with fp32 are as large as with autocast and without our kernels."""
    exact, stock = step(made(make)), step(made(make), bf16=True)
    ways = [trained_in_bf16(made(make))]
    request.getfixturevalue("enabled")
    ways.append(step(made(make), bf16=True))
    floor = 1e-3 * max(float(one.norm()) for one in exact.values())
    for found in ways:
        assert found.keys() >= exact.keys()
        for name, one in exact.items():
            of_stock, ours = (float((of[name].float() - one).norm()) for of in (stock, found))
            assert ours < 2 * of_stock + 0.02 * one.norm() + floor, name


class CutLlama(LlamaForCausalLM):  # type: ignore[misc]
    """A model whose vocabulary is smaller than its last layer."""

    def forward(self, *args: Any, **named: Any) -> Any:
        output = super().forward(*args, **named)
        output.logits = output.logits[..., :60]
        return output


class BiasedLlama(LlamaForCausalLM):  # type: ignore[misc]
    def forward(self, *args: Any, **named: Any) -> Any:
        output = super().forward(*args, **named)
        output.logits = output.logits + torch.arange(64)
        return output


def with_hooked_head() -> PreTrainedModel:
    model = llama()
    model.lm_head.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "make", [lambda: CutLlama(LLAMA), lambda: BiasedLlama(LLAMA), with_hooked_head],
    ids=["cut", "biased", "hooked"],
)  # fmt: skip
def test_heads_whose_logits_are_needed(make: Callable[[], PreTrainedModel]) -> None:
    assert find_head(made(llama)) is not None
    assert find_head(made(make)) is None


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.usefixtures("enabled")
def test_what_is_in_use_and_what_not_is_said(request: pytest.FixtureRequest) -> None:
    look = request.getfixturevalue("said")
    step(made(own), bf16=True)
    assert look() == [
        "kernels in use: activations, attention",
        "OddRMSNorm uses its own code, because the kernel computes a different norm; "
        "CappedMLP uses its own code, because its layers or its activation have no kernel",
    ]
    model = made(llama)
    step(model, bf16=True)
    step(model, bf16=True)
    assert look() == ["kernels in use: activations, attention, norm, rotary"]
    step(LlamaForCausalLM._from_config(LLAMA, attn_implementation="eager"), bf16=True)
    assert look() == [
        "kernels in use: activations, norm, rotary",
        "LlamaAttention uses torch's attention: attn_implementation=eager does not call the "
        "function that the kernel replaces",
    ]
