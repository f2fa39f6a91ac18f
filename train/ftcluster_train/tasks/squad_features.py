"""Questions and their contexts as features: token samples that overlap where a context is long."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ftcluster_common.recipe import QuestionAnswering
from ftcluster_train.data.token_store import SampleWriter
from ftcluster_train.errors import TrainError
from ftcluster_train.tasks.answer_spans import Offsets, tokens_of_answer

CONTEXT = 1  # what `sequence_ids` calls the second text
PLACES = ("start", "end", "null", "first", "question")


class FeatureWriter:
    """Writes the features of one split, and counts what is cut or left out.

    A feature has, beside its tokens: the places of the answer's first and last token (`start`,
    `end`), which are that of "no answer" (`null`) where the feature does not have it; the place of
    its first context token (`first`), and the characters of all context tokens (`begins`, `ends`,
    not in `train`); the number of its `question`.

    Args:
        options: the task's.
        tokenizer: a fast one.
        kinds: the columns of tokens and what each is stored in.
        folder: where the samples go.
        split: its name.
        length: tokens of a feature.
    """

    def __init__(
        self,
        options: QuestionAnswering,
        tokenizer: PreTrainedTokenizerBase,
        kinds: Mapping[str, str],
        folder: Path,
        split: str,
        length: int,
    ) -> None:
        self._options, self._tokenizer, self._kinds = options, tokenizer, kinds
        self._split, self._length = split, length
        columns = dict.fromkeys((*PLACES, "begins", "ends"), "i")
        self._writer = SampleWriter(folder, {**kinds, **columns})
        self._questions: list[dict[str, Any]] = []
        self._kept = self._left_out = self._cut = 0

    def add(self, questions: list[Any], contexts: list[Any], answers: list[Any]) -> None:
        """Write the features of some questions.

        Raises:
            TrainError: one of them is not a question with its context and answers.
        """
        rows = list(zip(questions, contexts, answers, strict=True))
        for row in rows:
            self._check(*row)
        if not self._options.version_2_with_negative:
            rows = [row for row in rows if row[2]["text"]]
        self._left_out += len(questions) - len(rows)
        if rows:
            self._write(*(list(column) for column in zip(*rows, strict=True)))

    def close(self) -> list[str]:
        """Finish the files; returns what to say of them.

        Raises:
            TrainError: there is no question that can be used.
        """
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
            limit = self._options.max_query_length
            said.append(f"{split}: {self._cut} questions were cut at {limit} tokens")
        return said

    def _check(self, question: Any, context: Any, answers: Any) -> None:
        if not isinstance(question, str) or not isinstance(context, str):
            raise TrainError(f"{self._split} has a question or context that is not a text")
        if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= set(answers):
            raise TrainError(
                f"{self._split} has answers that are not an object with text and answer_start"
            )

    def _write(self, questions: list[str], contexts: list[str], answers: list[Any]) -> None:
        encoded = self._tokenizer(
            self._shortened(questions),
            contexts,
            truncation="only_second",
            max_length=self._length,
            stride=self._options.doc_stride,
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
        self._kept += len(questions)
        if self._split != "train":
            self._questions += [
                {"context": context, "answers": list(answer["text"])}
                for context, answer in zip(contexts, answers, strict=True)
            ]

    def _shortened(self, questions: list[str]) -> list[str]:
        """The questions, each cut at max_query_length tokens."""
        limit = self._options.max_query_length
        encoded = self._tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
        shortened = list(questions)
        for i, ids in enumerate(encoded["input_ids"]):
            if len(ids) > limit:
                self._cut += 1
                shortened[i] = questions[i][: encoded["offset_mapping"][i][limit - 1][1]]
        return shortened

    def _null_place(self, ids: Sequence[int]) -> int:
        """Where the model points to if there is no answer: at the feature's first special token."""
        for token in (self._tokenizer.cls_token_id, self._tokenizer.bos_token_id):
            if token in ids:
                return ids.index(token)
        return 0


def _places(answers: Mapping[str, Any], offsets: Offsets, first: int) -> tuple[int, int] | None:
    """First and last token of the first answer, where the feature has it."""
    if not answers["text"]:
        return None
    begin = answers["answer_start"][0]
    return tokens_of_answer(offsets, first, begin, begin + len(answers["text"][0]))
