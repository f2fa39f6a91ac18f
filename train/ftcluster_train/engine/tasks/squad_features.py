"""Questions and their contexts as features: token samples, overlapping for a long context."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ftcluster_common.recipe import QuestionAnswering
from ftcluster_train.engine.data.sets import PREDICTED
from ftcluster_train.engine.data.token_store import SampleWriter
from ftcluster_train.engine.tasks.answer_spans import Offsets, tokens_of_answer
from ftcluster_train.errors import TrainError

CONTEXT = 1  # the second text in `sequence_ids`
POSITIONS = ("start", "end", "null", "first", "question")


class FeatureWriter:
    """Writes the features of one split, and counts truncated and omitted questions.

    A feature has its tokens; the positions of the answer's first and last token (`start`, `end`),
    both `null` if the feature does not have it; the position for "no answer" (`null`) and of the
    first context token (`first`); the characters of all context tokens (`begins`, `ends`, not in
    `train`); and the number of its `question`.

    Args:
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
        columns = dict.fromkeys((*POSITIONS, "begins", "ends"), "i")
        self._writer = SampleWriter(folder, {**kinds, **columns})
        self._questions: list[dict[str, Any]] = []
        self._kept = self._left_out = self._cut = 0

    def add(self, questions: list[Any], contexts: list[Any], answers: list[Any]) -> None:
        """Write the features of a batch of questions.

        Raises:
            TrainError: a row is not a question with context and answers.
        """
        rows = list(zip(questions, contexts, answers, strict=True))
        for row in rows:
            self._check(*row)
        if not self._options.version_2_with_negative and self._split != PREDICTED:
            rows = [row for row in rows if row[2]["text"]]
        self._left_out += len(questions) - len(rows)
        if rows:
            self._write(*(list(column) for column in zip(*rows, strict=True)))

    def close(self) -> list[str]:
        """Close the files; returns notices for the user.

        Raises:
            TrainError: there is no usable question.
        """
        split, unanswered = self._split, f"{self._left_out} questions without an answer"
        if not self._kept:
            raise TrainError(
                f"{split} has no questions" + (f", but {unanswered}" if self._left_out else ""),
                "to train on those as well: version_2_with_negative=true",
            )
        rows = self._kept + self._left_out
        self._writer.close(questions=self._questions, rows=rows, left_out=self._left_out)
        notices = [f"{split}: {self._kept} questions, {len(self._writer)} features"]
        if self._left_out:
            notices.append(f"{split}: {unanswered} are omitted (version_2_with_negative is false)")
        if self._cut:
            limit = self._options.max_query_length
            notices.append(f"{split}: {self._cut} questions were truncated to {limit} tokens")
        return notices

    def _check(self, question: Any, context: Any, answers: Any) -> None:
        if not isinstance(question, str) or not isinstance(context, str):
            raise TrainError(f"{self._split} has a question or context that is not a text")
        if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= set(answers):
            raise TrainError(
                f"{self._split} has answers that are not an object with text and answer_start"
            )

    def _write(self, questions: list[str], contexts: list[str], answers: list[Any]) -> None:
        encoded = self._tokenizer(
            self._truncated(questions),
            contexts,
            truncation="only_second",
            max_length=self._length,
            stride=self._options.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for feature, row in enumerate(encoded["overflow_to_sample_mapping"]):
            sequence = encoded.sequence_ids(feature)
            of_context = [i for i, text in enumerate(sequence) if text == CONTEXT]
            first = of_context[0] if of_context else 0
            mapping = encoded["offset_mapping"][feature]
            offsets = [mapping[i] for i in of_context]
            null = self._null_position(encoded["input_ids"][feature])
            start, end = _answer_positions(answers[row], offsets, first) or (null, null)
            if self._split == "train":
                offsets = []  # the largest column, which only evaluations need
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

    def _truncated(self, questions: list[str]) -> list[str]:
        """The questions, truncated to max_query_length tokens."""
        limit = self._options.max_query_length
        encoded = self._tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
        truncated = list(questions)
        for i, ids in enumerate(encoded["input_ids"]):
            if len(ids) > limit:
                self._cut += 1
                truncated[i] = questions[i][: encoded["offset_mapping"][i][limit - 1][1]]
        return truncated

    def _null_position(self, ids: Sequence[int]) -> int:
        """The position that stands for "no answer": the first special token."""
        for token in (self._tokenizer.cls_token_id, self._tokenizer.bos_token_id):
            if token in ids:
                return ids.index(token)
        return 0


def _answer_positions(
    answers: Mapping[str, Any], offsets: Offsets, first: int
) -> tuple[int, int] | None:
    """First and last token of the first answer, if the feature has it."""
    if not answers["text"]:
        return None
    begin = answers["answer_start"][0]
    return tokens_of_answer(offsets, first, begin, begin + len(answers["text"][0]))
