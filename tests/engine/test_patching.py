"""The entries of `ftcluster_train.patching`: each has a guard, or a reason to have none."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.kernels import simd
from ftcluster_train.kernels.linear import torch_linear
from ftcluster_train.patching import fused_modules, rotary_positions
from ftcluster_train.patching.fused_modules import (
    FUSED_GATED_MLPS,
    FUSED_RMS_NORMS,
    FUSED_TANH_GELUS,
)
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from ftcluster_train.patching.registry import FunctionPatch, ObjectPatch, always, computes_same
from ftcluster_train.patching.rotary_positions import ROTARY_POSITIONS
from ftcluster_train.patching.script_functions import SCRIPT_FUNCTIONS
from ftcluster_train.patching.script_models import activation_patches
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS
from tests.engine.models import make_model
from tests.engine.test_rotary import _transformers  # noqa: F401 - a fixture

# functions whose entry is right for each call, and why
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
    """Without a loss of its own."""

    large_vocabulary = False

    def use_fused_loss(self, _: Any) -> None:
        return None


def test_each_entry_has_a_guard() -> None:
    model = make_model("gpt2", "causal-lm")
    training = patch_model(model, Task(), True, Optimizations(), ProgressLog()).patches
    entries = (*training, *SCRIPT_FUNCTIONS, *activation_patches())
    assert {patch.original for patch in entries if patch.guard is always} == UNGUARDED.keys()
    assert len(entries) > 15


# changes whose guard compares nothing, and what it knows instead
NOT_COMPARED = {
    SKIPPED_ROWS: "classes of transformers alone, with their own forward passes and no hooks of "
    "others, looked at before each call; tests know that nothing of these is read",
    FUSED_TANH_GELUS: "two classes of transformers",
}
OBJECT_PATCHES = (
    SKIPPED_ROWS, FUSED_TANH_GELUS, FUSED_GATED_MLPS, FUSED_RMS_NORMS, ROTARY_POSITIONS,
)  # fmt: skip


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.usefixtures("_transformers")
def test_changes_of_models_are_compared(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    """Where what a change computes is said to differ, none of the others is made."""
    for room in (fused_modules, rotary_positions):
        monkeypatch.setattr(room, "computes_same", lambda *_, **__: same)
    monkeypatch.setattr(simd, "is_available", lambda: True)
    models = make_model("llama", "causal-lm"), make_model("gpt2", "causal-lm"), make_model("bert")
    made = {patch for patch in OBJECT_PATCHES for model in models if [*patch.guard(model)]}
    assert made == ({*OBJECT_PATCHES} if same else NOT_COMPARED.keys())


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
