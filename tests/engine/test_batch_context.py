"""Contexts of a pass do not leak into nested contexts, other threads or interrupted calls."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from ftcluster_common.recipe import Training
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep
from ftcluster_train.engine.step import enable_gradient_checkpointing
from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.batch_context import (
    NOTHING,
    BatchContext,
    GradientSinks,
    context_of,
    current_context,
    current_rows,
    sums_for,
)
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.rows import Rows
from ftcluster_train.patching.shared_entries import FUSED_RMS_NORMS
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS

TOKENS = torch.tensor([[2, 5, 6, 3, 0, 0], [2, 7, 3, 0, 0, 0], [2, 8, 9, 4, 6, 3]])
CLASSES = torch.tensor([0, 1, 1])


def make_classifier() -> BertForSequenceClassification:
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config).train()
    SKIPPED_ROWS.apply(model)
    return model


def loss_of(model: BertForSequenceClassification) -> torch.Tensor:
    loss: torch.Tensor = model(
        input_ids=TOKENS, attention_mask=(TOKENS != 0).long(), labels=CLASSES
    ).loss
    return loss


def test_the_innermost_context_counts() -> None:
    outer, inner = BatchContext(), BatchContext()
    with outer:
        with inner, outer:
            assert current_context() is outer
        assert current_context() is outer
        with pytest.raises(KeyError), inner:
            raise KeyError
        assert current_context() is outer
    assert current_context() is None


def test_leaving_a_context_leaves_those_inside_it() -> None:
    """An interrupted model call does not leave its own context, so the outer context does."""
    outer = BatchContext()
    with outer:
        BatchContext().__enter__()
    assert current_context() is None


def test_other_threads_have_contexts_of_their_own() -> None:
    meeting, weight = threading.Barrier(2, timeout=20), torch.nn.Parameter(torch.ones(2))

    def work(number: int) -> list[BatchContext | None]:
        own = BatchContext(fp32_weights={weight: torch.full((2,), float(number))})
        seen = [current_context()]
        for _ in range(3):
            with own:
                meeting.wait()
                seen.append(current_context())
                meeting.wait()
        assert set(seen[1:]) == {own}
        return [seen[0], current_context()]

    with BatchContext(), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (1, 2))) == [[None, None]] * 2


def test_a_mode_has_the_parameters_of_the_context_around_it() -> None:
    """A mode inside a context uses that context, and no outer context."""
    weight = torch.nn.Parameter(torch.ones(4, 4))
    sinks = GradientSinks(rows={weight: []})
    with BatchContext(sinks=sinks):
        with KernelMode():
            assert (current_context() or NOTHING).sinks is sinks
            assert (current_context() or NOTHING).copies is not None
        with KernelMode(context=BatchContext()):
            assert (current_context() or NOTHING).sinks is not sinks
        assert (current_context() or NOTHING).copies is None


def test_rows_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of the same call see the rows; calls before and after do not."""
    seen: list[Rows | None] = []

    def rows_read(_: torch.Tensor) -> None:
        seen.append(current_rows())

    monkeypatch.setattr(fp32_residuals, "rows_read", rows_read)
    first, second = make_classifier(), make_classifier()
    layer = torch.nn.Linear(2, 2)
    with KernelMode():
        for model in (first, second):
            loss_of(model)
            layer(torch.ones(3, 2))
    models = [rows.model if rows else None for rows in seen]
    half = len(models) // 2
    assert set(models[: half - 1]) == {first}
    assert set(models[half:-1]) == {second}
    assert [models[half - 1], models[-1]] == [None, None]


def test_rows_of_a_call_that_was_interrupted_are_gone_with_the_next_one() -> None:
    """torch calls no hook if a KeyboardInterrupt ends a forward pass."""
    model, other = make_classifier(), make_classifier()
    model.bert.pooler.activation.forward = _interrupt
    with pytest.raises(KeyboardInterrupt):
        loss_of(model)
    assert torch.equal(loss_of(other), loss_of(make_classifier()))
    assert current_context() is None


def _interrupt(_: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


def test_a_checkpoint_that_is_computed_again_leaves_no_trace() -> None:
    """The mode is entered again within itself, during the backward pass."""
    model, plain = make_classifier(), make_classifier()
    kernels = KernelMode(context=context_of(model))
    enable_gradient_checkpointing(model, kernels)
    with kernels:
        loss_of(model).backward()
        assert (current_context() or NOTHING).copies is not None
    assert current_context() is None
    with KernelMode(context=context_of(plain)):
        loss_of(plain).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_gradients_go_to_the_optimizer_of_the_context_that_was_entered() -> None:
    """Two trainings take turns; without a context, autograd gets the gradients."""
    layers = [Conv1D(64, 64) for _ in range(2)]
    steps = [FlatOptimizerStep(layer, Training(), torch.float32, 1) for layer in layers]
    x = torch.randn(5, 64)
    for layer, step in zip(layers, steps, strict=True):
        assert sums_for(layer.weight) is None
        with step.context:
            assert sums_for(layer.weight) is step.context.sinks.sums[layer.weight]
            assert sums_for(layers[layer is layers[0]].weight) is None
    for layer, step in zip(layers, steps, strict=True):
        with KernelMode(context=step.context):
            step.backward(layer(x).sum(), last=True)
        found = step.gradients.wait()[step.weights.layout.slices[layer.weight]].view(64, 64)
        torch.testing.assert_close(found, x.sum(0).unsqueeze(1).expand(64, 64))


@pytest.mark.needs("avx2", "compiler")
def test_layers_of_a_decoder_read_the_rounded_copies_of_their_norms() -> None:
    """A norm's output is rounded once, not once for each of the layers that read it."""
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, num_attention_heads=2, num_hidden_layers=2,
        intermediate_size=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data = parameter.data.to(torch.bfloat16)
    FUSED_RMS_NORMS.apply(model)
    with KernelMode(context=context_of(model)), torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(torch.arange(8).unsqueeze(0)).last_hidden_state
    nodes, waiting = set(), [hidden.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    names = [node.name() for node in nodes]
    assert names.count("_RoundBackward") == 4  # before attention and before the MLP of each layer
