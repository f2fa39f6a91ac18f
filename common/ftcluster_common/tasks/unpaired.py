"""The task unpaired-preference-tuning: training decoders on thumbs up and thumbs down."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import named_column
from ftcluster_common.data.conversations import (
    JudgedColumns,
    as_judgement,
    read_judged_conversation,
)
from ftcluster_common.data.data_files import (
    PARQUET,
    DataError,
    Files,
    Table,
    found_columns,
    kind_of,
)
from ftcluster_common.data.row_checks import CheckRow, check_by_reading
from ftcluster_common.limits import limited
from ftcluster_common.tasks.chat import (
    Conversations,
    DecoderTuningSpec,
    conversation_columns,
    not_evaluated,
    two_forms,
    uses_of,
)
from ftcluster_common.tasks.spec import Contradiction

# usual names of columns that contain true for liked answers
LABELS = ("label", "thumbs_up", "liked", "feedback", "rating")


@dataclass(frozen=True, kw_only=True)
class UnpairedPreferenceTuning(Conversations):
    """Trains a decoder on single answers that users liked or disliked (KTO).

    The loss is that of Ethayarajh et al. 2024. A row contains a label, and either a conversation or
    a prompt and its completion. Fields and defaults are the same as in TRL's KTOTrainer.

    Attributes:
        label_column: column with true (also 1, up) for an answer that users liked and false (also
            0, down) for any other answer. Default: detected from the column names.
        beta: strength of the penalty for deviating from the initial model.
        desirable_weight: weight of the losses of liked answers.
        undesirable_weight: weight of the losses of answers that users disliked.
        disable_dropout: True to turn off dropout during training, including the dropout of
            adapters, as in TRL.
    """

    label_column: str = "label"
    beta: float = limited(0.1, above=0)
    desirable_weight: float = limited(1.0, above=0)
    undesirable_weight: float = limited(1.0, above=0)
    disable_dropout: bool = True


def judged_columns(options: UnpairedPreferenceTuning, columns: Sequence[str]) -> JudgedColumns:
    """Return the columns with conversations and labels.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    label = named_column(options.label_column, LABELS, columns)
    if not label:
        raise DataError(
            f"no column {options.label_column}; {found_columns(columns)}; name the column with "
            "true for liked answers and false for others: label_column=NAME"
        )
    return JudgedColumns(conversation_columns(options, columns), label)


def all_alike(where: str, count: int, liked: bool) -> tuple[str, str]:
    """Return an error message, and advice, for answers that are all liked or all disliked."""
    kind, other = ("liked", "disliked") if liked else ("disliked", "liked")
    advice = f"add rows with {other} answers"
    if liked:
        advice += ", or train on the liked answers alone: ftcluster train sft"
    return f"{where}all answers ({count}) are {kind}, so there is nothing to compare", advice


class UnpairedPreferenceTuningSpec(DecoderTuningSpec[UnpairedPreferenceTuning]):
    """The declaration of the task unpaired-preference-tuning."""

    name = "unpaired-preference-tuning"
    fields = UnpairedPreferenceTuning
    recipe = "kto"
    scaled_by = {
        "beta": ("loss", "margin", "chosen_reward", "rejected_reward"),
        "desirable_weight": ("loss",),
        "undesirable_weight": ("loss",),
    }

    def columns(
        self,
        options: UnpairedPreferenceTuning,
        columns: Sequence[str],
        answered: bool,
    ) -> Columns:
        """Return the columns with conversations and labels, by use."""
        judged = judged_columns(options, columns)
        return {**uses_of(judged.conversation, columns), "label": (judged.label,)}

    def row_check(
        self,
        options: UnpairedPreferenceTuning,
        answered: bool,
        columns: Sequence[str],
    ) -> CheckRow:
        """Return a check that a row's conversation and label can be read."""
        read = partial(
            read_judged_conversation,
            columns=judged_columns(options, columns),
            chat_template=options.chat_template,
        )
        return check_by_reading(read)

    def row_form(self, options: UnpairedPreferenceTuning, answered: bool) -> str:
        """Describe a row that contains a conversation and a label."""
        prompt = options.prompt_column or "prompt"
        pair = f"{prompt} and {options.completion_column or 'completion'}"
        label = f"and {options.label_column} (true or false)"
        if not options.chat_template:
            return f"each row has {pair} (text), {label}"
        return (
            f"each row has {pair}, or {options.messages_column or 'messages'} that end with the "
            f"answer, {label}"
        )

    def metric_names(self, options: UnpairedPreferenceTuning) -> tuple[str, ...]:
        """Return the loss, the KL divergence and the rewards."""
        return ("loss", "kl", "margin", "chosen_reward", "rejected_reward")

    def contradictions(self, options: UnpairedPreferenceTuning) -> Iterator[Contradiction]:
        """Yield errors if fields mix two row formats, or if messages have no chat template."""
        yield from two_forms(options)
        yield from super().contradictions(options)

    def why_not_evaluated(self, options: UnpairedPreferenceTuning, model: str) -> tuple[str, str]:
        """Return why preferences cannot be evaluated, and advice to evaluate answers instead."""
        return not_evaluated(model)

    def compares_with_start(self, options: UnpairedPreferenceTuning) -> bool:
        """Return True, because the loss uses the probabilities of the initial model."""
        return True

    def counts_classes(self, options: UnpairedPreferenceTuning) -> bool:
        """Return True, because a label is one of two classes."""
        return True

    def smooths_labels(self, options: UnpairedPreferenceTuning) -> bool:
        """Return False, because the loss has no classes or tokens as labels."""
        return False

    def file_problems(
        self, options: UnpairedPreferenceTuning, files: Files, trains: bool
    ) -> list[str]:
        """Return a problem if the training files contain only liked or only disliked answers."""
        if not files or not trains or any(kind_of(file) == PARQUET for file in files):
            return []
        labels = [
            as_judgement(row[judged_columns(options, list(row)).label]) for row in Table(files)
        ]
        if len({*labels}) != 1:
            return []
        problem, advice = all_alike(f"{files[0]}: ", len(labels), liked=bool(labels[0]))
        return [f"{problem}; {advice}"]
