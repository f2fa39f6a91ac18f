"""Prediction of a tag for each word, for entities or parts of speech, as in run_ner."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification

from ftcluster_common.data.data_files import TRAIN
from ftcluster_common.data.tagged_words import (
    OUTSIDE,
    Scheme,
    TagCheck,
    TaggedColumns,
    names_of_tags,
    plain_tag,
    read_tagged,
    scheme_of,
)
from ftcluster_common.protocol.class_report import ClassReport
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.tasks.ner import TokenClassification, tagged_columns
from ftcluster_train.engine.data.sets import all_rows
from ftcluster_train.engine.data.sources import (
    BATCH_ROWS,
    Rows,
    class_names,
    find_columns,
    read_rows,
)
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.tasks.base import Batch, Data, Document, Task
from ftcluster_train.engine.tasks.class_numbers import names_of_model, numbered
from ftcluster_train.engine.tasks.ner.entity_scores import (
    entities_of,
    entity_metrics,
    entity_report,
    found_entities,
)
from ftcluster_train.engine.tasks.ner.tag_samples import IGNORED, Read, TagWriter
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.engine.tasks.tokens import rectangle
from ftcluster_train.errors import TrainError


@register
class TokenClassificationTask(Task):
    """Trains with the cross entropy of the tags of labelled tokens, averaged over all ranks."""

    name = "token-classification"
    model_class = AutoModelForTokenClassification
    options: TokenClassification
    loss_column = "word"
    reads_padding = False

    def check_padding(self) -> None:
        if not self.tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer of {self.recipe.tokenizer or self.recipe.model} does not report "
                "which word a token belongs to",
                "use a tokenizer that has a tokenizer.json: tokenizer=DIR",
            )
        super().check_padding()

    # data

    def inspect_rows(self, rows: Rows) -> None:
        if self.options.tag_names or self.purpose == PREDICT:
            return
        columns = find_columns(rows, "the data", self._columns)
        names = class_names(rows, columns.label) if columns.tokens else []
        self.options = replace(self.options, tag_names=tuple(names))

    def _columns(self, names: Sequence[str]) -> TaggedColumns:
        return tagged_columns(self.options, names, self.purpose != PREDICT)

    def sets(self, data: Data) -> dict[str, Rows]:
        return self.with_equal_columns(super().sets(data))

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets = self.sets(data)
        names = names_of_model(self.trained) if self.trained else self._find_names(all_rows(sets))
        names = [plain_tag(name) for name in names]
        if self.options.label_all_tokens and scheme_of(names) not in ("IOB1", "IOB2"):
            raise TrainError(
                "label_all_tokens needs IOB tags, because further tokens of a word get its I- tag",
                "remove label_all_tokens",
            )
        sets, drawn = self.with_validation(sets)
        self.keep_rows(sets, folder)
        for split, rows in sets.items():
            writer = TagWriter(
                self.tokenizer, self.options, self.reader.token_kinds(), folder / split, names,
                limit, self.purpose == PREDICT,
            )  # fmt: skip
            with self.naming(split):
                read = self._read(rows, split)
                while batch := list(islice(read, BATCH_ROWS)):
                    self.reader.count_special(tagged.text for _, tagged, _ in batch)
                    writer.add(batch)
            notices += writer.close(split)
        return [*notices, *drawn]

    def _find_names(self, rows: Rows) -> list[str]:
        """Return the tags for a training run: first the tags that the data declare, then all
        others.

        Raises:
            TrainError: there are no tags, or only some of the tags have a prefix.
        """
        tags: set[str] = set()
        for _, tagged, _ in self._read(rows, TRAIN):
            tags |= {*tagged.tags, *(f"B-{kind}" for kind, _, _ in tagged.spans)} - {OUTSIDE}
        scheme = scheme_of(tags)
        if not tags:
            raise TrainError(f"no word of {TRAIN} has a tag, so there is nothing to learn")
        if scheme == "plain" and (prefixed := [tag for tag in tags if scheme_of([tag]) != scheme]):
            raise TrainError(f"{TRAIN} has tags with a prefix ({min(prefixed)}) and tags without")
        named = map(plain_tag, self.options.tag_names)
        return [*dict.fromkeys([*named, *names_of_tags({OUTSIDE, *tags}, scheme)])]

    def _read(self, rows: Rows, split: str) -> Iterator[Read]:
        columns, check = find_columns(rows, split, self._columns), TagCheck()
        read = read_rows(rows, split, lambda row: read_tagged(row, columns, self.options.tag_names))
        for where, tagged in read:
            text, words = tagged.text, tagged.words
            if not self.options.repair_tags:
                problem = check.problem(tagged.tags, lambda n: text[slice(*words[n])])  # noqa: B023
                if problem:
                    raise TrainError(f"{where}: {problem}")
            yield where, tagged, check.scheme

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        if self.purpose == PREDICT:
            return super().documents(sample, samples)
        names = self._names(samples)
        places = [(at, names[tag]) for at, tag in enumerate(sample["tags"]) if tag != IGNORED]
        tags = [tag for _, tag in places]
        kinds = [kind for kind, _, _ in entities_of(tags, scheme_of(names))]
        marked = [at for at, tag in places if tag != OUTSIDE]
        return [Document(sample["input_ids"], marked, ", ".join(dict.fromkeys(kinds)), kinds)]

    def _names(self, samples: Samples) -> list[str]:
        return [*samples.about["names"]]

    # model

    def model_settings(self, train_set: Samples) -> dict[str, Any]:
        return numbered(self._names(train_set))

    def weights(self, samples: Samples) -> Sequence[int] | None:
        return samples.lengths("word")

    def collate(self, samples: Sequence[Sample]) -> Batch:
        side = self.tokenizer.padding_side
        tags = rectangle([sample["tags"] for sample in samples], IGNORED, side)
        return Batch(self.reader.pad(samples, side), {"labels": tags})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss, summed over the labelled tokens."""
        return cross_entropy(
            outputs.logits.float().flatten(0, 1), targets["labels"].flatten(), reduction="sum",
            ignore_index=IGNORED, label_smoothing=self.smoothing,
        )  # fmt: skip

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each sample's summed loss, its predicted tags, and the tags' probabilities."""
        labels = self.collate(samples).targets["labels"]
        results = []
        for logits, tags in zip(outputs.logits.float(), labels, strict=True):
            logits, tags = logits[tags != IGNORED], tags[tags != IGNORED]
            scores, likeliest = logits.softmax(-1).max(-1)
            loss = cross_entropy(logits, tags, reduction="sum").item()
            results.append((loss, likeliest.tolist(), scores.tolist()))
        return results

    # results

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the entity metrics of a set, and the mean loss over its labelled tokens."""
        found, true, scheme = self._of_rows(predictions, samples)
        metrics = entity_metrics(entity_report(found, true, scheme), found, true, scheme)
        return {**metrics, "loss": sum(loss for loss, *_ in predictions) / sum(map(len, true))}

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the predicted and the true tags of each row's labelled tokens."""
        chosen, right, _ = self._of_rows(predictions, samples)
        return chosen, right

    def class_report(self, predictions: Sequence[Any], samples: Samples) -> ClassReport | None:
        return entity_report(*self._of_rows(predictions, samples))

    def _of_rows(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[list[list[str]], list[list[str]], Scheme]:
        """Return the predicted tags of each row, the true tags of each row, and the tag scheme."""
        names, found, true = self._names(samples), [], []
        for _, row in _by_row(samples, predictions):
            found.append([names[n] for _, (_, chosen, _) in row for n in chosen])
            true.append([names[n] for s, _ in row for n in s["tags"] if n != IGNORED])
        return found, true, scheme_of(names)

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """Return the predicted entities of each row, with character indices or word indices.

        If rows contain a list of words, the result also contains the tag of each word.
        """
        names, answers = self._names(samples), []
        for number, row in _by_row(samples, predictions):
            text = samples.about["texts"][number]
            tags = [names[n] for _, (_, chosen, _) in row for n in chosen]
            scores = [score for _, (*_, of_window) in row for score in of_window]
            places = [
                [n for sample, _ in row for n in sample[name]] for name in ("begin", "end", "word")
            ]
            of_words = row[0][0]["words"]
            entities = found_entities(tags, scores, text, *places[: 2 + len(of_words)])
            if not of_words:
                answers.append({"prediction": entities})
                continue
            first = dict(reversed([*zip(places[2], tags, strict=True)]))
            of_word = [first.get(number, OUTSIDE) for number in range(*of_words)]
            answers.append({"prediction": of_word, "entities": entities})
        return answers


def _by_row(
    samples: Samples, predictions: Sequence[Any]
) -> Iterator[tuple[int, list[tuple[Sample, Any]]]]:
    """Yield the index of each row, and the row's windows with their predictions."""
    pairs = zip(samples, predictions, strict=True)
    return ((row, [*group]) for row, group in groupby(pairs, lambda pair: pair[0]["row"][0]))
