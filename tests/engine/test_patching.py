"""The entries of `ftcluster_train.patching`: each has a guard, or a reason to have none."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.kernels.linear import torch_linear
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from ftcluster_train.patching.registry import FunctionPatch, ObjectPatch, always, computes_same
from ftcluster_train.patching.script_functions import SCRIPT_FUNCTIONS
from ftcluster_train.patching.script_models import activation_patches
from tests.engine.models import make_model

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


def test_an_entry_without_a_guard_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="guard"):
        FunctionPatch(functional, functional.gelu, kernel=functional.silu)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="guard"):
        ObjectPatch(change=print)  # type: ignore[call-arg]


def test_the_guard_decides() -> None:
    """None: the kernel. Otherwise the original, or what is to be called in its place."""
    said: list[str] = []
    values = torch.ones(3)
    for why_not, expected in ((None, 2), ("", 1), ("why", 1)):
        patch = FunctionPatch(torch, torch.sum, lambda *_, why=why_not: why, lambda *_: 2)
        function = patch.function(said.append)
        assert function(values) == (2 if why_not is None else 3)
        assert FunctionPatch(
            torch, torch.sum, patch.guard, patch.kernel, lambda *_: 1
        ).function()(values) == expected  # fmt: skip
    assert said == ["why"]


@pytest.mark.parametrize(
    "other",
    [torch.cos, lambda x: x.sin().double(), lambda x: (x.sin(),), lambda x: x.missing, torch.add],
    ids=["another function", "another dtype", "a tuple", "an attribute", "another argument"],
)
def test_functions_that_differ(other: Any) -> None:
    values = torch.linspace(0, 1, 5)
    assert computes_same(torch.sin, torch.sin, values, rtol=0, atol=0)
    assert not computes_same(torch.sin, other, values, rtol=1e-5, atol=1e-5)
