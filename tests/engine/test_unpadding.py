"""Encoders that skip padding between layers: loss and gradients equal transformers'."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from ftcluster_kernels import attention_heads
from ftcluster_kernels.documents import document_mask
from ftcluster_train.patching import unpadding
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS
from ftcluster_train.patching.unpadding import STACKS, UNPADDED_EMBEDDINGS, UNPADDING

pytestmark = pytest.mark.needs("avx2", "compiler")
CONFIGS = {
    "bert": transformers.BertConfig,
    "camembert": transformers.CamembertConfig,
    "distilbert": transformers.DistilBertConfig,
    "electra": transformers.ElectraConfig,
    "roberta": transformers.RobertaConfig,
    "xlm-roberta": transformers.XLMRobertaConfig,
}
SMALL = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 96, "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 96,
    "pad_token_id": 1, "max_position_embeddings": 128,
}  # fmt: skip
NO_DROPOUT = dict.fromkeys(
    (
        "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout",
        "attention_dropout", "seq_classif_dropout", "qa_dropout", "summary_last_dropout",
    ),
    0.0,
)  # fmt: skip
CLASSES = (
    AutoModel, AutoModelForMaskedLM, AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification, AutoModelForTokenClassification,
)  # fmt: skip
LENGTHS = (61, 7, 90, 1, 90)


def make(kind: str, of: Any, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(1)
    config = CONFIGS[kind](**{**SMALL, **NO_DROPOUT, **settings})
    return of.from_config(config, **{"attn_implementation": "sdpa"})


def masks() -> Iterator[torch.Tensor]:
    """Draw masks with padding on the right, on the left, and between tokens."""
    behind = (torch.arange(90) < torch.tensor(LENGTHS)[:, None]).long()
    yield behind
    yield behind.flip(1)
    among = (torch.rand(5, 90) < 0.7).long()
    among[:, 0] = 1
    yield among


def loss_of(output: Any, mask: torch.Tensor) -> torch.Tensor:
    """Return a loss that ignores padding, like the recipes' losses."""
    names = ("last_hidden_state", "start_logits", "end_logits", "logits")
    total = torch.zeros(())
    for name in names:
        values = getattr(output, name, None)
        if values is None:
            continue
        values = values.float()
        if values.shape[:2] != mask.shape:  # one value per sample
            total = total + cross_entropy(values, torch.arange(len(mask)) % 2)
        else:
            wide = values if values.ndim == 3 else values.unsqueeze(-1)
            total = total + (wide.cos() * mask.unsqueeze(-1)).sum() / 100
    return total


def gradients(
    model: PreTrainedModel, mask: torch.Tensor, ours: bool, dtype: torch.dtype = torch.float32
) -> tuple[float, dict[str, torch.Tensor]]:
    torch.manual_seed(2)
    tokens = torch.randint(5, 100, mask.shape)
    model.train().zero_grad()
    patches = [Attention(with_dropout=True).patch()] if ours else []
    inputs = {"input_ids": tokens.masked_fill(mask == 0, 1), "attention_mask": mask}
    with KernelMode(patches), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = loss_of(model(**inputs), mask)
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), found


Lookups = list[tuple[torch.Tensor, int]]


class _Lookups(TorchFunctionMode):  # type: ignore[misc]
    """Records the table and the number of rows of each lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Lookups = []

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.embedding:
            self.found.append((args[1], args[0].numel()))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def lookups() -> Iterator[Lookups]:
    with _Lookups() as mode:
        yield mode.found


@pytest.fixture
def unpadded(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """Record the tokens of each batch that pass through the layers without padding."""
    found: list[Sequence[int]] = []

    def mask(lengths: Sequence[int], causal: bool) -> torch.Tensor:
        found.append(lengths)
        return document_mask(lengths, causal)

    monkeypatch.setattr(unpadding, "document_mask", mask)
    return found


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
@pytest.mark.parametrize("kind", STACKS)
def test_loss_and_gradients_are_those_of_transformers(
    kind: str,
    of: Any,
    embeds: bool,
    unpadded: list[Sequence[int]],
    lookups: Lookups,
) -> None:
    torch.manual_seed(3)
    for mask in masks():
        loss, wanted = gradients(make(kind, of), mask, ours=False)
        model = make(kind, of)
        SKIPPED_ROWS.apply(model)
        assert UNPADDING.apply(model) == 1
        assert UNPADDING.apply(model) == 0
        if embeds:
            assert UNPADDED_EMBEDDINGS.apply(model) == 1
            assert UNPADDED_EMBEDDINGS.apply(model) == 0
        unpadded.clear()
        lookups.clear()
        own_loss, found = gradients(model, mask, ours=True)
        # classifiers whose first token is padding are not changed
        first_only = of is AutoModelForSequenceClassification and not mask[:, 0].all()
        assert unpadded == ([] if first_only else [mask.sum(1).tolist()])
        words = model.get_input_embeddings().weight
        tokens = int(mask.sum()) if embeds and not first_only else mask.numel()
        assert [count for table, count in lookups if table is words] == [tokens]
        assert own_loss == pytest.approx(loss, rel=1e-5, abs=1e-5)
        assert found.keys() == wanted.keys()
        for name, grad in found.items():
            torch.testing.assert_close(grad, wanted[name], atol=2e-5, rtol=2e-4, msg=name)


@pytest.mark.parametrize("by_heads", [False, True])
def test_each_kernel_of_attention(monkeypatch: pytest.MonkeyPatch, by_heads: bool) -> None:
    """Test the kernel for single heads and the kernel for groups of samples."""
    calls: list[Any] = []
    forward = attention_heads.forward

    def counted(*args: Any) -> Any:
        calls.append(args)
        return forward(*args)

    monkeypatch.setattr(attention_heads, "forward", counted)
    monkeypatch.setattr(attention_heads, "LONGEST", 1024 if by_heads else 0)
    mask = next(masks())
    loss, wanted = gradients(make("bert", AutoModel), mask, ours=False)
    model = make("bert", AutoModel)
    SKIPPED_ROWS.apply(model)
    UNPADDING.apply(model)
    own_loss, found = gradients(model, mask, ours=True)
    assert len(calls) == (2 if by_heads else 0)
    assert own_loss == pytest.approx(loss, rel=1e-5)
    for name, grad in found.items():
        torch.testing.assert_close(grad, wanted[name], atol=2e-5, rtol=2e-4, msg=name)


def test_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are within stock's own rounding errors, also on tiles."""
    tiles: list[attention_heads.Plan] = []
    forward = attention_heads.forward

    def looked_at(*args: Any) -> Any:
        tiles.append(args[-1])
        return forward(*args)

    monkeypatch.setattr(attention_heads, "forward", looked_at)
    mask = next(masks())
    _, exact = gradients(make("roberta", AutoModel), mask, ours=False)
    _, rounded = gradients(make("roberta", AutoModel), mask, ours=False, dtype=torch.bfloat16)
    model = make("roberta", AutoModel)
    SKIPPED_ROWS.apply(model)
    UNPADDING.apply(model)
    _, found = gradients(model, mask, ours=True, dtype=torch.bfloat16)
    for name in found:
        error, of_stock = ((x[name] - exact[name]).norm() for x in (found, rounded))
        assert error <= 1.5 * of_stock + 1e-3 * exact[name].norm(), name
    assert [plan.documents for plan in tiles] in ([], [[*LENGTHS]] * 2)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_positions_are_those_of_the_caller(kind: str, lookups: Lookups) -> None:
    mask = next(masks())
    positions = torch.randint(2, 100, mask.shape, generator=torch.Generator().manual_seed(4))
    outputs = []
    for ours in (True, False):
        model = make(kind, AutoModel).train()
        if ours:
            SKIPPED_ROWS.apply(model)
            UNPADDING.apply(model)
            UNPADDED_EMBEDDINGS.apply(model)
        tokens = torch.randint(5, 100, mask.shape, generator=torch.Generator().manual_seed(5))
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
        lookups.clear()
        with KernelMode([Attention(with_dropout=True).patch()] if ours else []):
            hidden = model(**inputs).last_hidden_state
        words = model.get_input_embeddings().weight
        count = int(mask.sum()) if ours else mask.numel()
        assert [number for table, number in lookups if table is words] == [count]
        outputs.append(hidden[mask.bool()])
    torch.testing.assert_close(*outputs, atol=2e-5, rtol=2e-4)


def test_layers_that_get_other_hidden_states_than_the_embeddings(
    lookups: Lookups,
) -> None:
    """ELECTRA's small models project the embeddings before the layers."""
    mask = next(masks())
    loss, wanted = gradients(make("electra", AutoModel, embedding_size=32), mask, ours=False)
    model = make("electra", AutoModel, embedding_size=32)
    SKIPPED_ROWS.apply(model)
    UNPADDING.apply(model)
    assert UNPADDED_EMBEDDINGS.apply(model) == 1
    lookups.clear()
    own_loss, found = gradients(model, mask, ours=True)
    assert int(mask.sum()) in [count for _, count in lookups]
    assert own_loss == pytest.approx(loss, rel=1e-5, abs=1e-5)
    for name, grad in found.items():
        torch.testing.assert_close(grad, wanted[name], atol=2e-5, rtol=2e-4, msg=name)


@pytest.fixture
def unpads(unpadded: list[Sequence[int]]) -> Callable[..., bool]:
    def of(model: PreTrainedModel, mask: torch.Tensor, **more: Any) -> bool:
        SKIPPED_ROWS.apply(model)
        UNPADDING.apply(model)
        unpadded.clear()
        with KernelMode([Attention(with_dropout=True).patch()]):
            model(input_ids=torch.full(mask.shape, 7), attention_mask=mask, **more)
        return bool(unpadded)

    return of


def test_where_padding_stays(unpads: Callable[..., bool]) -> None:
    mask = next(masks())

    def bert(**settings: Any) -> PreTrainedModel:
        return make("bert", AutoModel, **settings).train()

    assert unpads(bert(), mask)
    assert not unpads(bert().eval(), mask)
    assert not unpads(bert(), torch.ones(2, 9, dtype=torch.int64))
    # the caller gets the output of each layer by token
    assert not unpads(bert(), mask, output_hidden_states=True)
    assert not unpads(bert(output_hidden_states=True), mask)
    assert not unpads(bert(chunk_size_feed_forward=2), mask)
    assert not unpads(bert(is_decoder=True), mask)
    empty = mask.clone()
    empty[1] = 0  # a sample without a token
    assert not unpads(bert(), empty)
    eager = bert()
    eager.set_attn_implementation("eager")
    assert not unpads(eager, mask)
    without_kernel = bert()
    assert unpads(without_kernel, mask)
    # uses torch's attention
    without_kernel(input_ids=torch.full(mask.shape, 7), attention_mask=mask)
    hooked = bert()
    hooked.encoder.layer[0].register_forward_hook(lambda *_: None)  # a hook may read any token
    assert not unpads(hooked, mask)


def test_longer_samples_than_the_kernel_takes(
    unpads: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, taken in ((89, False), (90, True)):
        monkeypatch.setattr(unpadding, "ATTENTION_TOKENS", most)
        assert unpads(make("bert", AutoModel).train(), next(masks())) is taken
