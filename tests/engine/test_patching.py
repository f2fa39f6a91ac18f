"""The entries of `ftcluster_train.patching`: each has a guard, or a reason to have none."""

import inspect
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from ftcluster_kernels import simd
from ftcluster_kernels.linear import torch_linear
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching import shared_entries
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from ftcluster_train.patching.registry import FunctionPatch, ObjectPatch, always, computes_same
from ftcluster_train.patching.script_functions import SCRIPT_FUNCTIONS
from ftcluster_train.patching.script_models import activation_patches
from ftcluster_train.patching.shared_entries import (
    FUSED_MLPS,
    FUSED_RMS_NORMS,
    FUSED_TANH_GELUS,
    ROTARY_FUNCTION,
    ROTARY_POSITIONS,
)
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS
from tests.engine.models import make_model

# functions whose replacement is right for every call, with the reasons
UNGUARDED = {
    torch_linear: "what is not in bf16 and has no adapter is torch's product, but for rows that "
    "nothing reads, whose guard is that of SKIPPED_ROWS",
    **{
        patch.original: "the class is transformers', and a subclass with another forward pass "
        "does not call this one"
        for patch in activation_patches()
    },
}


class Task:
    """A task without its own loss."""

    large_vocabulary = False
    reads_padding = True

    def use_fused_loss(self, _: Any) -> None:
        return None


def test_each_entry_has_a_guard() -> None:
    model = make_model("gpt2", "causal-lm")
    training = patch_model(model, Task(), True, Optimizations(), ProgressLog()).patches
    entries = (*training, *SCRIPT_FUNCTIONS, *activation_patches())
    assert {patch.original for patch in entries if patch.guard is always} == UNGUARDED.keys()
    assert len(entries) > 15


# changes whose guard does not compare results, with the reasons
NOT_COMPARED = {
    SKIPPED_ROWS: "classes of transformers alone, with their own forward passes and no hooks of "
    "others, looked at before each call; tests know that nothing of these is read",
    FUSED_TANH_GELUS: "two classes of transformers",
}


@pytest.fixture
def _transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore transformers' own functions, which an earlier test may have replaced."""
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and hasattr(module, ROTARY_FUNCTION):
            monkeypatch.setattr(
                module, ROTARY_FUNCTION, inspect.unwrap(getattr(module, ROTARY_FUNCTION))
            )


FUSIONS = (FUSED_TANH_GELUS, FUSED_MLPS, FUSED_RMS_NORMS, ROTARY_POSITIONS)
# number of fused modules: Gemma's norms add 1 to the weight, Phi-3's MLPs have other layers
PLACES = {
    "llama": [0, 2, 5, 1], "qwen2": [0, 2, 5, 1], "qwen3": [0, 2, 9, 1], "mistral": [0, 2, 5, 1],
    "gemma": [0, 2, 0, 1], "gemma2": [0, 2, 0, 1], "gemma3_text": [0, 2, 0, 1],
    "phi3": [0, 0, 5, 1], "gpt2": [2, 0, 0, 0],
}  # fmt: skip
TINY = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0,
    # five times the default, because activations are almost linear near 0
    "initializer_range": 0.1,
}  # fmt: skip


@pytest.mark.needs("avx2", "compiler")  # then the package has the loops
@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("architecture", PLACES)
def test_models_with_fused_modules(architecture: str) -> None:
    """Weights stay, gradients are equal up to rounding, and nothing is fused twice."""
    config = AutoConfig.for_model(architecture, **TINY)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    names, tokens = list(model.state_dict()), torch.arange(24).view(2, 12)

    def gradients(autocast: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        found = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([one.flatten() for one in found])

    before = [gradients(autocast) for autocast in (False, True)]
    assert [fusion.apply(model) for fusion in FUSIONS] == PLACES[architecture]
    assert [fusion.apply(model) for fusion in FUSIONS] == [0] * len(FUSIONS)
    assert list(model.state_dict()) == names
    after = [gradients(autocast) for autocast in (False, True)]
    for one, other, off in zip(after, before, (1e-5, 2e-2), strict=True):
        assert (one - other).norm() < off * other.norm()


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.usefixtures("_transformers")
def test_changes_of_models_are_compared(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    """If one change is found to alter results, no other change is made."""
    for room in (shared_entries,):
        monkeypatch.setattr(room, "computes_same", lambda *_, **__: same)
    monkeypatch.setattr(simd, "is_available", lambda: True)
    models = make_model("llama", "causal-lm"), make_model("gpt2", "causal-lm"), make_model("bert")
    made = {
        patch for patch in (SKIPPED_ROWS, *FUSIONS) for model in models if [*patch.guard(model)]
    }
    assert made == ({SKIPPED_ROWS, *FUSIONS} if same else NOT_COMPARED.keys())


def test_an_entry_without_a_guard_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="guard"):
        FunctionPatch(functional, functional.gelu, kernel=functional.silu)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="guard"):
        ObjectPatch(change=print)  # type: ignore[call-arg]


@pytest.mark.parametrize(("why_not", "called"), [(None, "kernel"), ("", "torch"), ("so", "torch")])
def test_the_guard_decides(why_not: str | None, called: str) -> None:
    said: list[str] = []
    entry = FunctionPatch(torch, lambda _: "torch", lambda _: why_not, lambda _: "kernel")
    assert entry.function(said.append)(1) == called
    assert said == ([why_not] if why_not else [])
    entry = replace(entry, fallback=lambda _: "fallback")
    assert entry.function()(1) == called.replace("torch", "fallback")


@pytest.mark.parametrize(
    "other",
    [torch.cos, lambda x: x.sin().double(), lambda x: (x.sin(),), lambda x: x.missing, torch.add],
    ids=["another function", "another dtype", "a tuple", "an attribute", "another argument"],
)
def test_functions_that_differ(other: Any) -> None:
    values = torch.linspace(0, 1, 5)
    assert computes_same(torch.sin, torch.sin, values, rtol=0, atol=0)
    assert not computes_same(torch.sin, other, values, rtol=1e-5, atol=1e-5)
