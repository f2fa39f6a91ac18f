"""The tasks instruction-tuning and preference-tuning: training decoders on conversations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.conversations import (
    ConversationColumns,
    PreferenceColumns,
    read_conversation,
    read_preference,
)
from ftcluster_common.data.data_files import DataError, found_columns
from ftcluster_common.data.row_checks import CheckRow, check_by_reading
from ftcluster_common.limits import limited
from ftcluster_common.tasks.lm import settings_of_adapters, use_pipeline
from ftcluster_common.tasks.spec import Adapters, Contradiction, TaskSpec

MESSAGES = ("messages", "conversation", "conversations", "chat")
PROMPTS = (
    ("prompt", "completion"), ("prompt", "response"), ("instruction", "output"),
    ("instruction", "response"), ("question", "answer"), ("question", "response"),
    ("query", "response"), ("input", "output"),
)  # fmt: skip
CONTEXTS = ("input", "context")  # names of columns with text that an instruction refers to
SYSTEM = ("system", "system_prompt")
# If one of these columns exists but is not read, the training prompts may be incomplete.
QUESTIONS = ("instruction", "prompt", "question", "query", *CONTEXTS, *SYSTEM, "history")


@dataclass(frozen=True, kw_only=True)
class DecoderTuning(Adapters):
    """Fields of the tasks that train a decoder on conversations.

    Attributes:
        prompt_column: column with prompts, as strings or lists of messages. Default: detected from
            the column names.
        chat_template: False to ignore the model's chat template. An answer then directly follows
            its prompt without any markup, and the end-of-text token follows the answer.
        max_length: maximum tokens of a conversation; longer conversations are truncated at the end.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
        load_in_4bit: True to store the model's linear layers, except the last layer, in NF4 with
            double quantization while adapters are trained (QLoRA).
        reset_generation: True to discard the model's generation settings, except its special
            tokens, when the model is saved. Adapters that are saved alone keep the settings of
            their base model.
    """

    prompt_column: str | None = None
    chat_template: bool = True
    max_length: int = limited(1024, at_least=8)
    validation_split_percentage: float = limited(5.0, at_least=0.001, at_most=50)
    load_in_4bit: bool = False
    reset_generation: bool = False


@dataclass(frozen=True, kw_only=True)
class Conversations(DecoderTuning):
    """Fields of the tasks whose rows contain a conversation, or a prompt and its completion.

    Attributes:
        messages_column: column with lists of messages, each of which has a role and content.
            Default: detected from the column names.
        completion_column: column with the answers to the prompts, as strings or lists of messages.
            Default: detected from the column names.
    """

    messages_column: str | None = None
    completion_column: str | None = None


@dataclass(frozen=True, kw_only=True)
class InstructionTuning(Conversations):
    """Trains a decoder to answer; only the answers' tokens contribute to the loss.

    A row contains a conversation, or a prompt and its completion.

    Attributes:
        packing: True to pack several conversations into one sample of up to max_length tokens.
            Conversations in the same sample do not attend to each other.
    """

    packing: bool = False


@dataclass(frozen=True, kw_only=True)
class PreferenceTuning(DecoderTuning):
    """Trains a decoder to prefer one of two answers (DPO, Rafailov et al. 2023).

    A row contains a prompt and two answers, or two conversations that start with the same messages.
    The losses and fields are the same as in TRL.

    Attributes:
        chosen_column: column with the preferred answers, as strings or lists of messages.
        rejected_column: column with the rejected answers, as strings or lists of messages.
        loss_type: loss function. sigmoid is the loss of DPO. orpo (Hong et al. 2024) adds the odds
            ratio of the two answers to the loss of instruction tuning. simpo (Meng et al. 2024)
            compares mean log-probabilities. Unlike sigmoid, orpo and simpo need no
            log-probabilities of the initial model.
        beta: strength with which DPO keeps the model close to its initial state. For orpo, it is
            the weight of the odds ratio. For simpo, it is the scale of the margin; the SimPO paper
            uses 2 to 2.5.
        simpo_gamma: margin by which simpo requires the preferred answer to win over the rejected
            answer.
        disable_dropout: True to turn off dropout during training, including the dropout of
            adapters, as in TRL.
    """

    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    loss_type: Literal["sigmoid", "orpo", "simpo"] = "sigmoid"
    beta: float = limited(0.1, above=0)
    simpo_gamma: float = limited(0.5, at_least=0)
    disable_dropout: bool = True


def conversation_columns(options: Conversations, columns: Sequence[str]) -> ConversationColumns:
    """Return the columns with conversations.

    Raises:
        DataError: there are no such columns, or another column may belong to the prompt. The
            message lists the columns and shows how to name them in a recipe.
    """
    names = {name.lower(): name for name in columns}
    prompt, completion = options.prompt_column, options.completion_column
    messages = options.messages_column
    named = not (messages is None and prompt is None and completion is None)
    if not named:
        messages = next((names[name] for name in MESSAGES if name in names), None)
    system = next((names[name] for name in SYSTEM if name in names), "")
    context = ""
    if messages is not None:
        chosen = ConversationColumns(messages, system=system)
    else:
        for known_pair in PROMPTS:
            pair = [names.get(name, "") for name in known_pair]
            if all(pair) and prompt in (None, pair[0]) and completion in (None, pair[1]):
                prompt, completion = pair
                if known_pair[0] == "instruction" and not named:
                    context = next((names[name] for name in CONTEXTS if name in names), "")
                break
        chosen = ConversationColumns("", prompt or "", completion or "", context, system)
    missing = [name for name in chosen.names if name not in columns]
    if missing or not (chosen.messages or (chosen.prompt and chosen.completion)):
        what = (
            f"no column {', '.join(missing)}"
            if missing
            else "no columns with usual names for conversations"
        )
        raise DataError(
            f"{what}; {found_columns(columns)}; name the columns: messages_column=NAME, or "
            f"prompt_column={prompt or 'NAME'} completion_column={completion or 'NAME'}"
        )
    # Conversations are not checked: some files repeat their first message in another column.
    if not named and not chosen.messages:
        _ask_for_unread(
            chosen.names,
            names,
            f"prompt_column={chosen.prompt} completion_column={chosen.completion}",
        )
    return chosen


def preference_columns(options: PreferenceTuning, columns: Sequence[str]) -> PreferenceColumns:
    """Return the columns with prompts and answers.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    names = {name.lower(): name for name in columns}
    prompt, context = options.prompt_column, ""
    if prompt is None:
        prompt = next((names[name] for name, _ in PROMPTS if name in names), "")
        if prompt.lower() == "instruction":
            context = next((names[name] for name in CONTEXTS if name in names), "")
    system = next((names[name] for name in SYSTEM if name in names), "")
    named = PreferenceColumns(
        options.chosen_column, options.rejected_column, prompt, context, system
    )
    missing = [name for name in named.names if name not in columns]
    if missing:
        raise DataError(
            f"no column {', '.join(missing)}; {found_columns(columns)}; name the columns: "
            "prompt_column=NAME chosen_column=NAME rejected_column=NAME"
        )
    if options.prompt_column is None:
        _ask_for_unread(named.names, names, f"prompt_column={prompt or 'NAME'}")
    return named


def _ask_for_unread(read: Sequence[str], names: Mapping[str, str], way: str) -> None:
    """Raise DataError if a column that may belong to the prompt is not read."""
    unread = [names[name] for name in QUESTIONS if name in names and names[name] not in read]
    if unread:
        raise DataError(
            f"{', '.join(unread)} may belong to the prompt, but only {', '.join(read)} are read; "
            f"remove columns that do not belong to it, or name the columns to read: {way}"
        )


Chats = TypeVar("Chats", bound=DecoderTuning)


class DecoderTuningSpec(TaskSpec[Chats]):
    """Base class for the declarations of the tasks that train on conversations."""

    exported_as = "CausalLM"
    pipeline = "text-generation"
    model_kind = "decoder"
    predicts_tokens = True
    generates = True
    training_fields = (*TaskSpec.training_fields, "reset_generation")
    later_fields = (*TaskSpec.later_fields, "reset_generation")
    against_ipex = "packed conversations need attention kernels that do not work with IPEX"

    def uses_chat_template(self, options: Chats) -> bool:
        """Return True unless the recipe turns the chat template off."""
        return options.chat_template

    def load_in_4bit(self, options: Chats) -> bool:
        """Return True if the recipe sets load_in_4bit."""
        return options.load_in_4bit

    def contradictions(self, options: Chats) -> Iterator[Contradiction]:
        """Yield an error if generation settings are reset although adapters are saved alone."""
        yield from settings_of_adapters(options, options.reset_generation)
        yield from super().contradictions(options)

    def why_not_predicted(self) -> tuple[str, str]:
        """Return the reason, with advice to generate text with transformers' pipeline."""
        return use_pipeline(self.pipeline)


def uses_of(named: ConversationColumns | PreferenceColumns, columns: Sequence[str]) -> Columns:
    """Return the columns with conversations by use, including a column with tools."""
    uses = {use: (name,) for use, name in named._asdict().items() if name}
    return {**uses, "tools": tuple(name for name in columns if name == "tools")}


def two_forms(options: Conversations) -> Iterator[Contradiction]:
    """Yield errors if fields mix two row formats, or if messages have no chat template."""
    pair = [name for name in ("prompt_column", "completion_column") if getattr(options, name)]
    if options.messages_column and pair:
        yield (
            pair[0],
            "rows have either messages (messages_column) or a prompt and a completion",
        )
    if options.messages_column and not options.chat_template:
        yield "messages_column", "messages need a chat template: chat_template: true"


def not_evaluated(model: str) -> tuple[str, str]:
    """Return why a model cannot be evaluated on preferences, and advice to evaluate its answers.

    Args:
        model: name of the model as the user typed it.
    """
    return (
        "preferences are measured relative to the model before its training",
        "see the evaluations of its training; for the loss on answers: ftcluster evaluate "
        f"sft --model {model}",
    )


class InstructionTuningSpec(DecoderTuningSpec[InstructionTuning]):
    """The declaration of instruction tuning."""

    name = "instruction-tuning"
    fields = InstructionTuning
    recipe = "sft"
    model_recipes = {"ForCausalLM": ("sft", "clm")}  # a decoder can also train on plain text

    def columns(
        self,
        options: InstructionTuning,
        columns: Sequence[str],
        answered: bool,
    ) -> Columns:
        """Find the columns with messages, or with prompts and completions."""
        return uses_of(conversation_columns(options, columns), columns)

    def row_check(
        self,
        options: InstructionTuning,
        answered: bool,
        columns: Sequence[str],
    ) -> CheckRow:
        """Return a check that a row's conversation can be read."""
        named = conversation_columns(options, columns)
        template = options.chat_template
        return check_by_reading(partial(read_conversation, columns=named, chat_template=template))

    def row_form(self, options: InstructionTuning, answered: bool) -> str:
        """Describe a row that contains messages, or a prompt and its completion."""
        prompt = options.prompt_column or "prompt"
        pair = f"{prompt} and {options.completion_column or 'completion'}"
        if not options.chat_template:
            return f"each row has {pair} (text)"
        return (
            f"each row has {options.messages_column or 'messages'} (a list of objects with "
            f"role and content, at least one of the role assistant), or {pair}"
        )

    def metric_names(self, options: InstructionTuning) -> tuple[str, ...]:
        """Return the loss and the perplexity."""
        return ("loss", "perplexity")

    def contradictions(self, options: InstructionTuning) -> Iterator[Contradiction]:
        """Yield errors if fields mix two row formats, or if messages have no chat template."""
        yield from two_forms(options)
        yield from super().contradictions(options)


class PreferenceTuningSpec(DecoderTuningSpec[PreferenceTuning]):
    """The declaration of preference tuning."""

    name = "preference-tuning"
    fields = PreferenceTuning
    later_fields = (*DecoderTuningSpec.later_fields, "loss_type", "simpo_gamma")
    recipe = "dpo"
    scaled_by = {
        "beta": ("loss", "margin"),
        "simpo_gamma": ("loss",),
        "label_smoothing_factor": ("loss",),
        "loss_type": ("loss", "margin"),
    }

    def columns(
        self,
        options: PreferenceTuning,
        columns: Sequence[str],
        answered: bool,
    ) -> Columns:
        """Find the columns with the prompt and both answers."""
        return uses_of(preference_columns(options, columns), columns)

    def row_check(
        self,
        options: PreferenceTuning,
        answered: bool,
        columns: Sequence[str],
    ) -> CheckRow:
        """Return a check that both conversations of a row can be read."""
        answers = preference_columns(options, columns)
        template = options.chat_template
        return check_by_reading(partial(read_preference, columns=answers, chat_template=template))

    def row_form(self, options: PreferenceTuning, answered: bool) -> str:
        """Describe a row that contains a prompt and two answers."""
        prompt = options.prompt_column or "prompt"
        answers = f"{options.chosen_column} and {options.rejected_column}"
        if not options.chat_template:
            return f"each row has {prompt}, {answers} (texts)"
        return (
            f"each row has {prompt}, {answers} (texts or lists of messages), or only {answers} "
            "(lists of messages that begin alike)"
        )

    def metric_names(self, options: PreferenceTuning) -> tuple[str, ...]:
        """Return the loss, and the metrics that compare the two answers."""
        return ("loss", "accuracy", "margin")

    def texts_of_a_sample(self, options: PreferenceTuning) -> int:
        """Return 2, because the model reads both answers."""
        return 2

    def compares_with_start(self, options: PreferenceTuning) -> bool:
        """Return True for DPO's loss."""
        return options.loss_type == "sigmoid"

    def smooths_labels(self, options: PreferenceTuning) -> bool:
        """Return True unless the loss is ORPO's, which has no labels."""
        return options.loss_type != "orpo"

    def contradictions(self, options: PreferenceTuning) -> Iterator[Contradiction]:
        """Yield an error if simpo_gamma is set although the loss is not simpo."""
        if options.simpo_gamma != PreferenceTuning.simpo_gamma and options.loss_type != "simpo":
            yield "simpo_gamma", "simpo_gamma is for loss_type: simpo"
        yield from super().contradictions(options)

    def why_not_evaluated(self, options: PreferenceTuning, model: str) -> tuple[str, str] | None:
        """Return why a loss that needs the initial model cannot be measured, with advice."""
        return not_evaluated(model) if self.compares_with_start(options) else None
