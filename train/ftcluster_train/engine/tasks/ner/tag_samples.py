"""Conversion of rows with tagged words to samples, one for each window of a row's tokens."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ftcluster_common.data.class_names import match_names
from ftcluster_common.data.tagged_words import Scheme, Tagged, entities, scheme_of, tags_of
from ftcluster_common.tasks.ner import TokenClassification
from ftcluster_train.engine.data.token_samples import SampleWriter
from ftcluster_train.engine.data.windows import windows
from ftcluster_train.engine.tasks.ner.labelled_tokens import Labelled, label_tokens
from ftcluster_train.errors import TrainError

IGNORED = -100  # label of tokens that do not contribute to the loss
SHOWN = 12  # maximum number of tags in a message

Read = tuple[
    str, Tagged, Scheme
]  # place of a row, the row, and the tag scheme of its set up to this row


class TagWriter:
    """Writes the samples of a set.

    A sample contains the tokens of a window, their `tags`, and the index `row` of their row. For
    each labelled token it contains the index `word` of the token's word, and the character range
    `begin` to `end`. If the data consist of words, `words` is the number of words in the row.

    Args:
        kinds: columns of the tokenizer, with their array type codes.
        names: names of the model's tags.
        limit: maximum number of tokens of a window, including special tokens.
        predicts: True for rows to predict, which have no tags. If False, rows without words are
            skipped.

    Raises:
        TrainError: `limit` leaves no more tokens than neighbouring windows share.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, options: TokenClassification,
        kinds: Mapping[str, str], folder: Path, names: Sequence[str], limit: int, predicts: bool,
    ) -> None:  # fmt: skip
        self._tokenizer, self._options, self._kinds = tokenizer, options, kinds
        self._names, self._limit, self._predicts = names, limit, predicts
        special = tokenizer.num_special_tokens_to_add()
        self._room = limit - special
        if self._room <= options.doc_stride:
            raise TrainError(
                f"windows of {limit} tokens, {special} of them special tokens, cannot share "
                f"{options.doc_stride} tokens",
                f"share fewer tokens: doc_stride={limit // 4}",
            )
        self._numbers = {name: number for number, name in enumerate(names)}
        columns = ("tags", "row", "words", "word", "begin", "end")
        self._writer = SampleWriter(folder, {**kinds, **dict.fromkeys(columns, "i")})
        self._rows = 0
        self._texts: list[str] = []  # texts of rows to predict
        self._counts = Counter[str]()
        # pairs of a tag in the data and the model's spelling of the tag
        self._matched = Counter[tuple[str, str]]()

    def add(self, batch: Sequence[Read]) -> None:
        """Write the samples of a batch of rows.

        Raises:
            TrainError: the rows contain a tag that the model lacks.
        """
        texts = [tagged.text for _, tagged, _ in batch]
        encoded = self._tokenizer(texts, return_offsets_mapping=True)
        for number, (where, tagged, scheme) in enumerate(batch):
            ids = encoded.sequence_ids(number)
            content = [place for place, text in enumerate(ids) if text is not None]
            offsets, word_ids = encoded["offset_mapping"][number], encoded.word_ids(number)
            row = label_tokens(
                tagged, [offsets[i] for i in content], [word_ids[i] for i in content],
                self._options.label_all_tokens,
            )  # fmt: skip
            tags = [0] * len(row.tokens)
            if not self._predicts:
                tags = self._tags([token.tag for token in row.tokens], where, scheme)
            self._counts["lost"] += row.lost
            self._counts["unfit"] += row.unfit
            self._counts["spans"] += len(tagged.spans)
            columns = {name: encoded[name][number] for name in self._kinds}
            self._write(columns, content, [*zip(row.tokens, tags, strict=True)], len(tagged.words))
        self._texts += texts * self._predicts

    def _write(
        self, columns: Mapping[str, list[int]], content: Sequence[int],
        labelled: Sequence[tuple[Labelled, int]], words: int,
    ) -> None:  # fmt: skip
        first, behind = (content[0], content[-1] + 1) if content else (0, 0)
        parts = [*windows(len(content), self._room, self._options.doc_stride)]
        self._counts["long"] += len(parts) > 1
        self._counts["windows"] += len(parts) * (len(parts) > 1)
        self._counts["left out"] += not labelled and not self._predicts
        for part in parts:
            own = [(o, tag) for o, tag in labelled if part.own_begin <= o.position < part.own_end]
            if not own and not (self._predicts and part.begin == 0):
                continue
            sample: dict[str, list[int]] = {
                name: [*values[:first], *values[first:behind][part.begin : part.end],
                       *values[behind:]]
                for name, values in columns.items()
            }  # fmt: skip
            sample["tags"] = [IGNORED] * len(sample["input_ids"])
            for token, tag in own:
                sample["tags"][first + token.position - part.begin] = tag
            sample |= {"row": [self._rows], "words": [words] if words else []}
            sample["word"] = [token.word for token, _ in own]
            sample |= {
                name: [token.place[at] for token, _ in own]
                for at, name in enumerate(("begin", "end"))
            }
            self._writer.add(sample)
        self._rows += 1

    def _tags(self, tags: list[str], where: str, scheme: Scheme) -> list[int]:
        """Convert tags to the model's scheme, and return their indices in the model.

        Tags of spans are IOB2. IOB1 tags are converted to IOB2 if the model has a B- tag for each
        type, as all models trained by ftcluster do. A model's tag names alone do not reveal which
        of these two schemes it uses.
        """
        wanted = scheme_of(self._names)
        if scheme and (scheme == "plain") != (wanted == "plain"):
            raise TrainError(f"{where}: the tags are {scheme}, but the model's tags are {wanted}")
        if wanted != "plain" and (scheme != wanted or self._options.repair_tags):
            tags = tags_of(entities(tags), len(tags), wanted)
        tags = [tag if tag in self._numbers else self._match(tag) for tag in tags]
        if unknown := {*tags} - self._numbers.keys():
            more = " ..." * (len(self._names) > SHOWN)
            raise TrainError(
                f"{where}: the model has no tag {min(unknown)}; it has "
                f"{', '.join(islice(self._names, SHOWN))}{more}",
                "for a training, include each entity type in the training set; for a trained "
                "model, use the model's type names",
            )
        return [self._numbers[tag] for tag in tags]

    def _match(self, tag: str) -> str:
        """Return the model's spelling of a tag, which may differ in case or Unicode form."""
        (place,) = match_names([tag], self._names)
        if place is None:
            return tag
        self._matched[tag, self._names[place]] += 1
        return self._names[place]

    def close(self, split: str, **about: Any) -> list[str]:
        """Close the files and return notices.

        Raises:
            TrainError: no sample was written.
        """
        if not len(self._writer):
            raise TrainError(f"the data have no words in {split}")
        count, every = self._counts, self._options.label_all_tokens
        about |= {"texts": self._texts} if self._predicts else {"left_out": count["left out"]}
        self._writer.close(names=self._names, rows=self._rows, **about)
        what = "tokens" if every else "words"
        # advise label_all_tokens only for tag schemes that support it
        advised = not every and scheme_of(self._names) in ("IOB1", "IOB2")
        better = "; label_all_tokens=true also trains on spans that end inside words" * advised
        texts = {
            "long": f"rows have more than {self._limit} tokens: {count['windows']} windows",
            "unfit": f"OF {count['spans']} SPANS begin or end within one of the tokenizer's "
            f"{what}, and are widened to whole {what}{better}",
            "lost": "words have no token, so they do not contribute to the loss",
            "left out": "rows without a word are skipped",
        }
        notices = [f"{split}: {count[name]} {text}" for name, text in texts.items() if count[name]]
        if self._matched:
            most = self._matched.most_common(SHOWN)
            pairs = [f"{tag} as {name} ({count})" for (tag, name), count in most]
            notices.append(f"{split}: tags are read as the model's tags: {', '.join(pairs)}")
        return notices
