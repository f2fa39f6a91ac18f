"""Preference tuning (DPO, ORPO, SimPO): a decoder is trained to prefer one of two answers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ftcluster_common.data.conversations import read_preference
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.chat import PreferenceTuning, preference_columns
from ftcluster_common.tasks.registry import spec_of
from ftcluster_train.comm.gather_rows import sum_over_ranks
from ftcluster_train.engine.data.sources import Rows, find_columns, read_rows
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.tasks.base import Batch, Document, Forward
from ftcluster_train.engine.tasks.chat.decoder_tuning import DecoderTuningTask
from ftcluster_train.engine.tasks.chat.marked_texts import MarkedText
from ftcluster_train.engine.tasks.chat.preference_losses import (
    odds_ratio_losses,
    sigmoid_losses,
    sums_of,
    token_log_probabilities,
)
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import find_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.traffic import Traffic


@register
class PreferenceTuningTask(DecoderTuningTask):
    """Trains with pairs of a chosen and a rejected answer.

    c and r are the log-probabilities of the chosen and the rejected answer. The recipe selects one
    of these losses of a pair:

    - sigmoid (DPO, Rafailov et al. 2023, equation 7): -log sigmoid(beta * (c - r)). c and r are
      relative to the initial model, whose log-probabilities are computed once, before the first
      step. The other losses do not use a reference model.
    - simpo (Meng et al. 2024): -log sigmoid(beta * (c - r) - simpo_gamma). c and r are means over
      the answer's tokens.
    - orpo (Hong et al. 2024): beta * -log sigmoid(log odds ratio of c and r), with the same means,
      plus the mean cross entropy of all tokens of prompts and chosen answers.

    A sample has two documents: the conversation with the chosen answer and the conversation with
    the rejected answer.
    """

    name = "preference-tuning"
    options: PreferenceTuning

    def __init__(self, recipe: Recipe, tokenizer: Any, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.disables_dropout = self.options.disable_dropout
        self.needs_reference = spec_of(self.options).compares_with_start(self.options)
        self._is_orpo = self.options.loss_type == "orpo"
        self._pairs_per_token = (
            math.nan
        )  # ORPO: number of pairs in a step / tokens in their chosen texts
        # log-probabilities of both answers under the initial model, by sample id
        self._reference: dict[int, tuple[float, float]] = {}
        self._written = 0  # number of samples written so far, in all sets

    # data

    def write_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        token = token_kind(len(self.tokenizer))
        kinds = {"input_ids": token, "targets": "i", "documents": "i", "counts": "i", "number": "i"}
        writer = SampleWriter(folder, kinds)
        count = cut = same = 0
        answers = self.tokens_of(self._texts(rows, split))
        for pair in zip(answers, answers, strict=True):  # chosen and rejected alternate
            count += 1
            self.review_answers(*pair[0])
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
                f"{split}: in {same} of {count} pairs, the model reads the same tokens for the "
                "chosen and the rejected answer, so it learns no preference from these pairs"
            )
        return notices

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        read = _with_prompt(sample) if self._is_orpo else sample
        pair = zip(super().documents(read, samples), ("chosen", "rejected"), strict=True)
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
                        "use answers with a single message",
                    )
                yield texts[0]

    # model

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self.head = find_head(model)  # label smoothing applies to pairs here, so it needs no logits
        return self.head

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> None:
        for sample, likely in zip(samples, predictions, strict=True):
            self._reference[sample["number"][0]] = tuple(likely)

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        read = [_with_prompt(sample) for sample in samples] if self._is_orpo else samples
        inputs, targets = super().collate(read)
        reference = [self._reference.get(sample["number"][0], (0.0, 0.0)) for sample in samples]
        counts = [count for sample in samples for count in sample["counts"]]
        targets = {
            **targets, "counts": torch.tensor(counts), "reference": torch.tensor(reference)
        }  # fmt: skip
        if self._is_orpo:
            targets["is_answer"] = torch.tensor([*chain(*map(_answer_mask, samples))])
            lengths = [sample["documents"][0] - 1 for sample in samples]
            targets["chosen_tokens"] = torch.tensor(lengths)
        return Batch(inputs, targets)

    def begin_step(
        self,
        parts: Sequence[Sequence[Sample]],
        forward: Forward,  # noqa: ARG002
        traffic: "Traffic",
    ) -> None:
        """Count the tokens over which ORPO averages the cross entropy."""
        if not self._is_orpo:
            return
        samples = [sample for part in parts for sample in part]
        tokens = sum(sample["documents"][0] - 1 for sample in samples)
        counts = torch.tensor([len(samples), tokens], dtype=torch.float64)
        pairs, tokens = sum_over_ranks(counts, traffic).tolist()
        self._pairs_per_token = pairs / tokens

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the sum of the losses of the pairs."""
        measured = self._measure(outputs, targets, self.head)
        loss = self._losses(measured[:, :2] - targets["reference"]).sum()
        if self._is_orpo:
            loss = loss - measured[:, 2].sum() * self._pairs_per_token
        return loss + self.router_loss(outputs) * len(measured)

    def _measure(
        self, outputs: Any, targets: Mapping[str, torch.Tensor], head: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the log-probabilities of each pair's answers, shape (pairs, 2).

        For losses without a reference model, each value is a mean over the answer's tokens. For
        ORPO, a third column contains the log-probability of the whole chosen text.
        """
        likely = token_log_probabilities(outputs, targets, head)
        counts = targets["counts"]
        if not self._is_orpo:
            sums = sums_of(likely, counts.tolist())
            return (sums if self.needs_reference else sums / counts).view(-1, 2)
        answers = sums_of(likely[targets["is_answer"]], counts.tolist()) / counts
        rejected = counts.view(-1, 2)[:, 1]
        lengths = torch.stack([targets["chosen_tokens"], rejected], dim=1).flatten()
        whole = sums_of(likely, lengths.tolist()).view(-1, 2)[:, :1]
        return torch.cat([answers.view(-1, 2), whole], dim=1)

    def _losses(self, gains: torch.Tensor) -> torch.Tensor:
        """Return the loss of each pair, without ORPO's cross entropy.

        Args:
            gains: log-probabilities of both answers, relative to the initial model for sigmoid,
                shape (pairs, 2).
        """
        options = self.options
        chosen, rejected = gains.T
        if self._is_orpo:
            return options.beta * odds_ratio_losses(chosen, rejected)
        target = options.simpo_gamma if options.loss_type == "simpo" else 0.0
        return sigmoid_losses(options.beta * (chosen - rejected) - target, self.smoothing)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the log-probabilities of each pair's answers, see `_measure`."""
        targets = self.collate(samples).targets
        measured: list[Any] = self._measure(outputs, targets, self.evaluation_head).tolist()
        return measured

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the loss, the fraction of correctly ranked pairs, and the mean margin."""
        measured = torch.tensor(predictions)
        gains = measured[:, :2]
        if self.needs_reference:
            reference = [self._reference[sample["number"][0]] for sample in samples]
            gains = gains - torch.tensor(reference)
        loss = self._losses(gains).mean().item()
        if self._is_orpo:
            tokens = sum(sample["documents"][0] - 1 for sample in samples)
            loss -= measured[:, 2].double().sum().item() / tokens
        margins = gains[:, 0] - gains[:, 1]
        return {
            "loss": loss,
            "accuracy": (margins > 0).float().mean().item(),
            "margin": self.options.beta * margins.double().mean().item(),
        }


def _with_prompt(sample: Sample) -> Sample:
    """Return a sample whose targets include all tokens of the chosen text except the first."""
    length = sample["documents"][0]
    rejected = [target for target in sample["targets"] if target >= length]
    return {**sample, "targets": [*range(1, length), *rejected]}


def _answer_mask(sample: Sample) -> list[bool]:
    """Return True for each target of `_with_prompt` that belongs to an answer."""
    answers = {*sample["targets"]}
    return [target in answers for target in _with_prompt(sample)["targets"]]
