"""The declaration of a task, which the planner, the checks and the commands read.

A declaration describes the fields and the data of a task. It is an instance of a subclass of
`TaskSpec`, and `registry` lists all of them. Its methods receive the values that a recipe sets for
the task's fields. Standard library only.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypeVar

from ftcluster_common.data.class_names import flat_labels
from ftcluster_common.data.column_uses import UNREAD, Columns
from ftcluster_common.data.columns import as_flag
from ftcluster_common.data.data_files import VALIDATION, Files, Row
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.limits import limited

Contradiction = tuple[str, str]  # the field to change, and what is wrong with its value
RETRIEVAL_METRICS = ("ndcg_at_10", "mrr_at_10", "accuracy_at_1")
SPECIAL_TOKENS = 4  # <s> question </s></s> context </s>; no known tokenizer adds more
COLUMN_FIELDS = ("_column", "_columns")  # suffixes of the fields that name columns
OF_ADAPTERS = (
    "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora", "load_in_4bit",
    "merge_adapters",
)  # fmt: skip
WITH_HEAD = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")  # peft's tasks with a model head
ALL_LINEAR = "all-linear"  # peft's name for all linear layers except the output layer


@dataclass(frozen=True)
class Options:
    """Base class for the fields of a task in a recipe; each task has its own subclass.

    Fields use the names from Hugging Face's example scripts (run_glue, run_qa, run_clm) and from
    TRL where these define such a field.
    """


@dataclass(frozen=True, kw_only=True)
class Adapters(Options):
    """Fields of the tasks that can train low-rank adapters (LoRA, Hu et al. 2021).

    Attributes:
        lora_r: rank of the low-rank adapters (LoRA) that are trained instead of the model's
            weights. Default: no adapters; all weights are trained.
        lora_alpha: scale of the adapters, whose output is multiplied by lora_alpha / lora_r.
            Default: 2 * lora_r.
        lora_dropout: dropout probability for the input of the adapters.
        lora_target_modules: names of the linear layers that get adapters. Default, also written
            `all-linear`: all linear layers except the model's last one.
        use_rslora: True to divide lora_alpha by the square root of lora_r instead of lora_r
            (rsLoRA).
        use_dora: True to also train the norm of each row of the adapted weights (DoRA).
        merge_adapters: True to merge the adapters into the weights and save the whole model, False
            to save only the adapters.
    """

    lora_r: int | None = limited(None, at_least=1)
    lora_alpha: float | None = limited(None, above=0)
    lora_dropout: float = limited(0.0, at_least=0, below=1)
    lora_target_modules: tuple[str, ...] = ()
    use_rslora: bool = False
    use_dora: bool = False
    merge_adapters: bool = False

    @property
    def adapter_alpha(self) -> float:
        """The value of lora_alpha, or its default 2 * lora_r."""
        return 2 * (self.lora_r or 0) if self.lora_alpha is None else self.lora_alpha

    @property
    def adapter_targets(self) -> tuple[str, ...]:
        """The layers named by lora_target_modules; empty if all linear layers get adapters."""
        return tuple(name for name in self.lora_target_modules if name != ALL_LINEAR)

    @property
    def adapter_scale(self) -> float:
        """The factor by which the output of the adapters is multiplied."""
        assert self.lora_r is not None
        return scale_of_adapters(self.adapter_alpha, self.lora_r, self.use_rslora)


def scale_of_adapters(alpha: float, rank: int, use_rslora: bool) -> float:
    """Return the factor by which an adapter's output is multiplied, as in peft.

    >>> scale_of_adapters(32, 16, False), scale_of_adapters(32, 16, True)
    (2.0, 8.0)
    """
    return alpha / (math.sqrt(rank) if use_rslora else rank)


def adapter_contradictions(options: Options) -> Iterator[Contradiction]:
    """Yield an error for each adapter field that contradicts other fields."""
    if not isinstance(options, Adapters):
        return
    targets = options.lora_target_modules
    if ALL_LINEAR in targets and len(targets) > 1:
        yield "lora_target_modules", f"{ALL_LINEAR} includes all other layers; name it alone"
    if options.lora_r is None:
        plain = {field.name: field.default for field in fields(options)}
        for name in OF_ADAPTERS:
            if name in plain and getattr(options, name) != plain[name]:
                yield name, f"{name} is for adapters, whose rank is lora_r: 16"


Fields = TypeVar("Fields", bound=Options)


class TaskSpec(ABC, Generic[Fields]):
    """Base class for the declaration of a task, which does not need torch.

    Attributes:
        name: name of the task in recipes.
        fields: dataclass of the task's fields; each task needs its own dataclass.
        recipe: built-in recipe that fits any data of the task, or "" if there is none.
        model_recipes: built-in recipes that fit a model, by the suffix of the model's class name.
        pipeline: name of the task on the Hub, if it differs from `name`.
        model_kind: kind of model that the task trains.
        file_kinds: extensions of files that the task reads in addition to tables.
        predicts_tokens: True if the loss is over the vocabulary.
        generates: True if the trained model answers prompts.
        makes_tokenizer: True if training from scratch also trains a tokenizer on the data.
        against_ipex: reason why IPEX cannot optimize the model, or "" if it can.
        scaled_by: metrics whose scale depends on a field, by the name of the field.
        sets_fields: fields whose values another field determines, by the name of the other field on
            a command line.
        student: kind of model that a distillation trains, and the recipe to use the trained model
            with.
        shares_tokenizer: True if a teacher and the model that is trained must read the same tokens.
        exported_as: suffix of the names of the classes that export the model, such as MaskedLM; ""
            if the model cannot be exported.
        compared_rows: part of the user's rows on which an exported model can be compared with the
            original: classes or texts; "" if the task's rows cannot be used.
        reads_pairs: True if the model reads two texts together.
        is_cross_encoder: True if the class CrossEncoder of sentence-transformers loads the model.
        is_sparse_encoder: True if the class SparseEncoder of sentence-transformers loads the model.
            A text's vector then has one element for each token of the vocabulary.
        is_multi_vector_encoder: True if the class MultiVectorEncoder of sentence-transformers loads
            the model, which computes one vector for each token of a text.
        auto_class: class of transformers that loads the model if no pipeline supports it.
        training_fields: fields that only affect training, not how the trained model reads a row.
        splits_rows: True if rows are divided into sets; False if the task can only divide blocks of
            tokens.
        mixes_data: True if the task can train on a mixture of several data sets.
        later_fields: fields that hosts with an older release may not know. job.json contains these
            fields only if they differ from their defaults.
        set_fields: fields that each of several data sets may set, in addition to the names of
            columns.
        base_settings: values that the task sets in the configuration of an adapter's base model, by
            field.
        adapter_type: peft's name of the task; "" if peft has no name for it.
    """

    name: str
    fields: type[Fields]
    recipe: str = ""
    model_recipes: Mapping[str, tuple[str, ...]] = {}
    pipeline: str = ""
    model_kind: Literal["any", "decoder", "encoder-decoder"] = "any"
    file_kinds: tuple[str, ...] = ()
    predicts_tokens: bool = False
    generates: bool = False
    makes_tokenizer: bool = False
    against_ipex: str = ""
    scaled_by: Mapping[str, tuple[str, ...]] = {}
    sets_fields: Mapping[str, tuple[str, ...]] = {}
    student: tuple[str, str] = ("", "")
    shares_tokenizer = False
    exported_as: str = ""
    compared_rows: Literal["", "classes", "texts"] = ""
    reads_pairs: bool = False
    is_cross_encoder: bool = False
    is_sparse_encoder: bool = False
    is_multi_vector_encoder: bool = False
    auto_class: str = ""
    training_fields: tuple[str, ...] = ("validation_split_percentage", "lora_r", *OF_ADAPTERS)
    splits_rows: bool = True
    mixes_data: bool = True
    later_fields: tuple[str, ...] = ("lora_r", *OF_ADAPTERS)
    set_fields: tuple[str, ...] = ()
    base_settings: Mapping[str, Any] = {}
    adapter_type: str = "CAUSAL_LM"

    @abstractmethod
    def columns(self, options: Fields, columns: Sequence[str], answered: bool) -> Columns:
        """Return the names of the columns that the task reads, by use.

        Args:
            columns: names of the columns in the data.
            answered: True if rows need labels or answers.

        Raises:
            DataError: columns that the task reads are missing.
        """

    @abstractmethod
    def row_check(self, options: Fields, answered: bool, columns: Sequence[str]) -> CheckRow:
        """Return a function that checks a row of a file.

        Args:
            answered: True if rows need labels or answers, False for rows to predict.
            columns: names of the columns in the first row.

        Raises:
            DataError: columns that the task reads are missing.
        """

    @abstractmethod
    def row_form(self, options: Fields, answered: bool) -> str:
        """Describe what a row must contain, for users who have to change their data.

        Args:
            answered: True if rows need labels or answers.
        """

    @abstractmethod
    def metric_names(self, options: Fields) -> tuple[str, ...]:
        """Return the names of all metrics that may be measured, for any classes in the data."""

    def column_uses(self, options: Fields, columns: Sequence[str], answered: bool) -> Columns:
        """Return all columns by use; the use UNREAD lists the columns that the task ignores.

        Raises:
            DataError: columns that the task reads are missing.
        """
        uses = dict(self.columns(options, columns, answered))
        used = {name for names in uses.values() for name in names}
        uses[UNREAD] = tuple(name for name in columns if name not in used)
        return {use: names for use, names in uses.items() if names}

    def comparable_metrics(self, options: Fields, compared: Iterable[str]) -> tuple[str, ...]:
        """Return the metrics that are comparable between runs whose values of some fields differ.

        Args:
            compared: names of the fields that differ, as on a command line.
        """
        plain = (name.removeprefix("options.").removeprefix("training.") for name in compared)
        others = {metric for name in plain for metric in self.scaled_by.get(name, ())}
        return tuple(name for name in self.metric_names(options) if name not in others)

    def contradictions(self, options: Fields) -> Iterator[Contradiction]:
        """Yield an error for each field whose value contradicts other fields.

        `adapter_contradictions` yields the errors of adapter fields.
        """
        return iter(())

    def tokenizer_contradictions(
        self,
        options: Fields,
        from_scratch: bool,
        tokenizer: str | None,
    ) -> Iterator[Contradiction]:
        """Yield an error for each field that contradicts the recipe's choice of a tokenizer."""
        return iter(())

    def implied(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values for unset recipe fields that other fields imply."""
        return {}

    def with_rows(self, options: Fields, rows: Iterable[Row]) -> Fields:
        """Return the options, completed with values that the first rows of the data determine.

        Raises:
            DataError: the task cannot use the rows.
        """
        return options

    def reading_notes(self, asked: Fields, options: Fields, uses: Columns) -> list[str]:
        """Return notes about the values that `with_rows` took from the data.

        Args:
            asked: options as they are in the recipe.
            options: result of `with_rows`.
        """
        return []

    def file_problems(self, options: Fields, files: Files, trains: bool) -> list[str]:
        """Return problems that only the whole files show, after each row has passed its check.

        Args:
            trains: True if the files are for training, False if they are for a trained model.
        """
        return []

    def validation_splits(self, options: Fields) -> tuple[str, ...]:
        """Return the names of the validation sets."""
        return (VALIDATION,)

    def counts_classes(self, options: Fields) -> bool:
        """Return True if labels are classes, so that rows can be counted per class."""
        return False

    def has_classes(self, options: Fields) -> bool:
        """Return True if `labels_of` returns classes."""
        return False

    def labels_of(self, options: Fields, uses: Columns, row: Row) -> list[Any]:
        """Return the labels of a row, or the names of its label columns that contain 1."""
        labels = uses.get("label", ())
        if len(labels) > 1:
            return [name for name in labels if as_flag(row.get(name))]
        return [*flat_labels(row.get(name) for name in labels)]

    def tunes_on_validation(self, options: Fields) -> tuple[str, ...]:
        """Return the fields that are set and that tune predictions on the validation set."""
        return ()

    def has_references(self, options: Fields) -> bool:
        """Return True if user-defined metrics can receive the correct answer for each row."""
        return False

    def lacks_class_weights(self, options: Fields) -> bool:
        """Return True if the loss supports class weights but the recipe sets none."""
        return False

    def skips_incomplete(self, options: Fields) -> bool:
        """Return True if rows without a text or a label are skipped."""
        return False

    def skip_reason(self, options: Fields, uses: Columns, row: Row) -> str:
        """Return the reason why a valid row is skipped, or "" if it is not skipped.

        `skips_incomplete` decides about rows without a text or a label.
        """
        return ""

    def smooths_labels(self, options: Fields) -> bool:
        """Return True if the loss supports label smoothing, as losses over classes or tokens do."""
        return True

    def needs_teacher(self, options: Fields) -> bool:
        """Return True if the training needs the recipe's teacher."""
        return False

    def compares_batch(self, options: Fields) -> bool:
        """Return True if a row's loss depends on the other rows in the batch."""
        return False

    def compares_with_start(self, options: Fields) -> bool:
        """Return True if the loss compares the model with its state before the first step."""
        return False

    def uses_chat_template(self, options: Fields) -> bool:
        """Return True if texts are rendered with the model's chat template."""
        return False

    def searches(self, options: Fields) -> bool:
        """Return True if an evaluation searches the texts of a set for its queries."""
        return False

    def reads_modules(self, options: Fields) -> bool:
        """Return True if files of sentence-transformers in the model's folder may set fields."""
        return False

    def max_length(self, options: Fields) -> int:
        """Return the maximum number of tokens of a text, or of a sample if it is a single text."""
        length: int = options.max_length  # type: ignore[attr-defined]
        return length

    def target_length(self, options: Fields) -> int:
        """Return the maximum number of target tokens for an encoder-decoder; 0 for other models."""
        return 0

    def logits_share(self, options: Fields) -> float:
        """Return the maximum fraction of a text's tokens for which logits are computed."""
        return 1.0

    def texts_of_a_sample(self, options: Fields) -> int:
        """Return the number of texts that the model encodes per sample."""
        return 1

    def new_vocabulary(self, options: Fields) -> int | None:
        """Return the requested vocabulary size of a new tokenizer; None if it is not set."""
        return None

    @property
    def fields_of_a_set(self) -> tuple[str, ...]:
        """The fields that each of several data sets may set."""
        names = (field.name for field in fields(self.fields))
        return tuple(
            name for name in names if name.endswith(COLUMN_FIELDS) or name in self.set_fields
        )

    @property
    def can_train_adapters(self) -> bool:
        """Return True if the task supports low-rank adapters."""
        return issubclass(self.fields, Adapters)

    @property
    def has_trained_head(self) -> bool:
        """Return True if the model's head is trained in full when adapters are trained."""
        return self.adapter_type in WITH_HEAD

    @property
    def is_sentence_encoder(self) -> bool:
        """Return True if sentence-transformers loads the model as an encoder of texts."""
        of_tokens = self.is_sparse_encoder or self.is_multi_vector_encoder
        return of_tokens or self.exported_as == "FeatureExtraction"

    @property
    def can_load_in_4bit(self) -> bool:
        """Return True if the task can store frozen weights in NF4."""
        return any(field.name == "load_in_4bit" for field in fields(self.fields))

    def adapters(self, options: Fields) -> Adapters | None:
        """Return the settings of low-rank adapters; None if no adapters are trained."""
        return options if isinstance(options, Adapters) and options.lora_r is not None else None

    def load_in_4bit(self, options: Fields) -> bool:
        """Return True if frozen weights are stored in NF4."""
        return False

    def pipeline_of(self, options: Mapping[str, Any]) -> str:
        """Return the name of the model's task on the Hub, which transformers' pipelines use too.

        Args:
            options: values of the task's fields, some of which may be missing.
        """
        return self.pipeline or self.name

    def why_not_evaluated(self, options: Fields, model: str) -> tuple[str, str] | None:
        """Return why `ftcluster evaluate` cannot measure a model, with advice; None if it can.

        Args:
            model: name of the model as the user typed it.
        """
        return None

    def why_not_predicted(self) -> tuple[str, str] | None:
        """Return why `ftcluster predict` does not support the task, and advice; None if it does."""
        return None
