"""Encoder-decoder models that read a source text and write a target, such as a summary."""

import math
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy as smoothed_cross_entropy
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from ftcluster_common.data.data_sets import is_train
from ftcluster_common.data.source_target import source_and_target
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.seq2seq import Seq2SeqLm, source_target_columns
from ftcluster_kernels.cross_entropy import (
    cross_entropy,
    linear_cross_entropy,
    token_losses,
)
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows, find_columns, read_rows
from ftcluster_train.engine.data.token_samples import (
    LENGTHS,
    Sample,
    Samples,
    SampleWriter,
    token_kind,
)
from ftcluster_train.engine.tasks.base import COMPARED_TOKENS, Batch, Data, Document, Task
from ftcluster_train.engine.tasks.generation_settings import (
    kept_settings,
    plain_settings,
    read_generation_settings,
    read_vocabulary_size,
)
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.engine.tasks.seq2seq.target_review import TargetReview
from ftcluster_train.engine.tasks.seq2seq.text_overlap import overlap
from ftcluster_train.engine.tasks.seq2seq.unknown_tokens import UnknownTokens
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import sums_for, token_rows_for
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHOSEN = ("min_length", "no_repeat_ngram_size")  # recipe fields that override the model's settings
IGNORED = -100  # label of padding, which does not contribute to the loss
SHOWN = 3  # number of generated texts that a report shows next to their references
SHOWN_CHARACTERS = 600


@register
class Seq2SeqLmTask(Task):
    """Trains with the cross entropy of the targets' tokens, averaged over all ranks.

    A method of the model shifts the target's tokens to get the decoder's input.

    Attributes:
        generates: True if evaluations generate texts.
        inherited: generation settings from the folder of the pretrained model.
    """

    name = "seq2seq-lm"
    model_class = AutoModelForSeq2SeqLM
    options: Seq2SeqLm
    large_vocabulary = True
    trains_head = False
    loss_column = "labels"

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.generates = self.options.predict_with_generate or self.purpose == PREDICT
        self._target_limit = 0
        self._shift: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.inherited: dict[str, Any] = {}
        self._vocabulary = 0  # number of token embeddings; 0 if unknown
        chosen = {name: getattr(self.options, name) for name in CHOSEN}
        # generation settings from the recipe, and later the token that forces the target language
        self._forced = {name: value for name, value in chosen.items() if value is not None}
        self._set_languages()

    def sample_settings(self) -> dict[str, Any]:
        return {"generation": self.inherited, "vocabulary": self._vocabulary}

    def _set_languages(self) -> None:
        """Set the languages of a multilingual tokenizer.

        Raises:
            TrainError: the recipe has no languages, or the tokenizer does not support them.
        """
        if not hasattr(self.tokenizer, "src_lang"):
            return
        named = (self.options.source_lang, self.options.target_lang)
        supported = [name for name in named if name and self._is_known(name)]
        unknown = ", ".join(name or "(none)" for name in named if name not in supported)
        if len(supported) < len(named):
            raise TrainError(
                f"the tokenizer of {self.recipe.model} is multilingual, and does not support these "
                f"languages: {unknown}",
                "use the tokenizer's names of both languages, such as source_lang=en_XX "
                "target_lang=ro_RO",
            )
        self.tokenizer.src_lang, self.tokenizer.tgt_lang = supported
        self._forced |= {"forced_bos_token_id": self.tokenizer.convert_tokens_to_ids(supported[1])}

    def _is_known(self, language: str) -> bool:
        return bool(self.tokenizer.convert_tokens_to_ids(language) != self.tokenizer.unk_token_id)

    # data

    def inspect_model(self, folder: Path) -> None:
        if not self.recipe.from_scratch:
            self.inherited = read_generation_settings(folder)
            self._vocabulary = read_vocabulary_size(folder)
            if self.options.reset_generation:
                self.inherited = kept_settings(self.inherited)

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        options = self.options
        limits = {"max_source_length": options.max_source_length}
        if self.purpose != PREDICT:
            limits["max_target_length"] = options.max_target_length
        notices, lengths = [], []
        for field, wanted in limits.items():
            limit, more = self.limit_length(wanted, field, longest)
            lengths.append(limit)
            notices += more
        self.limit, self._target_limit = sum(lengths), lengths[-1]
        sets, drawn = self.with_validation(self.sets(data))
        self.keep_rows(sets, folder)
        for split, rows in sets.items():
            with self.using(split):
                notices += self.encode_split(rows, split, lengths[0], folder / split)
        return [*notices, *drawn]

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        options, answered = self.options, self.purpose != PREDICT
        columns = find_columns(
            rows, split, lambda names: source_target_columns(options, names, answered)
        )
        kind = token_kind(len(self.tokenizer))
        kinds = {"input_ids": kind, "labels": kind}
        # also store the reference as a string: its tokens may be truncated or lack characters
        kinds |= {"reference": "B"} if not is_train(split) else {}
        writer = SampleWriter(folder, kinds)
        pairs = (
            pair for _, pair in read_rows(rows, split, lambda r: source_and_target(r, columns))
        )
        lengths = array(LENGTHS), array(LENGTHS)
        # notices about settings are reported only once
        first = is_train(split) or self.purpose != "train"
        settings = self.inherited | self._forced if first else {}
        reviewed = TargetReview(self.tokenizer, settings, self._most_written, self._vocabulary)
        unknown = UnknownTokens(self.tokenizer)
        while batch := list(islice(pairs, BATCH_ROWS)):
            sources = [options.source_prefix + source for source, _ in batch]
            targets = [target for _, target in batch]
            read = self._tokens(sources, limit, lengths[0])
            unknown.add(read, sources)
            written: list[list[int]] = [[] for _ in batch]
            if answered:
                written = self._tokens(targets, self._target_limit, lengths[1], "text_target")
                reviewed.add(read, written, targets, self._target_limit)
            for ids, labels, target in zip(read, written, targets, strict=True):
                reference = list(target.encode())
                writer.add({"input_ids": ids, "labels": labels, "reference": reference})
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        limits = (limit, self._target_limit)
        cut = [sum(n > most for n in of) for of, most in zip(lengths, limits, strict=True)]
        names = {"source_column": columns.source, "target_column": columns.target}
        kept = names if columns.languages is None and answered else {}
        writer.close(columns=kept, rows=len(writer), cut=sum(cut))
        kinds_of_text = zip(("source", "target"), lengths, limits, cut, strict=True)
        cut_notices = [
            f"{split}: {n} {what}s were truncated to {most} tokens, see max_{what}_length; "
            f"{_in_words(sorted(of))}"
            for what, of, most, n in kinds_of_text
            if n
        ]
        targets_notices = reviewed.notices(split, self.recipe.model)
        return [*cut_notices, *unknown.notice(split, "sources"), *targets_notices]

    def _tokens(
        self, texts: list[str], limit: int, lengths: "array[int]", kind: str = "text"
    ) -> list[list[int]]:
        """Tokenize texts, and truncate each text to `limit` tokens.

        Args:
            lengths: array to which the number of tokens of each text before truncation is appended.
            kind: name of the tokenizer's argument for these texts.
        """
        self.reader.count_special(texts)
        tokens: list[list[int]] = self.tokenizer(**{kind: texts})["input_ids"]
        lengths.extend(map(len, tokens))
        special = self.tokenizer.num_special_tokens_to_add()
        self.reader.empty += sum(len(ids) <= special for ids in tokens)
        if long := [number for number, ids in enumerate(tokens) if len(ids) > limit]:
            again = {kind: [texts[number] for number in long]}
            shorter = self.tokenizer(**again, truncation=True, max_length=limit)["input_ids"]
            for number, ids in zip(long, shorter, strict=True):
                tokens[number] = ids
        return tokens

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        source, target = sample["input_ids"], sample["labels"]
        return [Document([*source, *target], range(len(source), len(source) + len(target)))]

    # model

    def check_model(self, model: "PreTrainedModel") -> None:
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if shift is None:
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which does not define "
                "the decoder's input for a target text",
                "use a model such as T5, BART, Pegasus or Marian",
            )
        if getattr(model.config, "decoder_start_token_id", None) is None:
            raise TrainError(
                f"the configuration of {self.recipe.model} does not define the first token of its "
                "decoder",
                f"define it: config_overrides.decoder_start_token_id={self.tokenizer.pad_token_id}",
            )
        self._shift = shift
        if self.options.reset_generation:
            model.generation_config = plain_settings(
                model.generation_config, self.tokenizer, max_new_tokens=self._most_written
            )
        if self._forced:
            model.generation_config.update(**self._forced)

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self.check_model(model)
        return super().use_fused_loss(model)

    def inputs_to_compare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        few = [
            {name: sample[name][:COMPARED_TOKENS] for name in ("input_ids", "labels")}
            for sample in samples[:1]
        ]
        inputs = self.reader.pad(few)
        # a decoder's first token may differ from the first token of a target
        return {**inputs, "decoder_input_ids": _padded(few, 0), "use_cache": False}

    # a batch

    def lengths(self, samples: Samples) -> Sequence[int]:
        return array(LENGTHS, map(add, samples.lengths("input_ids"), samples.lengths("labels")))

    def weights(self, samples: Samples) -> Sequence[int]:
        return samples.lengths("labels")

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Return a batch with padded sources and targets.

        The targets for the loss are the targets' token ids and their positions in the decoder's
        output.
        """
        assert self._shift is not None, "check_model comes first"
        labels = _padded(samples, IGNORED)
        places = (labels != IGNORED).flatten().nonzero().flatten()
        inputs = {
            **self.reader.pad(samples),
            "decoder_input_ids": self._shift(labels),
            "use_cache": False,
        }
        return Batch(inputs, {"tokens": labels.flatten()[places], "places": places})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss, summed over the target tokens."""
        logits, tokens = outputs.logits.flatten(0, 1)[targets["places"]], targets["tokens"]
        if self.head is not None:  # `logits` are hidden states
            return linear_cross_entropy(
                logits, self.head, tokens, sums=sums_for(self.head), rows=token_rows_for(self.head)
            )
        if self.smoothing:
            return smoothed_cross_entropy(
                logits.float(), tokens, reduction="sum", label_smoothing=self.smoothing
            )
        return cross_entropy(logits, tokens, reduction="sum")

    def evaluation_tokens(self, model: "PreTrainedModel") -> int:
        config = model.generation_config
        beams = self.options.num_beams or getattr(config, "num_beams", None) or 1
        return super().evaluation_tokens(model) // (beams if self.generates else 1)

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        """Return each sample's summed loss, target length, generated text and its length."""
        losses = [(0.0, 0) for _ in samples]
        if self.purpose != PREDICT:
            losses = super().predict(model, samples, bf16)
        texts = [("", 0) for _ in samples]
        if self.generates:
            # generation needs logits, not hidden states
            with KernelMode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                texts = self._write(model, samples)
        return [(*loss, *text) for loss, text in zip(losses, texts, strict=True)]

    @property
    def _most_written(self) -> int:
        """The maximum number of tokens in a generated text."""
        return self.options.max_new_tokens or self.options.max_target_length

    def _write(self, model: "PreTrainedModel", samples: Sequence[Sample]) -> list[tuple[str, int]]:
        options = self.options
        beams = {} if options.num_beams is None else {"num_beams": options.num_beams}
        written = model.generate(
            **self.reader.pad(samples),
            **beams,
            max_new_tokens=self._most_written,
            do_sample=False,
        )
        padding = self.tokenizer.pad_token_id
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return list(zip(texts, (written != padding).sum(1).tolist(), strict=True))

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each sample's summed loss and its number of target tokens."""
        targets = self.collate(samples).targets
        logits, tokens = outputs.logits.flatten(0, 1)[targets["places"]], targets["tokens"]
        if self.evaluation_head is not None:  # `logits` are hidden states
            losses = token_losses(logits, self.evaluation_head, tokens)
        else:
            losses = cross_entropy(logits, tokens, reduction="none")
        counts = [len(sample["labels"]) for sample in samples]
        sums = [part.sum().item() for part in losses.split(counts)]
        return list(zip(sums, counts, strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        losses, counts, texts, lengths = zip(*predictions, strict=True)
        scores = {"loss": math.fsum(losses) / sum(counts)}
        if self.generates:
            scores |= overlap(texts, [_reference(sample) for sample in samples])
            scores["gen_len"] = statistics.fmean(lengths)
        return scores

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the generated texts and the target texts."""
        return [text for _, _, text, _ in predictions], [_reference(sample) for sample in samples]

    def texts(self, predictions: Sequence[Any], samples: Samples) -> list[list[str]]:
        if not self.generates:
            return []
        few = islice(zip(samples, predictions, strict=True), SHOWN)
        return [
            [
                text[:SHOWN_CHARACTERS]
                for text in (self._source(sample), _reference(sample), written)
            ]
            for sample, (_, _, written, _) in few
        ]

    def _source(self, sample: Sample) -> str:
        return str(self.tokenizer.decode(sample["input_ids"], skip_special_tokens=True))

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        return [{"prediction": text} for _, _, text, _ in predictions]


def _padded(samples: Sequence[Sample], padding: int) -> torch.Tensor:
    """Return the token ids of the targets as a tensor, padded to one length."""
    longest = max(1, *(len(sample["labels"]) for sample in samples))
    return torch.tensor([s["labels"] + [padding] * (longest - len(s["labels"])) for s in samples])


def _reference(sample: Sample) -> str:
    return bytes(sample["reference"]).decode()


def _in_words(lengths: Sequence[int]) -> str:
    """Describe the distribution of text lengths, which must be sorted in ascending order."""
    shares = (f"{share} % have at most {_percentile(lengths, share)}" for share in (50, 95, 99))
    return f"{', '.join(shares)}, the longest {lengths[-1]}"


def _percentile(lengths: Sequence[int], share: int) -> int:
    """Return the smallest length that at least `share` percent of the texts do not exceed.

    >>> _percentile([10, 20, 30, 40], 50)
    20
    """
    return lengths[math.ceil(len(lengths) * share / 100) - 1]
