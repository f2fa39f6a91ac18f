"""User models for which padding rows may be skipped: loss and gradients do not change."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from ftcluster_kernels import linear
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS

SMALL = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0, "pooler_dropout": 0.0,
}  # fmt: skip
BERT = BertConfig(**SMALL)
Make = Callable[[], PreTrainedModel]


class MeanForSequenceClassification(BertForSequenceClassification):  # type: ignore[misc]
    """A user's classifier with mean pooling, the most common head."""

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1)
        logits = self.classifier((hidden * weights).sum(1) / weights.sum(1))
        return (nn.functional.cross_entropy(logits, labels),)


class BertForSequenceClassificationOfAllTokens(BertForSequenceClassification):  # type: ignore[misc]
    """A model with the stock forward pass whose encoder gets no mask."""

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:  # noqa: ARG002
        return super().forward(input_ids, labels=labels)


class MeanHead(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.linear(features.mean(1))


def replaced_head() -> PreTrainedModel:
    model = RobertaForSequenceClassification(RobertaConfig(**SMALL, max_position_embeddings=40))
    model.classifier = MeanHead()
    return model


class Renamed(nn.Module):  # type: ignore[misc]
    """An attention layer with other models' names for its linear layers."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.inner = attention
        self.k_proj, self.v_proj = attention.key, attention.value
        del attention.key, attention.value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        object.__setattr__(self.inner, "key", self.k_proj)
        object.__setattr__(self.inner, "value", self.v_proj)
        return self.inner(*args, **kwargs)


def renamed() -> PreTrainedModel:
    model = BertForSequenceClassification(BERT)
    for layer in model.bert.encoder.layer:
        layer.attention.self = Renamed(layer.attention.self)
    return model


def with_adapters() -> PreTrainedModel:
    """Replace layers as PEFT does."""

    class Adapted(nn.Linear):  # type: ignore[misc]
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            # computed from all tokens of the sample, unlike any layer of BERT
            return super().forward(input) + input.mean(1, keepdim=True)

    model = BertForSequenceClassification(BERT)
    last = model.bert.encoder.layer[-1].attention.output
    last.dense = Adapted(32, 32)
    return model


def weight_normed() -> PreTrainedModel:
    model = BertForSequenceClassification(BERT)
    parametrizations.weight_norm(model.bert.encoder.layer[-1].output.dense)
    return model


def with_other_forward() -> PreTrainedModel:
    model = BertForSequenceClassification(BERT)
    output = model.bert.encoder.layer[-1].output
    stock = output.forward
    output.forward = lambda hidden, input: stock(hidden, input) + hidden.mean()
    return model


def distilled() -> PreTrainedModel:
    """A hook stores the hidden states of all tokens for another loss."""
    model = BertForSequenceClassification(BERT)
    kept: list[torch.Tensor] = []
    model.bert.encoder.layer[-1].register_forward_hook(lambda *call: kept.append(call[-1]))

    class Distilled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, **inputs: Any) -> Any:
            loss = self.inner(**inputs)[0]
            hidden = kept.pop()
            return (loss + (hidden[0] if isinstance(hidden, tuple) else hidden).square().mean(),)

    found = Distilled()
    found.patched = model
    return found  # type: ignore[return-value]


def with_encoder() -> PreTrainedModel:
    class Pooled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = BertModel(BERT)
            self.patched = self.encoder

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
            hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
            return ((hidden.mean((1, 2)) - labels).square().mean(),)

    return Pooled()  # type: ignore[return-value]


OWN: dict[str, Make] = {
    "a head that reads the mean": lambda: MeanForSequenceClassification(BERT),
    "no mask for the encoder": lambda: BertForSequenceClassificationOfAllTokens(BERT),
    "another head in a stock class": replaced_head,
    "attention with other names": renamed,
    "adapters": with_adapters,
    "weight norm": weight_normed,
    "a forward pass of one's own": with_other_forward,
    "a hook": distilled,
    "an encoder in a model of one's own": with_encoder,
}


def gradients(model: Any, ours: bool) -> tuple[float, list[torch.Tensor]]:
    torch.manual_seed(2)
    mask = (torch.arange(16) < torch.tensor([9, 4, 11])[:, None]).long()
    inputs = {
        "input_ids": torch.randint(5, 100, (3, 16)), "attention_mask": mask,
        "labels": torch.tensor([0, 1, 0]),
    }  # fmt: skip
    model.train().zero_grad()
    with KernelMode() if ours else contextlib.nullcontext():
        loss = model(**inputs)[0]
        loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("make", OWN.values(), ids=OWN.keys())
def test_models_of_ones_own_have_stocks_gradients(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "MUCH_WORK", 0)
    torch.manual_seed(1)
    model = make()
    stock_loss, stock = gradients(model, ours=False)
    SKIPPED_ROWS.apply(getattr(model, "patched", model))
    loss, grads = gradients(model, ours=True)
    assert loss == pytest.approx(stock_loss, abs=1e-6)
    assert len(grads) == len(stock)
    for found, wanted in zip(grads, stock, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
