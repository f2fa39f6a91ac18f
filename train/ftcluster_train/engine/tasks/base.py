"""What a task implements for the preparation of data and for the training loop."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ftcluster_common.data.column_uses import UNREAD, Columns, unread_texts
from ftcluster_common.data.columns import is_incomplete
from ftcluster_common.data.data_files import TRAIN, VALIDATION, DataError
from ftcluster_common.protocol.class_report import ClassReport
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.protocol.kernel_limits import EVAL_TOKENS, LOGITS
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.row_review import RowReview
from ftcluster_train.engine.data.sets import PREDICTED, SEED, PartOfRows, choose_sets, draw_rows
from ftcluster_train.engine.data.sources import (
    Rows,
    check_rows,
    class_names,
    columns_of,
    load_rows,
)
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.tasks.tokens import TextReader, check_padding
from ftcluster_train.patching.kernel_mode import KernelMode, find_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.traffic import Traffic
    from ftcluster_train.comm.world import World
    from ftcluster_train.engine.data.run_code import Metrics
    from ftcluster_train.engine.progress import ProgressLog

ROWS_FILE = "rows.jsonl"  # beside the samples: the rows to predict
VALIDATION_ROWS = "validation_rows.json"  # beside them, and in a run's folder: those drawn for it
COMPARED_TOKENS = 64

# computes samples with the model: its outputs, and the targets for the loss
Forward = Callable[[Sequence[Sample]], tuple[Any, dict[str, torch.Tensor]]]


class Batch(NamedTuple):
    """Samples as tensors.

    Attributes:
        inputs: the model's arguments.
        targets: for the loss.
    """

    inputs: dict[str, Any]
    targets: dict[str, torch.Tensor]


class Document(NamedTuple):
    """What a model reads at once.

    Attributes:
        ids: its tokens.
        learned: the numbers of those whose prediction is learned.
        label: what is learned of the whole, or which part of a sample it is.
        classes: the labels that are counted.
    """

    ids: Sequence[int]
    learned: Collection[int] = ()
    label: str = ""
    classes: Sequence[str] = ()


class Task(ABC):
    """One task.

    `encode` runs once per host and writes raw data as token samples, which each rank reads. The
    other methods make batches of them, losses and metrics.

    Args:
        purpose: what it is for.
        trained: the configuration of the model that is evaluated or predicts.

    Attributes:
        name: the task in a recipe, see `registry.register`.
        compares_batch: True if the loss of a sample depends on all samples of a step. A step then
            calls `gather_batch`, `vectors` and `batch_loss` instead of `loss`.
        width: elements of one of `vectors`.
        packs: True if the documents of a sample have nothing to do with each other.
        shows_answers: True if the report of an evaluation has answers of the model.
        options: the recipe's fields of the task.
        reader: the tokenizer, with what it has found in the texts.
        limit: tokens of a sample, at most.
        validation_splits: the sets that are evaluated.
        uses: the columns of the data, by what they are for.
        drawn: the rows of the training set that became the validation set, if some did.
        model_class: transformers' AutoModelFor... class.
        large_vocabulary: whether the loss is over the whole vocabulary.
        has_head: whether a model needs weights of its own for the task.
        trains_head: whether the head of a model is new; a language model's is in its checkpoint.
        group_by_length: whether batches may have samples of similar length.
        head: the weight of the last layer, where in training that returns its input.
        evaluation_head: the same, in evaluations.
        pads: whether samples of a batch are padded to one length.
        needs_reference: whether the loss compares the model with what it was before the first step.
        reads_padding: whether the loss reads what a model returns for padding.
        compares: whether rows that are in two sets are equal documents.
        trained_rows: the file with the hashes of what the model is trained on, if there is one.
        draws: whether samples change in each epoch, see `draw`.
        biased_head: whether a head may have a bias, which the loss adds.
        reference_model: another model that is compared with instead; it is not trained.
        reference_key: what its predictions depend on besides the samples.
        used_as: the recipe by which the trained model is used.
        disables_dropout: whether the model is trained without dropout.
        about_data: for the card of the model that is trained, see `engine.model_card`.
        model_notices: lines for the user about the loaded model, from `check_model`.
        score_notices: lines for the user about the last evaluation, from `doubts`.
        own_metric_names: names of the metrics that a user's own file computes.
        own_metrics: the function of a user's own file that computes further metrics.
        columns: fields of the recipe with the columns that were found by their names in the data
            that the model is trained on.
    """

    name: ClassVar[str]
    compares_batch = False
    width = 0
    packs = False
    shows_answers = False
    options: Any
    limit = 0
    validation_splits: tuple[str, ...] = (VALIDATION,)
    drawn: PartOfRows | None = None
    model_class: Any
    large_vocabulary = False
    has_head = True
    trains_head = True
    group_by_length = True
    needs_reference = False
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
    _unread: tuple[str, ...] = ()
    _reviewed: Sequence[str] = ()

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        purpose: Purpose = "train",
        trained: PretrainedConfig | None = None,
    ) -> None:
        self.recipe, self.tokenizer, self.reader = recipe, tokenizer, TextReader(tokenizer)
        self.options, self.used_as = recipe.options, recipe
        self.purpose = purpose
        self.trained = trained
        self.columns: Mapping[str, Any] = {}
        self.about_data: Mapping[str, Any] = {}
        self.uses: Columns = {}
        self.trained_rows: Path | None = None
        self.smoothing = recipe.training.label_smoothing_factor
        self.head: torch.Tensor | None = None
        self.evaluation_head: torch.Tensor | None = None
        self._evaluated: PreTrainedModel | None = None  # which `evaluation_head` is of
        if self.pads:
            self.check_padding()

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:  # noqa: ARG003
        """Return True if this class does what a recipe with its name asks for.

        If several classes with the name do, the registry takes the most derived one.
        """
        return True

    def sample_settings(self) -> dict[str, Any]:
        """Return what samples depend on besides recipe, data and tokenizer, as data for JSON."""
        return {}

    def check_padding(self) -> None:
        """Make sure that samples can be padded.

        Raises:
            TrainError: they cannot.
        """
        check_padding(self.tokenizer, self.recipe)

    def look_at_teacher(self, folder: Path) -> None:
        """Find out what the recipe's teacher knows, before `encode`.

        Raises:
            TrainError: nothing can be learned from it.
        """

    def load_teacher(self, folder: Path) -> None:
        """Load it as `reference_model`."""

    def look_at_model(self, folder: Path) -> None:
        """Find out what a model's folder says of the texts that it reads, before `encode`.

        Raises:
            TrainError: it cannot be read.
        """

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        """Write the samples of each set into `folder`/SET; of a set to predict also its rows.

        Args:
            longest: tokens that the model takes at most, or None.

        Returns:
            Notices for the user, one line each: what was truncated or left out.

        Raises:
            TrainError: the data are not as the task needs them.
        """
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets, drawn = self.with_validation(self.sets(data))
        self.keep_rows(sets, folder)
        for split, rows in sets.items():
            notices += self.encode_split(rows, split, limit, folder / split)
        return [*notices, *drawn]

    def limit_length(self, wanted: int, field: str, longest: int | None) -> tuple[int, list[str]]:
        """Return the recipe's length of a sample, or the model's limit with a notice."""
        self.limit = wanted if longest is None else min(wanted, longest)
        if self.limit == wanted:
            return wanted, []
        return self.limit, [f"{field} is {longest} instead of {wanted}, the model's limit"]

    def sets(self, data: str) -> dict[str, Rows]:
        """Return the rows of each set that the task reads.

        Raises:
            TrainError: they cannot be loaded, or the data do not have them.
        """
        found = load_rows(data, self.recipe.data_config)
        sets = choose_sets(found, self.purpose, self.validation_splits, data)
        self.look_at_rows(next(iter(sets.values())))
        for split, rows in sets.items():
            check_rows(rows, split, self.options, self.purpose != PREDICT)
        self.look_at_columns(next(iter(sets.values())))
        if self.purpose != PREDICT:
            self._reviewed = [
                note for split, rows in sets.items() for note in self._review(rows, split)
            ]
        return sets

    def _review(self, rows: Rows, split: str) -> list[str]:
        """Return what is odd about the rows of a set."""
        labels = self.uses.get("label", ())
        names = class_names(rows, labels[0]) if len(labels) == 1 else []
        reviewed = RowReview(self.options, self.uses, names)
        if not reviewed.is_needed:
            return []
        skips = spec_of(self.options).skips_incomplete(self.options)
        read = [name for use, some in self.uses.items() if use != UNREAD for name in some]
        for row in rows:
            if not (skips and is_incomplete(row, read)):
                reviewed.add(row)
        return reviewed.notes(split)

    def look_at_rows(self, rows: Rows) -> None:
        """Find in the rows of the first set what `options` leave open."""

    def look_at_columns(self, rows: Rows) -> None:
        """Find what the columns of rows are for."""
        try:
            self.uses = spec_of(self.options).column_uses(
                self.options, columns_of(rows), self.purpose != PREDICT
            )
        except DataError:  # who reads the rows says more of it
            return
        self._unread = tuple(unread_texts(self.uses, rows))

    def notices(self) -> list[str]:
        """Return what a user should know about the data that were encoded."""
        notices = [*self._reviewed]
        if self._unread:
            read = (", ".join(names) for use, names in self.uses.items() if use != UNREAD)
            notices.append(
                f"NOT READ, although it holds texts: column {', '.join(self._unread)}; read are "
                f"{', '.join(read)}"
            )
        return [*notices, *self.reader.notices()]

    def with_validation(self, sets: dict[str, Rows]) -> tuple[dict[str, Rows], list[str]]:
        """Return the sets with one for validation, drawn if there is none, and a notice of it."""
        if self.purpose != "train" or len(sets) > 1:
            return sets, []
        seed, percent = self.recipe.training.data_seed, self.options.validation_split_percentage
        rows = sets[TRAIN]
        drawn, what = self.draw_validation(rows, percent, SEED if seed is None else seed)
        self.drawn = PartOfRows(rows, drawn, True)
        notice = f"validation: {what}, {percent:g} % of train"
        return {TRAIN: PartOfRows(rows, drawn, False), VALIDATION: self.drawn}, [notice]

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[frozenset[int], str]:
        """Return the numbers of the rows drawn for validation, and how many, for a notice."""
        drawn = draw_rows([0 for _ in rows], percent, seed)
        return drawn, f"{len(drawn)} row{'s' * (len(drawn) != 1)}"

    def keep_rows(self, sets: Mapping[str, Rows], folder: Path) -> None:
        """Write the rows to predict, for `answers` to be added."""
        if PREDICTED in sets:
            with (folder / ROWS_FILE).open("w", encoding="utf-8") as file:
                for row in sets[PREDICTED]:
                    file.write(json.dumps(row, default=str, ensure_ascii=False) + "\n")

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set, of `limit` tokens at most; returns notices.

        Raises:
            TrainError: the data are not as the task needs them.
        """
        raise NotImplementedError  # of tasks with an `encode` of their own

    def truncated(self, split: str, count: int, limit: int, what: str = "samples") -> list[str]:
        """A notice of what was cut, if something was."""
        return [f"{split}: {count} {what} were truncated to {limit} tokens"] if count else []

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        """Fields of the model's configuration that depend on the data."""
        return {}

    def check_model(self, model: "PreTrainedModel") -> None:
        """Make sure that a loaded model can be trained for this task.

        Raises:
            TrainError: it cannot.
        """

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        """Make `loss` compute from hidden states instead of logits, if it can.

        Returns:
            The weight of the layer that has to return its input in training, or None.
        """
        if self.large_vocabulary and not self.smoothing:
            self.head = find_head(model, self.biased_head)
        return self.head

    def prepare_train_set(
        self, model: "PreTrainedModel", train_set: Samples, world: "World", bf16: bool,  # noqa: ARG002
        log: "ProgressLog",  # noqa: ARG002
    ) -> Samples:  # fmt: skip
        """Return the training set with what the model adds to it before the first step.

        Every rank calls it and returns the same samples.
        """
        return train_set

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> str | None:
        """Keep what `loss` needs of the model as it is before the first step.

        Only called where `needs_reference` is set, for all sets that the model is trained or
        evaluated on.

        Args:
            predictions: what `predictions` gives for each sample.

        Returns:
            What to say of it, if anything.
        """

    def lengths(self, samples: Samples) -> list[int]:
        """The tokens of each sample, by which samples are grouped and counted."""
        return samples.lengths("input_ids")

    def weights(self, samples: Samples) -> Sequence[float] | None:  # noqa: ARG002
        """How much each sample counts in a step's loss, which is a mean; None: all the same."""
        return None

    def draw(self, sample: Sample, number: int, epoch: int | None) -> Sample:  # noqa: ARG002
        """A sample with what is drawn for it, such as masks; `learned` are the places that count.

        Args:
            number: of the sample in its set.
            epoch: from 0; None: for an evaluation.
        """
        return sample

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        """The context of forward passes without gradients, for `predictions`."""
        if self.large_vocabulary and self._evaluated is not model:
            self._evaluated = model
            self.evaluation_head = find_head(model, self.biased_head)
        return KernelMode(head=self.evaluation_head)

    def evaluation_tokens(self, model: "PreTrainedModel") -> int:
        """The most that a rank evaluates at once; fewer where all have logits at the same time."""
        if not self.large_vocabulary or self.evaluation_head is not None:
            return EVAL_TOKENS
        return min(EVAL_TOKENS, LOGITS // int(model.get_input_embeddings().num_embeddings))

    def inputs_to_compare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Arguments with which a saved model is compared with the one in memory.

        Plain ones, and not many where each token has logits of the whole vocabulary.
        """
        if not self.large_vocabulary:
            return self.collate(samples).inputs
        length = min(samples[0].get("documents", [COMPARED_TOKENS])[0], COMPARED_TOKENS)
        return {"input_ids": torch.tensor([samples[0]["input_ids"][:length]]), "use_cache": False}

    def saved_problems(self, folder: Path) -> list[str]:  # noqa: ARG002
        """What is wrong with the files of `write_files` in a saved model."""
        return []

    @abstractmethod
    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Samples as tensors of shape (len(samples), tokens of the longest one)."""

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the samples' losses, a scalar in fp32."""
        raise NotImplementedError  # see `compares_batch`

    def gather_batch(self, samples: Sequence[Sample], traffic: "Traffic") -> Any:
        """Exchange what `batch_loss` needs of a batch besides vectors; every rank calls it.

        Args:
            samples: samples of this rank.

        Returns:
            An object whose `counts` has the number of vectors of each rank.
        """
        raise NotImplementedError

    def vectors(self, samples: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """Return what `batch_loss` compares of samples, shape (vectors, width)."""
        raise NotImplementedError

    def batch_loss(self, vectors: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return the sum of the losses of this rank's samples.

        Args:
            vectors: vectors of all ranks, in their order.
            batch: result of `gather_batch`.
        """
        raise NotImplementedError

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write what other programs need besides model and tokenizer into a saved model."""

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        """The `predictions` of samples that are computed at once."""
        kernels = self.evaluation_kernels(model)
        with kernels, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = call_model(model, self.collate(samples).inputs)
        return self.predictions(outputs, samples)

    @abstractmethod
    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each sample what `score` needs of the model's outputs, as plain data for JSON."""

    @abstractmethod
    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """The metrics of a set, from its predictions in the order of its samples."""

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the answers for the rows of a set and the right answers, for users' own metrics.

        Tasks whose declaration says `has_references` implement it.
        """
        raise NotImplementedError

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:  # noqa: ARG002
        """Return why the metrics of a set mean less than they seem to, or ""."""
        return ""

    def fit(self, predictions: Sequence[Any], samples: Samples) -> None:
        """Choose on a validation set what the model's predictions are made with (thresholds)."""

    def class_report(self, predictions: Sequence[Any], samples: Samples) -> ClassReport | None:  # noqa: ARG002
        """How well each class is predicted; None where rows have no classes."""
        return None

    def texts(self, predictions: Sequence[Any], samples: Samples) -> list[list[str]]:  # noqa: ARG002
        """Some sources, references and predictions of a task that writes texts, for a report."""
        return []

    def use_scores(self, classes: Mapping[str, Any]) -> None:
        """Take from an evaluation what belongs to the model that it measured, see `Scores`."""

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """What is predicted for each row of a set, from the predictions of its samples."""
        raise NotImplementedError  # of tasks that predict nothing of a row

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        """What a sample of a set has for a model to read, and what is learned of it."""
        return [Document(sample["input_ids"])]
