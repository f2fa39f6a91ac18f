"""Query, key and value in one matmul: loss and gradients equal transformers'."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_common.tasks.chat import InstructionTuning
from ftcluster_kernels import linear
from ftcluster_train.engine.adapters import add_adapters
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.patching import joint_layers
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.joint_layers import siblings_of
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.patch_model import functions_of
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS
from ftcluster_train.patching.unpadding import STACKS, UNPADDING
from tests.engine.test_unpadding import loss_of, make, masks

pytestmark = pytest.mark.needs("avx2", "compiler")
JOINT = "_JointLinearBackward"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MUCH_WORK", 0)


def step_of(
    model: PreTrainedModel, mask: torch.Tensor, dtype: torch.dtype
) -> tuple[float, dict[str, torch.Tensor], set[str]]:
    """Return loss, gradients and autograd functions of a step of the engine."""
    SKIPPED_ROWS.apply(model)
    UNPADDING.apply(model)
    step = FlatOptimizerStep(model, Training(), dtype, 1)
    kernels = KernelMode([Attention(with_dropout=True).patch()])
    with step.context, kernels:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = loss_of(model(**inputs_of(mask)), mask)
        functions = functions_of(loss)
        step.backward(loss, last=True)
    flat, slices = step.gradients.wait(), step.weights.layout.slices
    names = {parameter: name for name, parameter in model.named_parameters()}
    gradients = {names[p]: flat[place].view(p.shape) for p, place in slices.items()}
    return loss.item(), gradients, functions


def plain_step(model: PreTrainedModel, mask: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of transformers."""
    loss = loss_of(model(**inputs_of(mask)), mask)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def inputs_of(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    tokens = torch.randint(5, 100, mask.shape)
    return {"input_ids": tokens.masked_fill(mask == 0, 1), "attention_mask": mask}


@pytest.mark.parametrize("of", [AutoModel, AutoModelForSequenceClassification])
@pytest.mark.parametrize("kind", STACKS)
def test_loss_and_gradients_are_those_of_transformers(kind: str, of: Any) -> None:
    for mask in masks():
        loss, wanted = plain_step(make(kind, of).train(), mask)
        own_loss, found, functions = step_of(make(kind, of).train(), mask, torch.float32)
        assert JOINT in functions
        assert own_loss == pytest.approx(loss, rel=1e-5, abs=1e-5)
        for name, grad in wanted.items():
            torch.testing.assert_close(found[name], grad, atol=2e-5, rtol=2e-4, msg=name)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_bf16_changes_no_result_by_more_than_its_rounding(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matmuls are the same, but the three gradients of the input are summed in fp32."""
    mask = next(masks())
    exact_loss, exact = plain_step(make(kind, AutoModel).train(), mask)
    joint_loss, joint, functions = step_of(make(kind, AutoModel).train(), mask, torch.bfloat16)
    assert JOINT in functions
    monkeypatch.setattr(joint_layers, "joint_linear", lambda *_: None)
    loss, apart, functions = step_of(make(kind, AutoModel).train(), mask, torch.bfloat16)
    assert JOINT not in functions
    assert abs(joint_loss - exact_loss) <= 1.1 * abs(loss - exact_loss) + 1e-3

    def error(gradients: dict[str, torch.Tensor]) -> float:
        return sum(float((gradients[n] - x).square().sum()) for n, x in exact.items()) ** 0.5

    assert error(joint) <= 1.1 * error(apart)


def _scaled(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:  # noqa: ARG001
    return (args[0] * 2,)


def _changed_in_place(model: PreTrainedModel) -> None:
    """Change the input of all three layers in place between the calls of two of them."""

    def change(_: nn.Module, args: tuple[torch.Tensor]) -> None:
        with torch.no_grad():
            args[0].mul_(2)

    attention = model.encoder.layer[0].attention.self
    attention.key.register_forward_pre_hook(change)


def _other_input(model: PreTrainedModel) -> None:
    model.encoder.layer[0].attention.self.key.register_forward_pre_hook(_scaled)


def _hook_on_weight(model: PreTrainedModel) -> None:
    model.encoder.layer[0].attention.self.key.weight.register_hook(lambda grad: grad * 3)


@pytest.mark.parametrize("change", [_other_input, _hook_on_weight])
def test_hooks_see_what_transformers_shows_them(change: Callable[[Any], None]) -> None:
    mask = torch.ones(2, 9, dtype=torch.int64)
    model, plain = (make("bert", AutoModel).train() for _ in range(2))
    change(model)
    change(plain)
    loss, wanted = plain_step(plain, mask)
    own_loss, found, _ = step_of(model, mask, torch.float32)
    assert own_loss == pytest.approx(loss, rel=1e-5, abs=1e-5)
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, atol=2e-5, rtol=2e-4, msg=name)


def test_an_input_that_was_changed_in_place_is_read_again() -> None:
    mask = torch.ones(2, 9, dtype=torch.int64)
    outputs = []
    for joint in (True, False):
        model = make("bert", AutoModel).train()
        _changed_in_place(model)
        step = FlatOptimizerStep(model, Training(), torch.float32, 1)
        if joint:
            with step.context, KernelMode():
                outputs.append(model(**inputs_of(mask)).last_hidden_state)
        else:
            outputs.append(model(**inputs_of(mask)).last_hidden_state)
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-4)


def test_layers_with_adapters_are_separate() -> None:
    model = make("bert", AutoModel)
    assert len(siblings_of(model)) == 3 * model.config.num_hidden_layers
    add_adapters(model, InstructionTuning(lora_r=4))
    assert not siblings_of(model)


def test_layers_without_a_bias_are_separate() -> None:
    model = make("bert", AutoModel)
    model.encoder.layer[0].attention.self.key.bias = None
    assert len(siblings_of(model)) == 3 * (model.config.num_hidden_layers - 1)
