"""The interface between tasks and the engine, which prepares the data and runs the training."""

import contextlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ftcluster_common.data.column_uses import UNREAD, Columns, unread_texts
from ftcluster_common.data.columns import is_incomplete
from ftcluster_common.data.data_files import TEST, TRAIN, VALIDATION, DataError
from ftcluster_common.data.data_sets import DataSet, data_set_of, split_name
from ftcluster_common.protocol.class_report import ClassReport
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.protocol.kernel_limits import EVAL_TOKENS, LOGITS
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.row_review import RowReview
from ftcluster_train.engine.data.sets import (
    PREDICTED,
    SEED,
    PartOfRows,
    RenamedRows,
    choose_sets,
    draw_rows,
    values_of,
)
from ftcluster_train.engine.data.sources import (
    Rows,
    check_rows,
    class_names,
    columns_of,
    host_export_notes,
    load_rows,
    places,
)
from ftcluster_train.engine.data.splits import (
    INDEX,
    RowKeys,
    RowNumbers,
    rows_of_fold,
    size_of,
    split_groups,
    split_rows,
    split_strata,
)
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.tasks.tokens import TextReader, check_padding
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode, find_head
from ftcluster_train.patching.patch_model import prediction_patches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.traffic import Traffic
    from ftcluster_train.comm.world import World
    from ftcluster_train.engine.data.run_code import Metrics
    from ftcluster_train.engine.progress import ProgressLog
    from ftcluster_train.patching.batch_context import BatchContext

ROWS_FILE = "rows.jsonl"  # file with the rows to predict, in the folder of the samples
VALIDATION_ROWS = "validation_rows.json"  # indices of the rows drawn for validation
TEST_ROWS = "test_rows.json"  # indices of the rows drawn for the test set
COMPARED_TOKENS = 64
# Number of tokens that are evaluated at once. With twice as many, evaluations are slower, because
# activations leave the caches (bench/README.md). The plan's memory estimate has EVAL_TOKENS.
FAST_TOKENS = min(4096, EVAL_TOKENS)
NO_KEYS = RowKeys("", ())
# recipe fields that have no effect if no rows are drawn from the training set
OF_DRAWN = ("validation_split_rows", "test_split_rows", "test_split_percentage", "stratify_column")

Data = str | tuple[DataSet, ...]  # the field `data` of a recipe

# function that runs the model on samples, and returns the model's outputs and the loss's targets
Forward = Callable[[Sequence[Sample]], tuple[Any, dict[str, torch.Tensor]]]


class Batch(NamedTuple):
    """A batch of samples as tensors.

    Attributes:
        inputs: arguments of the model's forward pass.
        targets: tensors for the loss, such as labels.
    """

    inputs: dict[str, Any]
    targets: dict[str, torch.Tensor]


class Document(NamedTuple):
    """A token sequence that a model reads separately from other sequences.

    Attributes:
        ids: token ids.
        targets: indices of the target tokens.
        label: label of the whole sequence, or its role in the sample, such as chosen or query.
        classes: labels to count in the data report.
    """

    ids: Sequence[int]
    targets: Collection[int] = ()
    label: str = ""
    classes: Sequence[str] = ()


class Task(ABC):
    """The base class of all tasks.

    `encode` runs once per host: it converts raw data to token samples, which all ranks of the host
    read. The other methods convert the samples to batches, and compute losses and metrics.

    Args:
        purpose: purpose of the data: training, evaluation or prediction.
        trained: configuration of the trained model, for an evaluation or a prediction; else None.

    Attributes:
        name: the task's name in a recipe, see `registry.register`.
        compares_batch: True if the loss of a sample depends on all samples of a step. A step then
            calls `gather_batch`, `vectors` and `batch_loss` instead of `loss`.
        width: number of elements of each vector from `vectors`.
        packs: True if a sample may contain several independent sequences.
        shows_answers: True if the evaluation report shows texts that the model generates.
        options: the recipe fields of the task.
        reader: tokenizer wrapper that counts empty texts and special tokens, for notices.
        limit: maximum number of tokens of a sample.
        validation_splits: names of the validation sets.
        uses: names of the first data set's columns, by purpose, such as label.
        uses_of: a mapping like `uses` for each data set, by the name of the data set.
        drawn: rows that were drawn for validation, by data set name.
        drawn_tests: rows that were drawn for the test set, by data set name.
        loss_column: name of the column whose values are counted to weight the mean loss of a set,
            such as one value per target token; "" to count samples.
        separates_sets: True if all samples of a batch must come from one data set.
        model_class: transformers' AutoModelFor... class.
        large_vocabulary: True if the loss is computed over the whole vocabulary.
        has_head: True if the model needs a head for the task.
        trains_head: True if the head may start with new weights; False if the head must be
            pretrained, as in language models.
        group_by_length: True if batches may consist of samples of similar length.
        head: weight of the last layer if the model returns hidden states instead of logits in
            training; otherwise None.
        evaluation_head: weight of the last layer if the model returns hidden states instead of
            logits in evaluations; otherwise None.
        pads: True if the samples of a batch are padded to one length.
        needs_reference: True if the loss needs predictions of a reference model: the untrained
            model or a teacher.
        references_validation: True if validation sets need the reference predictions too.
        reads_padding: True if the loss depends on the model's outputs for padding tokens.
        compares: True if the data report compares the documents of different sets.
        trained_rows: file with the hashes of the training rows, or None.
        draws: True if samples are randomized again in each epoch, see `draw`.
        biased_head: True if the head may have a bias, which the loss adds.
        reference_model: teacher that computes the reference predictions; None if the untrained
            model computes them.
        reference_key: text that identifies the reference model.
        used_as: recipe with the settings for using the trained model.
        disables_dropout: True if the model is trained without dropout.
        about_data: facts about the data for the model card, see `engine.model_card`.
        model_notices: notices for the user about the loaded model, from `check_model`.
        score_notices: notices for the user about the last evaluation, from `doubts`.
        own_metric_names: names of the metrics that `own_metrics` computes.
        own_metrics: function from a user's own file that computes further metrics.
        columns: column names that were detected in the training data, by recipe field.
    """

    name: ClassVar[str]
    compares_batch = False
    width = 0
    packs = False
    shows_answers = False
    options: Any
    limit = 0
    validation_splits: tuple[str, ...] = (VALIDATION,)
    drawn: Mapping[str, PartOfRows] = {}
    drawn_tests: Mapping[str, PartOfRows] = {}
    separates_sets = False
    loss_column = ""
    model_class: Any
    large_vocabulary = False
    has_head = True
    trains_head = True
    group_by_length = True
    needs_reference = False
    references_validation = True
    reference_model: "PreTrainedModel | None" = None
    reference_key = ""
    disables_dropout = False
    draws = False
    biased_head = False
    pads = True
    reads_padding = True
    compares = True
    model_notices: Sequence[str] = ()
    score_notices: Sequence[str] = ()
    own_metric_names: tuple[str, ...] = ()
    own_metrics: "Metrics | None" = None

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        purpose: Purpose = "train",
        trained: PretrainedConfig | None = None,
    ) -> None:
        self.recipe, self.tokenizer, self.reader = recipe, tokenizer, TextReader(tokenizer)
        self._options = {  # by data set
            data_set.name: part.options
            for data_set, part in zip(recipe.data_sets, recipe.by_set(), strict=True)
        }
        self._data_set = recipe.data_sets[0].name  # data set whose options are in use
        self.options, self.used_as = self._options[self._data_set], recipe
        self.purpose = purpose
        self.trained = trained
        self.columns: Mapping[str, Any] = {}
        self.about_data: Mapping[str, Any] = {}
        self.uses: Columns = {}
        self.uses_of: dict[str, Columns] = {}
        self._reviewed: list[str] = []
        self._unread: dict[str, tuple[str, ...]] = {}  # ignored columns, by data set
        self.trained_rows: Path | None = None
        self.smoothing = recipe.training.label_smoothing_factor
        self.head: torch.Tensor | None = None
        self.evaluation_head: torch.Tensor | None = None
        self._evaluated: PreTrainedModel | None = None  # the model that has `evaluation_head`
        if self.pads:
            self.check_padding()

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:  # noqa: ARG003
        """Return True if this class supports the recipe, whose task has the name of this class.

        If several classes with this name support the recipe, the registry uses the most derived
        class.
        """
        return True

    def sample_settings(self) -> dict[str, Any]:
        """Return further settings that the samples depend on, as JSON data.

        The result does not include the recipe, the data and the tokenizer.
        """
        return {}

    def check_padding(self) -> None:
        """Check that samples can be padded.

        Raises:
            TrainError: the tokenizer has no padding token.
        """
        check_padding(self.tokenizer, self.recipe)

    def inspect_teacher(self, folder: Path) -> None:
        """Read the configuration of the recipe's teacher; called before `encode`.

        Raises:
            TrainError: the teacher cannot be used for this task.
        """

    def load_teacher(self, folder: Path) -> None:
        """Load the teacher as `reference_model`."""

    def inspect_model(self, folder: Path) -> None:
        """Read the model settings that `encode` depends on; called before `encode`.

        Raises:
            TrainError: the folder cannot be read.
        """

    @contextlib.contextmanager
    def using(self, split: str) -> Iterator[None]:
        """Use the options of a data set inside a `with` block.

        If the recipe has a single data set, its options are always in use.

        Args:
            split: name of the data set, or of one of its splits.
        """
        if len(self._options) == 1:
            yield
            return
        before = self._data_set
        self._change_set(split if split in self._options else data_set_of(split, self._options))
        try:
            with self.naming(split):
                yield
        finally:
            self._change_set(before)

    @contextlib.contextmanager
    def naming(self, split: str) -> Iterator[None]:
        """Add the data set's name, if any, to the errors that are raised in a `with` block.

        Args:
            split: name of the data set, or of one of its splits.
        """
        name = split if split in self._options else data_set_of(split, self._options)
        where = f"data set {name}: " if name else ""
        try:
            yield
        except TrainError as error:
            message = f"{where}{error.message}"
            raise TrainError(message, error.hint, error.restartable) from error
        except DataError as error:
            raise DataError(f"{where}{error}") from error

    def _change_set(self, data_set: str) -> None:
        """Save the options of the current data set, and use the options of another data set."""
        self._options[self._data_set] = self.options
        self._data_set, self.options = data_set, self._options[data_set]

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        """Write the samples of each set into `folder`/SET; for a prediction also write the rows.

        Args:
            data: value of the recipe field `data`: a path, a name, or several data sets.
            longest: maximum number of tokens of the model's input; None for no limit.

        Returns:
            Notices for the user, one line each, about truncated and skipped texts.

        Raises:
            TrainError: the data do not fit the task.
        """
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets, drawn = self.with_validation(self.sets(data))
        self.keep_rows(sets, folder)
        for split, rows in sets.items():
            with self.using(split):
                notices += self.encode_split(rows, split, limit, folder / split)
        return [*notices, *drawn]

    def limit_length(self, wanted: int, field: str, longest: int | None) -> tuple[int, list[str]]:
        """Return the maximum sample length, and a notice if the model's limit determines it.

        Args:
            wanted: maximum number of tokens that the recipe sets.
            field: name of the recipe field, for the notice.
            longest: maximum number of tokens of the model's input; None for no limit.
        """
        self.limit = wanted if longest is None else min(wanted, longest)
        if self.limit == wanted:
            return wanted, []
        return self.limit, [f"{field} is {longest}, the model's limit, instead of {wanted}"]

    def sets(self, data: Data) -> dict[str, Rows]:
        """Return the rows of each set that the task reads, keyed by the name from `split_name`.

        Raises:
            TrainError: the data cannot be loaded, or lack a set that the task needs.
        """
        recipe = replace(self.recipe, data=data)
        sets: dict[str, Rows] = {}
        for data_set, part in zip(recipe.data_sets, recipe.by_set(), strict=True):
            with self.using(data_set.name):
                sets |= self._sets_of(part, data_set.name)
        self.uses = self.uses_of.get(recipe.data_sets[0].name, self.uses)
        return sets

    def _sets_of(self, part: Recipe, name: str) -> dict[str, Rows]:
        """Return the rows of each set of one data set."""
        splits = load_rows(part.source, part.data_config, self.purpose != PREDICT)
        chosen = choose_sets(
            splits, self.purpose, self.validation_splits, part.source, self.recipe.has_test
        )
        sets = {split_name(split, name): rows for split, rows in chosen.items()}
        self.inspect_rows(next(iter(sets.values())))
        for split, rows in sets.items():
            check_rows(rows, split, self.options, self.purpose != PREDICT)
        self.inspect_columns(next(iter(sets.values())))
        if self.purpose != PREDICT:
            for split, rows in sets.items():
                self._reviewed += [*host_export_notes(rows, split), *self._review(rows, split)]
        return sets

    def with_equal_columns(self, sets: Mapping[str, Rows]) -> dict[str, Rows]:
        """Return the sets with their columns renamed to the column names of the first data set.

        Raises:
            TrainError: a data set has more or fewer columns for the same purpose, or other class
                columns.
        """
        renamed: dict[str, Rows] = {}
        for split, rows in sets.items():
            name = data_set_of(split, self._options)
            names: dict[str, str] = {}
            # do not rename if columns are missing: this error is reported when the rows are read
            uses = self.uses if {name, next(iter(self._options))} <= self.uses_of.keys() else {}
            for use, columns in uses.items():
                others = self.uses_of[name].get(use, ())
                if use == UNREAD or columns == others:
                    continue
                if len(columns) != len(others) or (use == "label" and len(columns) > 1):
                    first = next(iter(self._options))
                    raise TrainError(
                        f"the data sets {first} and {name} have different columns ({use}): "
                        f"{', '.join(columns) or 'none'}, and {', '.join(others) or 'none'}",
                        "name the columns of each data set in the recipe's list data",
                    )
                names |= dict(zip(others, columns, strict=True))
            renamed[split] = RenamedRows(rows, names, split) if names else rows
        return renamed

    def _review(self, rows: Rows, split: str) -> list[str]:
        """Return notices about suspicious rows of a set."""
        labels = self.uses.get("label", ())
        names = class_names(rows, labels[0]) if len(labels) == 1 else []
        reviewed = RowReview(self.options, self.uses, names)
        if not reviewed.is_needed:
            return []
        skips = spec_of(self.options).skips_incomplete(self.options)
        read = [name for use, columns in self.uses.items() if use != UNREAD for name in columns]
        for place, row in places(rows, split):
            if not (skips and is_incomplete(row, read)):
                reviewed.add(row, place)
        return reviewed.notes(split)

    def inspect_rows(self, rows: Rows) -> None:
        """Derive options that the recipe does not set from the rows of the first set."""

    def inspect_columns(self, rows: Rows) -> None:
        """Set `uses` and `columns` from the columns of the rows."""
        try:
            self.uses = spec_of(self.options).column_uses(
                self.options, columns_of(rows), self.purpose != PREDICT
            )
        except DataError:  # reported in more detail when the rows are read
            return
        self.uses_of[self._data_set] = self.uses
        divides = (self.recipe.group_column, self.recipe.stratify_column)
        unread = unread_texts(self.uses, rows)
        self._unread[self._data_set] = tuple(name for name in unread if name not in divides)

    def notices(self) -> list[str]:
        """Return notices for the user about the data that `encode` has read."""
        notices = [*self._reviewed]
        for data_set, unread in self._unread.items():
            uses = self.uses_of[data_set]
            read = (", ".join(names) for use, names in uses.items() if use != UNREAD)
            if unread:
                notices.append(
                    f"{data_set}: "
                    * bool(data_set)
                    + f"NOT READ, although it contains texts: column {', '.join(unread)}; the task "
                    f"reads {', '.join(read)}"
                )
        return [*notices, *self.reader.notices()]

    def with_validation(self, sets: dict[str, Rows]) -> tuple[dict[str, Rows], list[str]]:
        """Return the sets, including drawn validation and test sets, and notices.

        If a data set lacks a validation set, or a test set that the recipe asks for, rows are drawn
        from its training set.

        Raises:
            TrainError: there are too few rows, or a group is in several sets.
        """
        if self.purpose != "train":
            return sets, []
        seed, percent = self.recipe.training.data_seed, self.options.validation_split_percentage
        complete: dict[str, Rows] = {}
        notices: list[str] = []
        for name in self._options:
            of_set = {s: rows for s, rows in sets.items() if data_set_of(s, self._options) == name}
            train, validation = split_name(TRAIN, name), split_name(VALIDATION, name)
            if self.recipe.split_settings:
                with self.using(name):
                    of_set, more = self._divide(of_set, name)
                notices += more
            elif [*of_set] == [train]:
                rows = of_set[train]
                with self.using(name):
                    drawn, what = self.draw_validation(
                        rows, percent, SEED if seed is None else seed
                    )
                self.drawn = {**self.drawn, name: PartOfRows(rows, drawn, True, train)}
                notices.append(f"{validation}: {what}, {percent:g} % of {train}")
                of_set = {
                    train: PartOfRows(rows, drawn, False, train),
                    validation: self.drawn[name],
                }
            complete |= of_set
        return complete, notices

    def _divide(self, sets: dict[str, Rows], name: str) -> tuple[dict[str, Rows], list[str]]:
        """Draw the sets that a data set lacks, according to the split fields of the recipe."""
        recipe, rows = self.recipe, sets[split_name(TRAIN, name)]
        train = split_name(TRAIN, name)
        lacks_validation = self.validation_splits == (VALIDATION,) and (
            split_name(VALIDATION, name) not in sets
        )
        count = sum(1 for _ in rows)
        sizes: dict[str, int] = {}
        if recipe.has_test and split_name(TEST, name) not in sets:
            percent = recipe.test_split_percentage or 0
            sizes[TEST] = size_of(count, percent, recipe.test_split_rows)
        if recipe.folds is not None and not lacks_validation:
            raise TrainError(
                "the data have a validation set, but folds divide the rows of the training set",
                "remove folds, or move the rows of the validation set to the training set",
            )
        if lacks_validation and recipe.folds is None:
            percent = self.options.validation_split_percentage
            sizes[VALIDATION] = size_of(count, percent, recipe.validation_split_rows)
        seed = SEED if recipe.training.data_seed is None else recipe.training.data_seed
        keys = self._keys(rows, train) if sizes or recipe.folds else NO_KEYS
        drawn, notices = self._draw(keys, count, sizes, seed)
        if recipe.folds is not None:
            drawn[VALIDATION] = self._fold(keys, drawn.get(TEST, RowNumbers()), count, seed)
            notices.append(f"{split_name(VALIDATION, name)}: fold {recipe.fold} of {recipe.folds}")
        unused = [name for name in OF_DRAWN if getattr(recipe, name) is not None]
        if unused and not drawn:
            notices.append(
                f"{', '.join(unused)}: without effect, because the data have all sets already"
            )
        chosen = RowNumbers(chain.from_iterable(drawn.values()))
        parts = {split: PartOfRows(rows, numbers, True, train) for split, numbers in drawn.items()}
        if TEST in parts:
            self.drawn_tests = {**self.drawn_tests, name: parts[TEST]}
        if VALIDATION in parts:
            self.drawn = {**self.drawn, name: parts[VALIDATION]}
        notices += [
            f"{split_name(split, name)}: {len(numbers)} of {count} rows of {train}"
            for split, numbers in drawn.items()
        ]
        rest = PartOfRows(rows, chosen, False, train) if chosen else rows
        new = {split_name(split, name): part for split, part in parts.items()}
        divided = {**sets, train: rest, **new}
        if recipe.group_column:
            self._check_groups(divided, recipe.group_column)
        return divided, notices

    def _keys(self, rows: Rows, split: str) -> RowKeys:
        """Return each row's group or stratum, from the recipe's column or else from the task."""
        if column := self.recipe.group_column:
            return RowKeys(column, values_of(rows, column, split), together=True)
        if column := self.recipe.stratify_column:
            return RowKeys(column, values_of(rows, column, split))
        return self.keys_of_rows(rows)

    def _draw(
        self, keys: RowKeys, count: int, sizes: Mapping[str, int], seed: int
    ) -> tuple[dict[str, RowNumbers], list[str]]:
        """Return the row indices of each new set, and notices.

        Args:
            count: number of rows to draw from.
            sizes: number of rows of each new set.
        """
        if not sizes:
            return {}, []
        if keys.together:
            return split_groups(keys.values, sizes, seed, keys.column)
        if keys.values:
            column = self.recipe.stratify_column or ""
            return split_strata(keys.values, sizes, seed, column), []
        return split_rows(count, sizes, seed), []

    def _fold(self, keys: RowKeys, tests: RowNumbers, count: int, seed: int) -> RowNumbers:
        """Return the row indices of the recipe's fold; test rows do not belong to any fold."""
        folds, fold = self.recipe.folds, self.recipe.fold
        assert folds is not None, "called without folds"
        assert fold is not None, "the control node has checked this"
        others = array(INDEX, (number for number in range(count) if number not in tests))
        values = [keys.values[number] if keys.values else None for number in others]
        chosen = rows_of_fold(values, keys.together, folds, fold, seed, keys.column)
        return RowNumbers(others[position] for position in chosen)

    def keys_of_rows(self, rows: Rows) -> RowKeys:  # noqa: ARG002
        """Return each row's group or stratum for drawing sets, if the recipe names no column."""
        return NO_KEYS

    def _check_groups(self, sets: Mapping[str, Rows], column: str) -> None:
        """Check that no group is in two sets, which can happen if the user supplies both sets."""
        set_of: dict[str, str] = {}
        for split, rows in sets.items():
            for group in dict.fromkeys(values_of(rows, column, split)):
                if set_of.setdefault(group, split) != split:
                    raise TrainError(
                        f"the group {group:.80} of column {column} is in {set_of[group]} and in "
                        f"{split}",
                        "move its rows into one set, or remove group_column",
                    )

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[RowNumbers, str]:
        """Draw rows for validation.

        Returns:
            Indices of the drawn rows, and a description of them for a notice.
        """
        drawn = draw_rows((0 for _ in rows), percent, seed)
        return drawn, f"{len(drawn)} row{'s' * (len(drawn) != 1)}"

    def keep_rows(self, sets: Mapping[str, Rows], folder: Path) -> None:
        """Write the rows to predict to a file; the results of `answers` are added to them later."""
        if PREDICTED in sets:
            with (folder / ROWS_FILE).open("w", encoding="utf-8") as file:
                for row in sets[PREDICTED]:
                    file.write(json.dumps(row, default=str, ensure_ascii=False) + "\n")

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set, each with at most `limit` tokens, and return notices.

        Raises:
            TrainError: the data do not fit the task.
        """
        raise NotImplementedError  # tasks that override `encode` do not need it

    def truncated(self, split: str, count: int, limit: int, what: str = "samples") -> list[str]:
        """Return a notice about truncated samples, or [] if there are none."""
        return [f"{split}: {count} {what} were truncated to {limit} tokens"] if count else []

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        """Return the fields of the model's configuration that depend on the data."""
        return {}

    def check_model(self, model: "PreTrainedModel") -> None:
        """Check that a loaded model can be trained for this task.

        Raises:
            TrainError: the model cannot be trained for this task.
        """

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        """Prepare `loss` to read hidden states instead of logits, if the model allows this.

        Returns:
            The weight of the last layer if this layer must return its input (hidden states) in
            training; None if `loss` reads logits.
        """
        if self.large_vocabulary and not self.smoothing:
            self.head = find_head(model, self.biased_head)
        return self.head

    def prepare_train_set(
        self, model: "PreTrainedModel", train_set: Samples, world: "World", bf16: bool,  # noqa: ARG002
        log: "ProgressLog",  # noqa: ARG002
    ) -> Samples:  # fmt: skip
        """Return the training set, extended by the untrained model, for example with negatives.

        Every rank must call this method. All ranks get the same samples.
        """
        return train_set

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> str | None:
        """Store the predictions of the reference model, which `loss` needs.

        Called only if `needs_reference` is True, once for the training set and once for each
        validation set.

        Args:
            predictions: a list with the result of the method `predictions` for each sample.

        Returns:
            A notice for the user, or None.
        """

    def lengths(self, samples: Samples) -> Sequence[int]:
        """Return the number of tokens of each sample, for grouping samples by length."""
        return samples.lengths("input_ids")

    def weights(self, samples: Samples) -> Sequence[float] | None:  # noqa: ARG002
        """Return the weight of each sample in a step's mean loss; None if all weights are equal."""
        return None

    def start_step(self, step: int, steps: int) -> None:
        """Prepare a training step, for example by setting a loss weight that depends on the step.

        Args:
            step: number of the step, counted from 1.
            steps: total number of training steps.
        """

    def draw(self, sample: Sample, number: int, epoch: int | None) -> Sample:  # noqa: ARG002
        """Return a copy of a sample with random changes, such as masked tokens.

        The column `targets` of the result lists the indices of the target tokens.

        Args:
            number: index of the sample in its set.
            epoch: index of the epoch; None for an evaluation.
        """
        return sample

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        """Return the kernel mode for forward passes without gradients."""
        if self.large_vocabulary and self._evaluated is not model:
            self._evaluated = model
            self.evaluation_head = find_head(model, self.biased_head)
        return KernelMode(prediction_patches(), self.evaluation_head)

    def evaluation_tokens(self, model: "PreTrainedModel") -> int:
        """Return the maximum number of tokens in an evaluation batch.

        The maximum is lower if the model returns logits over the vocabulary for all tokens.
        """
        if not self.large_vocabulary or self.evaluation_head is not None:
            return FAST_TOKENS
        return min(FAST_TOKENS, LOGITS // int(model.get_input_embeddings().num_embeddings))

    def inputs_to_compare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return model arguments for comparing a saved model with the model in memory.

        Unmodified transformers must accept these arguments. If the model computes logits over the
        vocabulary for each token, the arguments contain only few tokens.
        """
        if not self.large_vocabulary:
            return self.collate(samples).inputs
        length = min(samples[0].get("documents", [COMPARED_TOKENS])[0], COMPARED_TOKENS)
        return {"input_ids": torch.tensor([samples[0]["input_ids"][:length]]), "use_cache": False}

    def saved_problems(self, folder: Path) -> list[str]:  # noqa: ARG002
        """Return problems with the files that `write_files` added to a saved model."""
        return []

    @abstractmethod
    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Return samples as tensors of shape (len(samples), tokens of the longest sample)."""

    def begin_step(
        self, parts: Sequence[Sequence[Sample]], forward: Forward, traffic: "Traffic"
    ) -> None:
        """Compute values that `loss` needs from all samples of a step; every rank must call this.

        The method is called without gradients, before the step's first micro-batch.

        Args:
            parts: samples of each micro-batch of this rank; empty if the rank has no samples.
        """

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the sum of the losses of a batch's samples, a scalar in fp32."""
        raise NotImplementedError  # see `compares_batch`

    def gather_batch(self, samples: Sequence[Sample], traffic: "Traffic") -> Any:
        """Exchange data that `batch_loss` needs besides vectors; every rank must call this method.

        Args:
            samples: samples of this rank.

        Returns:
            An object whose attribute `counts` lists the number of vectors of each rank.
        """
        raise NotImplementedError

    def vectors(self, samples: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """Return the vectors that `batch_loss` compares, shape (vectors, width)."""
        raise NotImplementedError

    def batch_loss(self, vectors: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return the sum of the losses of this rank's samples, from the vectors of all ranks.

        Args:
            vectors: vectors of all ranks, in the order of the ranks.
            batch: result of `gather_batch`.
        """
        raise NotImplementedError

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write files into a saved model's folder that other programs need to use the model."""

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        """Run the model on one batch of samples, and return their `predictions`."""
        kernels = self.evaluation_kernels(model)
        with kernels, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = call_model(model, self.collate(samples).inputs)
        return self.predictions(outputs, samples)

    def condense(
        self, model: "PreTrainedModel", samples: Samples, world: "World", bf16: bool,  # noqa: ARG002
        context: "BatchContext | None",  # noqa: ARG002
    ) -> Sequence[Any] | None:  # fmt: skip
        """Return results that `score` and `doubts` accept instead of a set's predictions, or None.

        Tasks whose predictions for a large set would need too much memory implement this method.
        Every rank must call it, and gets the same results.

        Args:
            context: batch context, see `predictions.predict`.
        """
        return None

    @abstractmethod
    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the data that `score` and `answers` need for each sample, as JSON data."""

    @abstractmethod
    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Compute the metrics of a set from the predictions for all its samples."""

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the predicted and the true answers for the rows of a set, for users' own metrics.

        Tasks whose specification sets `has_references` implement this method.
        """
        raise NotImplementedError

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:  # noqa: ARG002
        """Return a reason to distrust the metrics of a set; "" if there is none."""
        return ""

    def fit(self, predictions: Sequence[Any], samples: Samples) -> None:
        """Tune prediction settings, such as thresholds, on a validation set."""

    def class_report(self, predictions: Sequence[Any], samples: Samples) -> ClassReport | None:  # noqa: ARG002
        """Return the metrics of each class of a set; None if rows have no classes."""
        return None

    def texts(self, predictions: Sequence[Any], samples: Samples) -> list[list[str]]:  # noqa: ARG002
        """Return [source, reference, prediction] for a few samples; [] if none are generated."""
        return []

    def use_scores(self, classes: Mapping[str, Any]) -> None:
        """Use the prediction settings, such as thresholds, from an earlier evaluation.

        Args:
            classes: class reports of the evaluation, see `Scores`.
        """

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """Return the prediction for each row of a set, from the predictions of its samples."""
        raise NotImplementedError  # the task has no predictions for rows

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        """Return the token sequences of a sample, for the data report."""
        return [Document(sample["input_ids"])]
