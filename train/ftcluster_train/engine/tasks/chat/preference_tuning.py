"""Preference tuning (DPO): a decoder is trained to prefer the better of two answers."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, logsigmoid

from ftcluster_common.data.conversations import read_preference
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.chat import PreferenceTuning, preference_columns
from ftcluster_kernels.cross_entropy import token_losses
from ftcluster_train.engine.data.sources import Rows, find_columns, read_rows
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.tasks.base import Batch, Document
from ftcluster_train.engine.tasks.chat.decoder_tuning import DecoderTuningTask
from ftcluster_train.engine.tasks.chat.marked_texts import MarkedText
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import sums_for
from ftcluster_train.patching.kernel_mode import find_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@register
class PreferenceTuningTask(DecoderTuningTask):
    """Direct preference optimization (Rafailov et al. 2023, equation 7).

    The loss of a pair is -log sigmoid(beta * (c - r)). c and r are log-probability ratios of the
    chosen and the rejected answer. A ratio is the log-probability under the trained model minus the
    log-probability under the initial model. A sample has two documents: the conversation with the
    chosen answer and the conversation with the rejected answer. The log-probabilities under the
    initial model are computed once, before the first step.
    """

    name = "preference-tuning"
    options: PreferenceTuning
    needs_reference = True

    def __init__(self, recipe: Recipe, tokenizer: Any, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.disables_dropout = self.options.disable_dropout
        # log-probabilities of both answers under the initial model, by sample id
        self._reference: dict[int, tuple[float, float]] = {}
        self._written = 0  # number of samples written so far, in all sets

    # data

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        token = token_kind(len(self.tokenizer))
        kinds = {"input_ids": token, "targets": "i", "documents": "i", "counts": "i", "number": "i"}
        writer = SampleWriter(folder, kinds)
        count = cut = same = 0
        answers = self.tokens_of(self._texts(rows, split))
        for pair in zip(answers, answers, strict=True):  # chosen and rejected alternate
            count += 1
            kept_targets = [[target for target in targets if target < limit] for _, targets in pair]
            if not all(kept_targets):
                continue
            documents = [tokens[:limit] for tokens, _ in pair]
            cut += any(len(tokens) > limit for tokens, _ in pair)
            chosen, rejected = documents
            same += chosen == rejected
            writer.add(
                {
                    "input_ids": chosen + rejected,
                    "targets": kept_targets[0]
                    + [len(chosen) + target for target in kept_targets[1]],
                    "documents": [len(chosen), len(rejected)],
                    "counts": [len(targets) for targets in kept_targets],
                    "number": [self._written],
                }
            )
            self._written += 1
        left_out = count - len(writer)
        notices = self.close_split(writer, split, limit, count=count, cut=cut, left_out=left_out)
        if same:
            notices.append(
                f"{split}: {same} of {count} pairs have the same chosen and rejected answer as far "
                "as the model reads them, so they do not train it"
            )
        return notices

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        pair = zip(super().documents(sample, samples), ("chosen", "rejected"), strict=True)
        return [text._replace(label=label) for text, label in pair]

    def _texts(self, rows: Rows, split: str) -> Iterator[MarkedText]:
        """Yield the texts of the chosen and the rejected answer of each row, alternating."""
        columns = find_columns(rows, split, lambda names: preference_columns(self.options, names))
        template = self.options.chat_template
        pairs = read_rows(rows, split, lambda row: read_preference(row, columns, template))
        for where, pair in pairs:
            self.rows += 1
            for conversation in pair:
                texts = self.texts_of(where, conversation)
                if len(texts) > 1:
                    raise TrainError(
                        f"{where}: the chat template writes a message of the "
                        "answer differently once other messages follow it",
                        "use answers of one message",
                    )
                yield texts[0]

    # model

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self.head = find_head(model)  # used even with label smoothing, which applies to pairs here
        return self.head

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> None:
        for sample, likely in zip(samples, predictions, strict=True):
            self._reference[sample["number"][0]] = tuple(likely)

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs, targets = super().collate(samples)
        reference = [self._reference.get(sample["number"][0], (0.0, 0.0)) for sample in samples]
        counts = [count for sample in samples for count in sample["counts"]]
        return Batch(
            inputs,
            {**targets, "counts": torch.tensor(counts), "reference": torch.tensor(reference)},
        )

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the sum of the losses of the pairs."""
        gains = _log_probabilities(outputs, targets, self.head) - targets["reference"]
        loss = self._losses(gains[:, 0] - gains[:, 1]).sum()
        return loss + self.router_loss(outputs) * len(gains)

    def _losses(self, margins: torch.Tensor) -> torch.Tensor:
        preferred = -logsigmoid(self.options.beta * margins)
        if not self.smoothing:
            return preferred
        other = -logsigmoid(-self.options.beta * margins)
        return (1 - self.smoothing) * preferred + self.smoothing * other

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return, for each pair, the log-probabilities of both answers."""
        targets = self.collate(samples).targets
        likely: list[Any] = _log_probabilities(outputs, targets, self.evaluation_head).tolist()
        return likely

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the loss, the fraction of correctly preferred answers, and the mean margin."""
        reference = torch.tensor([self._reference[sample["number"][0]] for sample in samples])
        gains = torch.tensor(predictions) - reference
        margins = gains[:, 0] - gains[:, 1]
        return {
            "loss": self._losses(margins).mean().item(),
            "accuracy": (margins > 0).float().mean().item(),
            "margin": self.options.beta * statistics.fmean(margins.tolist()),
        }


def _log_probabilities(
    outputs: Any, targets: Mapping[str, torch.Tensor], head: torch.Tensor | None
) -> torch.Tensor:
    """Return the log-probabilities of both answers, shape (pairs, 2)."""
    logits, tokens = outputs.logits.flatten(0, 1)[targets["places"]], targets["tokens"]
    if head is not None:  # `logits` are hidden states
        losses = token_losses(logits, head, tokens, sums=sums_for(head))
    else:
        losses = cross_entropy(logits.float(), tokens, reduction="none")
    answers = losses.split(targets["counts"].tolist())
    return -torch.stack([losses.sum() for losses in answers]).view(-1, 2)
