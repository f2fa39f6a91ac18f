"""Unpaired preference tuning (KTO): a decoder is trained with liked and disliked answers."""

import statistics
from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ftcluster_common.data.conversations import read_judged_conversation
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.unpaired import UnpairedPreferenceTuning, all_alike, judged_columns
from ftcluster_train.comm.gather_rows import sum_over_ranks
from ftcluster_train.engine.data.sources import Rows, find_columns, read_rows
from ftcluster_train.engine.data.token_samples import (
    LENGTHS,
    Sample,
    Samples,
    SampleWriter,
    token_kind,
)
from ftcluster_train.engine.tasks.base import Batch, Document, Forward
from ftcluster_train.engine.tasks.chat.decoder_tuning import DecoderTuningTask
from ftcluster_train.engine.tasks.chat.marked_texts import MarkedText
from ftcluster_train.engine.tasks.chat.mismatched_answers import JudgedAnswer, with_partners
from ftcluster_train.engine.tasks.chat.preference_losses import (
    prospect_losses,
    sums_of,
    token_log_probabilities,
)
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import find_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.traffic import Traffic

# recommended range for the total weight of liked rows divided by that of disliked rows
# (KTO, equation 8)
USUAL_RATIO = (1.0, 4 / 3)
ROUNDING = 0.05  # deviation from the range without a notice


@register
class UnpairedPreferenceTuningTask(DecoderTuningTask):
    """Trains with the KTO loss (Ethayarajh et al. 2024, equation 7).

    The loss of a liked answer is 1 - sigmoid(beta * (r - kl)), and the loss of a disliked answer is
    1 - sigmoid(beta * (kl - r)). r is the answer's log-probability under the trained model minus
    its log-probability under the initial model. kl estimates the KL divergence: it is the mean of
    this difference for prompts paired with answers to other prompts, over all rows of a step on all
    ranks. It is at least 0 and has no gradient. Each step computes kl before its first micro-batch,
    so the loss does not depend on the number of ranks or micro-batches.

    A sample contains a prompt with its answer, and the same prompt with the answer to another
    prompt.
    """

    name = "unpaired-preference-tuning"
    options: UnpairedPreferenceTuning
    needs_reference = True

    def __init__(self, recipe: Recipe, tokenizer: Any, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.disables_dropout = self.options.disable_dropout
        # log-probabilities of both answers under the initial model, by sample id
        self._reference: dict[int, tuple[float, float]] = {}
        self._written = 0  # number of samples written so far, in all sets
        self._divergence = 0.0  # estimated KL divergence in the current step
        self._labels: list[bool] = []  # labels of the current set

    # data

    def write_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        token = token_kind(len(self.tokenizer))
        kinds = {
            "input_ids": token, "targets": "i", "documents": "i", "label": "b", "number": "i",
            "other_ids": token, "other_targets": "i",
        }  # fmt: skip
        writer = SampleWriter(folder, kinds)
        self._labels = []
        answers = [0, 0]  # numbers of kept disliked and liked answers
        cut = 0
        for row, partner in with_partners(self._answers_within(rows, split, limit)):
            if row.is_good:
                self.review_answers(row.tokens, row.targets)
            other, other_targets = row.with_answer_of(partner)
            cut += len(row.tokens) > limit
            answers[row.is_good] += 1
            tokens = list(row.tokens[:limit])
            writer.add(
                {
                    "input_ids": tokens,
                    "targets": [target for target in row.targets if target < limit],
                    "documents": [len(tokens)],
                    "label": [int(row.is_good)],
                    "number": [self._written],
                    "other_ids": other[:limit],
                    "other_targets": [target for target in other_targets if target < limit],
                }
            )
            self._written += 1
        count = len(self._labels)
        notices = self.close_split(
            writer, split, limit, count=count, cut=cut, left_out=count - len(writer)
        )
        if is_train(split) and not all(answers):
            raise TrainError(*all_alike(f"{split}: ", sum(answers), liked=bool(answers[True])))
        if is_train(split):
            notices += self._weight_notices(*answers)
        return notices

    def _weight_notices(self, bad: int, good: int) -> list[str]:
        """Return a notice if liked or disliked answers dominate the loss."""
        options = self.options
        ratio = good * options.desirable_weight / (bad * options.undesirable_weight)
        least, most = USUAL_RATIO
        if least - ROUNDING <= ratio <= most + ROUNDING:
            return []
        usual = [bad * options.undesirable_weight / good * limit for limit in USUAL_RATIO]
        return [
            f"train: {good} answers are liked and {bad} are not; the authors of KTO recommend a "
            f"desirable_weight from {usual[0]:.2g} to {usual[1]:.2g} for these numbers, but it is "
            f"{options.desirable_weight:g}"
        ]

    def _answers_within(self, rows: Rows, split: str, limit: int) -> Iterator[JudgedAnswer]:
        """Yield each row whose answer begins within the first `limit` tokens."""
        tokenized = self.tokens_of(self._texts(rows, split))
        for number, (tokens, targets) in enumerate(tokenized):
            if targets and targets[0] < limit:
                yield JudgedAnswer(tokens, targets, self._labels[number])

    def _texts(self, rows: Rows, split: str) -> Iterator[MarkedText]:
        options = self.options
        columns = find_columns(rows, split, lambda names: judged_columns(options, names))
        template = options.chat_template
        judged = read_rows(
            rows, split, lambda row: read_judged_conversation(row, columns, template)
        )
        for where, (conversation, is_good) in judged:
            self.rows += 1
            texts = self.texts_of(where, conversation)
            if len(texts) > 1:
                raise TrainError(
                    f"{where}: the chat template writes a message of the answer differently once "
                    "other messages follow it",
                    "use answers with a single message",
                )
            self._labels.append(is_good)
            yield texts[0]

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        label = "liked" if sample["label"][0] else "disliked"
        return [text._replace(label=label) for text in super().documents(sample, samples)]

    def lengths(self, samples: Samples) -> Sequence[int]:
        """Return each sample's number of tokens: the prompt twice, once with each answer."""
        return array(LENGTHS, map(add, samples.lengths("input_ids"), samples.lengths("other_ids")))

    # model

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self.head = find_head(model)
        return self.head

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> None:
        for sample, likely in zip(samples, predictions, strict=True):
            self._reference[sample["number"][0]] = tuple(likely)

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Return a batch of the prompts with their own answers, without the other answers."""
        inputs, targets = super().collate(samples)
        reference = [self._reference.get(sample["number"][0], (0.0, 0.0)) for sample in samples]
        counts = [len(sample["targets"]) for sample in samples]
        labels = [sample["label"][0] for sample in samples]
        return Batch(
            inputs,
            {
                **targets,
                "counts": torch.tensor(counts),
                "reference": torch.tensor(reference),
                "label": torch.tensor(labels, dtype=torch.bool),
            },
        )

    def begin_step(
        self, parts: Sequence[Sequence[Sample]], forward: Forward, traffic: "Traffic"
    ) -> None:
        """Estimate the KL divergence from the step's rows on all ranks."""
        sums = torch.zeros(2, dtype=torch.float64)
        for part in parts:
            outputs, targets = forward([with_other_answer(sample) for sample in part])
            gains = self._log_probabilities(outputs, targets, self.head)
            gains = gains.double() - targets["reference"][:, 1]
            sums += torch.stack([gains.sum(), torch.tensor(len(part), dtype=torch.float64)])
        total, count = sum_over_ranks(sums, traffic).tolist()
        self._divergence = max(0.0, total / count)

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the sum of the losses of the answers."""
        likely = self._log_probabilities(outputs, targets, self.head)
        losses = self._losses(
            likely - targets["reference"][:, 0], targets["label"], self._divergence
        )
        return losses.sum() + self.router_loss(outputs) * len(losses)

    def _losses(
        self, gains: torch.Tensor, is_good: torch.Tensor, divergence: float
    ) -> torch.Tensor:
        options = self.options
        losses = prospect_losses(options.beta * gains, is_good, options.beta * divergence)
        return losses * torch.where(is_good, options.desirable_weight, options.undesirable_weight)

    def _log_probabilities(
        self, outputs: Any, targets: Mapping[str, torch.Tensor], head: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the log-probability of each answer, shape (answers,)."""
        return sums_of(token_log_probabilities(outputs, targets, head), targets["counts"].tolist())

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        """Return each sample's two log-probabilities: of its own answer and of the other answer."""
        others = [with_other_answer(sample) for sample in samples]
        of_answers = super().predict(model, samples, bf16)
        of_others = super().predict(model, others, bf16)
        return [list(likely) for likely in zip(of_answers, of_others, strict=True)]

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the log-probability of each answer."""
        targets = self.collate(samples).targets
        likely: list[Any] = self._log_probabilities(outputs, targets, self.evaluation_head).tolist()
        return likely

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the loss, the KL divergence, and the mean rewards of liked and disliked answers.

        A reward is beta times an answer's log-probability ratio. The margin is the difference
        between the two mean rewards.
        """
        reference = torch.tensor(
            [self._reference[sample["number"][0]] for sample in samples], dtype=torch.float64
        )
        gains, others = (torch.tensor(predictions, dtype=torch.float64) - reference).T
        is_good = torch.tensor([sample["label"][0] for sample in samples], dtype=torch.bool)
        divergence = max(0.0, others.mean().item())
        rewards = self.options.beta * gains
        metrics = {
            "loss": self._losses(gains, is_good, divergence).mean().item(), "kl": divergence
        }  # fmt: skip
        for name, rows in (("chosen_reward", is_good), ("rejected_reward", ~is_good)):
            if rows.any():
                metrics[name] = statistics.fmean(rewards[rows].tolist())
        if is_good.any() and not is_good.all():
            metrics["margin"] = metrics["chosen_reward"] - metrics["rejected_reward"]
        return metrics


def with_other_answer(sample: Sample) -> Sample:
    """Return a new sample that combines the sample's prompt with the answer to another prompt."""
    tokens, targets = sample["other_ids"], sample["other_targets"]
    return {**sample, "input_ids": tokens, "targets": targets, "documents": [len(tokens)]}
