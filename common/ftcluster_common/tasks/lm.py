"""The tasks causal-lm and masked-lm: training language models on plain text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import TEXTS, named_column
from ftcluster_common.data.data_files import TABLES, TEXT, DataError, found_columns
from ftcluster_common.data.row_checks import CheckRow, check_columns
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import Adapters, Contradiction, TaskSpec

PREDICTS_NOTHING = "a language model predicts nothing for a row"


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Adapters):
    """Fields of the tasks that train on plain text.

    Attributes:
        text_column: column with the text, if the data consist of rows.
        validation_split_percentage: percentage of the samples, taken from the end of the data, to
            use as the validation set if the data have none.
    """

    text_column: str = "text"
    validation_split_percentage: float = limited(5.0, at_least=0.001, at_most=50)


@dataclass(frozen=True, kw_only=True)
class CausalLm(LanguageModel):
    """Predicts the next token; texts are packed into blocks of the same length.

    Attributes:
        block_size: number of tokens in a sample. Texts are joined and then cut into blocks of this
            length.
        vocab_size: maximum size of the vocabulary of a tokenizer that is trained on the data. It
            needs from_scratch and a model without a tokenizer.
        reset_generation: True to discard the model's generation settings, except its special
            tokens, when the model is saved. Adapters that are saved alone keep the settings of
            their base model.
    """

    block_size: int = limited(512, at_least=2)
    vocab_size: int | None = limited(None, at_least=257)
    reset_generation: bool = False


@dataclass(frozen=True, kw_only=True)
class MaskedLm(LanguageModel):
    """Predicts masked tokens, to adapt an encoder to the text of a domain.

    Attributes:
        max_length: number of tokens in a block; with line_by_line, the maximum tokens of a sample.
        line_by_line: True to make a separate sample of each text (a row, or a line of a `*.txt`
            file); a text longer than max_length becomes several samples. Otherwise, texts are
            joined and cut into blocks.
        paragraphs: True if texts in `*.txt` files are separated by blank lines, False if each line
            is a text.
        mlm_probability: probability that a token is predicted. Of these tokens, 80 % are replaced
            by the mask token, 10 % are replaced by random tokens, and 10 % are left unchanged.
        whole_word_mask: True to select whole words instead of single tokens. All tokens of a
            selected word are replaced by the mask token.
    """

    max_length: int = limited(256, at_least=8)
    line_by_line: bool = False
    paragraphs: bool = False
    mlm_probability: float = limited(0.15, above=0, below=1)
    whole_word_mask: bool = False


def text_column(options: LanguageModel, columns: Sequence[str]) -> str:
    """Return the column with the text.

    Raises:
        DataError: there is no such column.
    """
    column = named_column(options.text_column, TEXTS, columns)
    if not column:
        raise DataError(
            f"no column {options.text_column}; {found_columns(columns)}; name it: text_column=NAME"
        )
    return column


def use_pipeline(pipeline: str) -> tuple[str, str]:
    """Return why `ftcluster predict` does not support language models, and what to use instead."""
    return (
        PREDICTS_NOTHING,
        f'its loss: ftcluster evaluate; its texts: transformers\' pipeline("{pipeline}", '
        "model=DIR)",
    )


def settings_of_adapters(options: Adapters, reset_generation: bool) -> Iterator[Contradiction]:
    """Yield an error if generation settings are reset although adapters are saved alone."""
    if reset_generation and options.lora_r is not None and not options.merge_adapters:
        yield (
            "reset_generation",
            "adapters keep the generation settings of their base model: use merge_adapters=true",
        )


Texts = TypeVar("Texts", bound=LanguageModel)


class LanguageModelSpec(TaskSpec[Texts]):
    """Base class for the declarations of the tasks that train on plain text."""

    file_kinds = (TEXT,)
    splits_rows = False
    predicts_tokens = True

    def columns(self, options: Texts, columns: Sequence[str], answered: bool) -> Columns:
        """Return the column with the text, by use."""
        return {"text": (text_column(options, columns),)}

    def row_check(self, options: Texts, answered: bool, columns: Sequence[str]) -> CheckRow:
        """Return a check that a row contains a text."""
        return partial(check_columns, [text_column(options, columns)], [])

    def row_form(self, options: Texts, answered: bool) -> str:
        """Describe the data: text files, or rows that contain a text."""
        return f"texts in *{TEXT}; or rows with {options.text_column} in {', '.join(TABLES)}"

    def metric_names(self, options: Texts) -> tuple[str, ...]:
        """Return the loss and the perplexity."""
        return ("loss", "perplexity")

    def why_not_predicted(self) -> tuple[str, str]:
        """Return the reason, with advice to use transformers' pipeline instead."""
        return use_pipeline(self.pipeline)


class CausalLmSpec(LanguageModelSpec[CausalLm]):
    """The declaration of the task causal-lm."""

    name = "causal-lm"
    fields = CausalLm
    recipe = "clm"
    exported_as = "CausalLM"
    compared_rows = "texts"
    pipeline = "text-generation"
    model_kind = "decoder"
    generates = True
    makes_tokenizer = True
    training_fields = (*TaskSpec.training_fields, "vocab_size", "reset_generation")
    later_fields = (*TaskSpec.later_fields, "reset_generation")

    def tokenizer_contradictions(
        self, options: CausalLm, from_scratch: bool, tokenizer: str | None
    ) -> Iterator[Contradiction]:
        """Yield an error if vocab_size is set although no tokenizer is trained."""
        if options.vocab_size is None:
            return
        if not from_scratch:
            yield "vocab_size", "it is for a tokenizer made from the data: from_scratch: true"
        if tokenizer:
            yield "vocab_size", f"the tokenizer {tokenizer} has its own vocabulary"

    def contradictions(self, options: CausalLm) -> Iterator[Contradiction]:
        """Yield an error if generation settings are reset although adapters are saved alone."""
        yield from settings_of_adapters(options, options.reset_generation)
        yield from super().contradictions(options)

    def max_length(self, options: CausalLm) -> int:
        """Return the length of the blocks that texts are packed into."""
        return options.block_size

    def new_vocabulary(self, options: CausalLm) -> int | None:
        """Return the vocabulary size in the recipe; None if it is not set."""
        return options.vocab_size


class MaskedLmSpec(LanguageModelSpec[MaskedLm]):
    """The declaration of the task masked-lm."""

    name = "masked-lm"
    fields = MaskedLm
    recipe = "mlm"
    exported_as = "MaskedLM"
    adapter_type = ""
    model_recipes = {"ForMaskedLM": ("mlm",)}
    pipeline = "fill-mask"
    scaled_by = dict.fromkeys(("mlm_probability", "whole_word_mask"), ("loss", "perplexity"))

    def logits_share(self, options: MaskedLm) -> float:
        """Return the fraction of the tokens that are predicted."""
        return options.mlm_probability
