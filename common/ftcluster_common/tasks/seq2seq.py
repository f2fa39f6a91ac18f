"""The task seq2seq-lm: training encoder-decoders to turn a source text into a target text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.data_files import DataError, found_columns
from ftcluster_common.data.row_checks import CheckRow, check_by_reading
from ftcluster_common.data.source_target import SourceTarget, language_code, source_and_target
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import Adapters, Contradiction, TaskSpec

WRITING_METRICS = ("rouge1", "rouge2", "rougeL", "chrf", "bleu", "gen_len")
TRANSLATION = "translation"
KNOWN = (
    ("source", "target"), ("document", "summary"), ("article", "highlights"),
    ("dialogue", "summary"), ("article", "summary"), ("text", "summary"), ("input", "target"),
    ("input_text", "target_text"), ("source_text", "target_text"), ("src", "tgt"),
    ("input", "output"), ("text", "target"), ("question", "answer"),
)  # fmt: skip


@dataclass(frozen=True)
class Seq2SeqLm(Adapters):
    """Trains an encoder-decoder that reads a text and generates another text, such as a summary.

    Fields are named as in transformers' examples run_summarization and run_translation.

    Attributes:
        source_column: column with the source texts, which the encoder reads. Default: detected from
            the column names.
        target_column: column with the target texts, which the decoder learns to generate. Default:
            detected from the column names.
        source_lang: source language: a column name, or a key if each cell contains texts by
            language, as in WMT's `{"en": "...", "de": "..."}`.
        target_lang: target language: a column name or a key, like source_lang.
        source_prefix: text that is put before each source, such as T5's `summarize: `.
        max_source_length: maximum number of tokens of a source; longer sources are truncated.
        max_target_length: maximum number of tokens of a target; longer targets are truncated.
        predict_with_generate: False to measure only the loss in evaluations. By default,
            evaluations also generate texts and compare them with the targets.
        num_beams: number of beams for generation; 1 means greedy search. Default: the value in the
            model's generation_config.json.
        max_new_tokens: maximum number of tokens of a generated text. Default: max_target_length.
        min_length: minimum tokens of a generated text, including the decoder's start token.
            Default: the value in the model's generation_config.json.
        no_repeat_ngram_size: length of token sequences that may occur only once in a generated
            text; 0 allows every repetition. Default: the value in the model's
            generation_config.json.
        reset_generation: True to discard the model's other generation settings, such as forced and
            suppressed tokens. They are also removed from the trained model's
            generation_config.json.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    source_column: str | None = None
    target_column: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    source_prefix: str = ""
    max_source_length: int = limited(512, at_least=2)
    max_target_length: int = limited(128, at_least=2)
    predict_with_generate: bool = True
    num_beams: int | None = limited(None, at_least=1, at_most=64)
    max_new_tokens: int | None = limited(None, at_least=1)
    min_length: int | None = limited(None, at_least=0)
    no_repeat_ngram_size: int | None = limited(None, at_least=0)
    reset_generation: bool = False
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a source."""
        return self.max_source_length


def source_target_columns(
    options: Seq2SeqLm, columns: Sequence[str], answered: bool = True
) -> SourceTarget:
    """Return the columns with sources and targets.

    Args:
        answered: True if the data must contain targets.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    source, target = options.source_column, options.target_column
    languages = (options.source_lang, options.target_lang)
    if languages[0] and languages[1]:
        both = source or TRANSLATION
        if both in columns and target in (None, both):
            return SourceTarget(both, both if answered else "", (languages[0], languages[1]))
        source, target = (
            source or _column_of(languages[0], columns),
            target or _column_of(languages[1], columns),
        )
    names = {name.lower(): name for name in columns}
    for usual_pair in KNOWN:
        pair = names.get(usual_pair[0]), names.get(usual_pair[1])
        fits = target in (None, pair[1]) if answered and pair[1] else not answered
        if pair[0] and source in (None, pair[0]) and fits:
            source, target = pair
            break
    wanted = (source, target) if answered else (source,)
    missing = [name for name in wanted if name not in columns]
    if not missing:
        return SourceTarget(source or "", (target or "") if answered else "")
    named = [name for name in missing if name]
    what = f"no column {', '.join(named)}" if named else "no source and target with usual names"
    hint = f"source_column={source or 'NAME'} target_column={target or 'NAME'}"
    if TRANSLATION in columns and not named:
        what, hint = "texts of several languages", "source_lang=en target_lang=de"
    raise DataError(f"{what}; {found_columns(columns)}; name the columns: {hint}")


def _column_of(language: str, columns: Sequence[str]) -> str | None:
    return next((name for name in (language, language_code(language)) if name in columns), None)


class Seq2SeqLmSpec(TaskSpec[Seq2SeqLm]):
    """The declaration of the task seq2seq-lm."""

    name = "seq2seq-lm"
    fields = Seq2SeqLm
    later_fields = (
        *TaskSpec.later_fields, "min_length", "no_repeat_ngram_size", "reset_generation",
    )  # fmt: skip
    recipe = "seq2seq"
    auto_class = "AutoModelForSeq2SeqLM"
    adapter_type = "SEQ_2_SEQ_LM"
    model_recipes = {"ForConditionalGeneration": ("seq2seq",)}
    pipeline = "summarization"
    model_kind = "encoder-decoder"
    predicts_tokens = True
    training_fields = (*TaskSpec.training_fields, "predict_with_generate", "reset_generation")
    set_fields = ("source_prefix",)

    def columns(self, options: Seq2SeqLm, columns: Sequence[str], answered: bool) -> Columns:
        """Return the columns with source and target texts."""
        both = source_target_columns(options, columns, answered)
        return {"source": (both.source,), "target": (both.target,) if both.target else ()}

    def row_check(self, options: Seq2SeqLm, answered: bool, columns: Sequence[str]) -> CheckRow:
        """Return a check that both texts of a row can be read."""
        both = source_target_columns(options, columns, answered)
        return check_by_reading(partial(source_and_target, columns=both))

    def row_form(self, options: Seq2SeqLm, answered: bool) -> str:
        """Describe a row that contains a source and a target text."""
        source, target = options.source_column or "source", options.target_column or "target"
        both = f", {target} (the text to write)" if answered else ""
        return (
            f"each row has {source} (the text to read){both}; or translation with a text for "
            "each language: source_lang=en target_lang=de"
        )

    def has_references(self, options: Seq2SeqLm) -> bool:
        """Return True if evaluations generate texts."""
        return options.predict_with_generate

    def metric_names(self, options: Seq2SeqLm) -> tuple[str, ...]:
        """Return the loss and, if evaluations generate texts, the metrics for these texts."""
        return ("loss", *(WRITING_METRICS if options.predict_with_generate else ()))

    def contradictions(self, options: Seq2SeqLm) -> Iterator[Contradiction]:
        """Yield an error if only one language of a translation is set."""
        if bool(options.source_lang) != bool(options.target_lang):
            name = "target_lang" if options.source_lang else "source_lang"
            yield name, "a translation has two languages: source_lang and target_lang"

    def target_length(self, options: Seq2SeqLm) -> int:
        """Return the maximum number of tokens of a target."""
        return options.max_target_length

    def pipeline_of(self, options: Mapping[str, Any]) -> str:
        """Return the pipeline for translation if source_lang is set, else for summarization."""
        return "translation" if options.get("source_lang") else self.pipeline
