"""The answer to a question is a span of a context, as in SQuAD.

A context that is longer than a sample becomes several features that overlap; the best span of all
of them is the answer. How features are made and answers chosen is run_qa's way (transformers,
examples/pytorch/question-answering).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from ftcluster_train import squad
from ftcluster_train.data import batches, load_rows
from ftcluster_train.errors import TrainError
from ftcluster_train.job import QuestionAnswering, Recipe
from ftcluster_train.spans import Found, Offsets, best_span, choose_answers, tokens_of_answer
from ftcluster_train.store import Sample, Samples, SampleWriter
from ftcluster_train.tasks.task import Batch, Task

CONTEXT = 1  # what `sequence_ids` calls the second text


class QuestionAnsweringTask(Task):
    """Start and end of a span, each with cross entropy over the feature's tokens."""

    model_class = AutoModelForQuestionAnswering

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(recipe, tokenizer)
        assert isinstance(recipe.options, QuestionAnswering)
        self.options = recipe.options
        if not tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer {type(tokenizer).__name__} of {recipe.tokenizer or recipe.model} "
                "does not tell which characters a token stands for",
                "question answering needs a fast tokenizer, one with a tokenizer.json",
            )
        self.check_padding()

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        """See Task."""
        length, notices = self.shortest(self.options.max_length, "max_length", longest)
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        least = self.options.max_query_length + self.options.doc_stride + special + 1
        if length < least:
            raise TrainError(
                f"{length} tokens leave no room for a context; with max_query_length="
                f"{self.options.max_query_length} and doc_stride={self.options.doc_stride} a "
                f"feature has at least {least}",
                "lower them",
            )
        for split, rows in load_rows(data, self.recipe.data_config, self.splits).items():
            writer = _FeatureWriter(self, folder / split, split, length)
            for batch in batches(rows, self._columns(), split):
                writer.add(batch)
            notices += writer.close()
        return notices

    def _columns(self) -> tuple[str, str, str]:
        options = self.options
        return options.question_column, options.context_column, options.answers_column

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002 - see Task
        """See Task."""
        return {}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """See Task; features are padded on the right, so that places in them stay."""
        targets = {
            name: torch.tensor([s[name][0] for s in samples], dtype=torch.int64)
            for name in ("start", "end")
        }
        inputs = self.pad(samples)
        return Batch(inputs, {**targets, "tokens": inputs["attention_mask"] > 0})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The mean of both places' losses, summed over the features.

        Places in the padding do not count, as they do in run_qa, where every feature is padded to
        max_length: a feature's loss must not depend on the others of its batch.
        """

        def loss(logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            possible = logits.float().masked_fill(~targets["tokens"], float("-inf"))
            return cross_entropy(possible, places, reduction="sum")

        start = loss(outputs.start_logits, targets["start"])
        return (start + loss(outputs.end_logits, targets["end"])) / 2

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each feature its question, the score of no answer and the best span."""
        starts, ends = outputs.start_logits.float(), outputs.end_logits.float()
        found = []
        for i, sample in enumerate(samples):
            offsets = list(zip(sample["begins"], sample["ends"], strict=True))
            first, null = sample["first"][0], sample["null"][0]
            context = slice(first, first + len(offsets))
            span = best_span(
                starts[i, context].tolist(), ends[i, context].tolist(), offsets,
                self.options.n_best_size, self.options.max_answer_length,
            )  # fmt: skip
            nothing = float(starts[i, null] + ends[i, null])
            found.append(Found(sample["question"][0], nothing, span))
        return found

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Exact match and F1 of the questions, in percent."""
        questions = samples.about["questions"]
        negative = self.options.version_2_with_negative
        answers = choose_answers(
            predictions,
            [question["context"] for question in questions],
            self.options.null_score_diff_threshold if negative else None,
        )
        return squad.score(answers, [question["answers"] for question in questions], negative)


class _FeatureWriter:
    """Writes the features of one split, and counts what is cut or left out."""

    def __init__(self, task: QuestionAnsweringTask, folder: Path, split: str, length: int) -> None:
        self._task, self._split, self._length = task, split, length
        self._kinds = task.token_kinds()
        places = dict.fromkeys(("start", "end", "null", "first", "question"), "i")
        self._writer = SampleWriter(folder, {**self._kinds, **places, "begins": "i", "ends": "i"})
        self._questions: list[dict[str, Any]] = []
        self._kept = self._left_out = self._cut = 0

    def add(self, batch: Mapping[str, list[Any]]) -> None:
        """Write the features of some questions."""
        rows = [
            row
            for row in zip(*batch.values(), strict=True)
            if self._can_be_used(*row)  # also checks it
        ]
        if not rows:
            return
        columns = [list(column) for column in zip(*rows, strict=True)]
        questions, contexts, answers = columns
        task = self._task
        encoded = task.tokenizer(
            self._shortened(questions),
            contexts,
            truncation="only_second",
            max_length=self._length,
            stride=task.options.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for feature, row in enumerate(encoded["overflow_to_sample_mapping"]):
            sequence = encoded.sequence_ids(feature)
            of_context = [place for place, which in enumerate(sequence) if which == CONTEXT]
            first = of_context[0] if of_context else 0
            mapping = encoded["offset_mapping"][feature]
            offsets = [mapping[place] for place in of_context]
            null = self._null_place(encoded["input_ids"][feature])
            start, end = _places(answers[row], offsets, first) or (null, null)
            if self._split == "train":
                offsets = []  # take more room than all else, and only answers need them
            self._writer.add(
                {
                    **{name: encoded[name][feature] for name in self._kinds},
                    "start": [start],
                    "end": [end],
                    "null": [null],
                    "first": [first],
                    "question": [self._kept + row],
                    "begins": [begin for begin, _ in offsets],
                    "ends": [end for _, end in offsets],
                }
            )
        self._kept += len(rows)
        if self._split != "train":
            self._questions += [
                {"context": context, "answers": answer["text"]}
                for context, answer in zip(contexts, answers, strict=True)
            ]

    def close(self) -> list[str]:
        """Finish the files; returns what to say of them."""
        split, unanswered = self._split, f"{self._left_out} questions without an answer"
        if not self._kept:
            raise TrainError(
                f"{split} has no questions" + (f", but {unanswered}" if self._left_out else ""),
                "to train on those as well: version_2_with_negative=true",
            )
        self._writer.close(questions=self._questions)
        said = [f"{split}: {self._kept} questions, {len(self._writer)} features"]
        if self._left_out:
            said.append(f"{split}: {unanswered} are left out (version_2_with_negative is false)")
        if self._cut:
            limit = self._task.options.max_query_length
            said.append(f"{split}: {self._cut} questions were cut at {limit} tokens")
        return said

    def _can_be_used(self, question: Any, context: Any, answers: Any) -> bool:
        """Whether the recipe takes a row; raises TrainError where it is none of this task."""
        if not isinstance(question, str) or not isinstance(context, str):
            raise TrainError(f"{self._split} has a question or context that is not a text")
        if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= set(answers):
            raise TrainError(
                f"{self._split} has answers that are not an object with text and answer_start"
            )
        if not answers["text"] and not self._task.options.version_2_with_negative:
            self._left_out += 1
            return False
        return True

    def _shortened(self, questions: list[str]) -> list[str]:
        """The questions, each cut at max_query_length tokens."""
        limit = self._task.options.max_query_length
        encoded = self._task.tokenizer(
            questions, add_special_tokens=False, return_offsets_mapping=True
        )
        long = [i for i, ids in enumerate(encoded["input_ids"]) if len(ids) > limit]
        self._cut += len(long)
        shortened = list(questions)
        for i in long:
            shortened[i] = questions[i][: encoded["offset_mapping"][i][limit - 1][1]]
        return shortened

    def _null_place(self, ids: list[int]) -> int:
        """Where the model points to if there is no answer: at the feature's first special token."""
        tokenizer = self._task.tokenizer
        for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
            if token in ids:
                return ids.index(token)
        return 0


def _places(answers: Mapping[str, Any], offsets: Offsets, first: int) -> tuple[int, int] | None:
    """First and last token of the first answer, where the feature has it."""
    for text, begin in zip(answers["text"], answers["answer_start"], strict=True):
        return tokens_of_answer(offsets, first, begin, begin + len(text))
    return None
