"""Conversations in rows of data: messages, or a prompt and its completion.

Supported forms: OpenAI's and Anthropic's files, ShareGPT (from, value), Alpaca (instruction, input,
output), Dolly (instruction, context, response) and hh-rlhf (texts with Human: and Assistant:).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ftcluster_common.data.columns import as_flag
from ftcluster_common.data.data_files import DataError, Row, found_columns, short
from ftcluster_common.data.messages import (
    ASSISTANT,
    Message,
    is_dialogue,
    read_dialogue,
    read_messages,
    read_tools,
    text_message,
)


class ConversationColumns(NamedTuple):
    """The column with messages, or the columns of prompt and completion; unused columns are "".

    Attributes:
        context: column with the text that the prompt refers to, which is appended to the prompt; ""
            if there is none. Its cells may be empty.
        system: column with the system message; "" if there is none. Its cells may be empty.
    """

    messages: str
    prompt: str = ""
    completion: str = ""
    context: str = ""
    system: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the configured column names, without empty ones."""
        return tuple(filter(None, self))


@dataclass(frozen=True)
class Conversation:
    """Messages, and the part of them that contributes to the loss.

    Attributes:
        first: index of the first message that may contribute to the loss.
        tools: function descriptions for the chat template; None if there are none.
    """

    messages: Sequence[Message]
    first: int = 0
    tools: Any = None

    @property
    def target_messages(self) -> list[int]:
        """Return the indices of the messages that contribute to the loss.

        Messages with `weight: 0` (OpenAI) or `train: false` (axolotl) do not contribute.
        """
        return [
            number
            for number, message in enumerate(self.messages)
            if number >= self.first
            and message["role"] == ASSISTANT
            and message.get("weight", 1) != 0
            and message.get("train", True) is not False
        ]


def read_conversation(
    row: Row, columns: ConversationColumns, chat_template: bool = True
) -> Conversation:
    """Return the conversation of a row.

    Args:
        chat_template: False if prompt and completion must be plain strings.

    Raises:
        DataError: a column is missing, a message is invalid or empty, or no message contributes to
            the loss. The message names the column.
    """
    _need(row, columns.names)
    if not chat_template and columns.messages:
        raise DataError(
            f"column {columns.messages} contains messages, which need a chat template: set "
            "chat_template=true"
        )
    tools = read_tools(row)
    if columns.messages:
        messages = [
            *_system(row, columns.system), *read_messages(columns.messages, row[columns.messages])
        ]  # fmt: skip
        conversation = Conversation(messages, 0, tools)
    else:
        prompt = _prompt(row, columns, chat_template)
        cell = row[columns.completion]
        read = (
            text_message
            if isinstance(row[columns.prompt], str) or not chat_template
            else read_messages
        )
        conversation = Conversation(
            [*prompt, *read(columns.completion, cell, ASSISTANT)], len(prompt), tools
        )
    if not conversation.target_messages:
        raise DataError(
            f"column {columns.messages or columns.completion} contains no message with the role "
            f"{ASSISTANT} that contributes to the loss"
        )
    return conversation


def _need(row: Row, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; {found_columns(row)}")


def _prompt(
    row: Row, columns: "ConversationColumns | PreferenceColumns", chat_template: bool
) -> list[Message]:
    """Return the messages before the answer; without a chat template, a single message."""
    cell = row[columns.prompt]
    if not isinstance(cell, str) and chat_template:
        return [*_system(row, columns.system), *read_messages(columns.prompt, cell)]
    [message] = text_message(columns.prompt, cell, "user")
    text = message["content"]
    if columns.context and row[columns.context] not in ("", None):
        [context] = text_message(columns.context, row[columns.context], "user")
        text = f"{text}\n\n{context['content']}"
    system = _system(row, columns.system)
    if system and not chat_template:
        text, system = f"{system[0]['content']}\n\n{text}", []
    return [*system, {"role": "user", "content": text}]


def _system(row: Row, column: str) -> list[Message]:
    cell = row[column] if column else None
    return [] if cell in ("", None) else text_message(column, cell, "system")


class PreferenceColumns(NamedTuple):
    """The columns with two answers and their prompt; `prompt` is "" if the answers contain it.

    Attributes:
        context: column with context, see `ConversationColumns`.
        system: column with the system message, see `ConversationColumns`.
    """

    chosen: str
    rejected: str
    prompt: str = ""
    context: str = ""
    system: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the configured column names, without empty ones."""
        return tuple(filter(None, self))


def read_preference(
    row: Row, columns: PreferenceColumns, chat_template: bool = True
) -> tuple[Conversation, Conversation]:
    """Return two conversations of a row: with the chosen answer, and with the rejected answer.

    If the answers are lists of messages that begin alike, the common beginning is the prompt.

    Args:
        chat_template: False if prompt and answers must be plain strings.

    Raises:
        DataError: a column is missing, a message is invalid or empty, or an answer contains no
            message of the assistant. The message names the column.
    """
    _need(row, columns.names)
    answers = columns[:2]
    cells = [row[name] for name in answers]
    pair: list[Sequence[Message]]
    if not columns.prompt and chat_template and all(map(is_dialogue, cells)):
        pair = [read_dialogue(cell) for cell in cells]
    else:
        read = text_message if isinstance(cells[0], str) or not chat_template else read_messages
        pair = [read(name, cell, ASSISTANT) for name, cell in zip(answers, cells, strict=True)]
    prompt: Sequence[Message] = []
    first = 0
    if pair[0][0]["role"] != ASSISTANT:  # the answers begin with their prompt
        while first < min(map(len, pair)) - 1 and pair[0][first] == pair[1][first]:
            first += 1
        prompt = _system(row, columns.system) if first else []
    elif columns.prompt:
        prompt = _prompt(row, columns, chat_template)
    first += len(prompt)
    if not first:
        raise DataError(
            f"columns {columns.chosen} and {columns.rejected} contain no common prompt: set "
            "prompt_column=NAME to name the prompt's column, or begin both answers with the same "
            "messages or the same lines Human: and Assistant:"
        )
    tools = read_tools(row)
    conversations = [Conversation([*prompt, *answer], first, tools) for answer in pair]
    for name, conversation in zip(answers, conversations, strict=True):
        if not conversation.target_messages:
            raise DataError(
                f"column {name} contains no message with the role {ASSISTANT} after the prompt"
            )
    chosen, rejected = conversations
    return chosen, rejected


class JudgedColumns(NamedTuple):
    """The columns with a conversation and with the label of its last answer."""

    conversation: ConversationColumns
    label: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return the configured column names, without empty ones."""
        return (*self.conversation.names, self.label)


# cell values with which users rate answers, in addition to the flags of `as_flag`
JUDGEMENTS = {
    "up": True, "thumbs up": True, "thumbsup": True, "thumb up": True, "like": True, "liked": True,
    "good": True, "positive": True, "desirable": True, "chosen": True, "yes": True,
    "+1": True, "\N{THUMBS UP SIGN}": True,
    "down": False, "thumbs down": False, "thumbsdown": False, "thumb down": False,
    "dislike": False, "disliked": False, "bad": False, "negative": False, "undesirable": False,
    "rejected": False, "no": False, "-1": False, "\N{THUMBS DOWN SIGN}": False,
}  # fmt: skip


def as_judgement(cell: Any) -> bool | None:
    """Return True if a cell marks a liked answer, False for a disliked one, None for other cells.

    >>> as_judgement(True), as_judgement("thumbs_down"), as_judgement(-1), as_judgement(4)
    (True, False, False, None)
    """
    flag = as_flag(cell)
    if flag is not None:
        return flag
    text = str(cell).strip().lower().replace("_", " ").replace("-", " ").replace("  ", " ")
    return JUDGEMENTS.get(str(cell).strip().lower(), JUDGEMENTS.get(text))


def read_judged_conversation(
    row: Row, columns: JudgedColumns, chat_template: bool = True
) -> tuple[Conversation, bool]:
    """Return the conversation of a row, and True if users liked its last answer.

    Only the last answer contributes to the loss. In messages this is the last message.

    Args:
        chat_template: False if prompt and completion must be plain strings.

    Raises:
        DataError: a column is missing, a message is invalid, the last message is not the
            assistant's, or the label is neither true nor false. The message names the column.
    """
    _need(row, columns.names)
    conversation = read_conversation(row, columns.conversation, chat_template)
    name = columns.conversation.messages
    if name:
        last = len(conversation.messages) - 1
        if conversation.messages[last]["role"] != ASSISTANT:
            raise DataError(
                f"column {name} ends with a message of {conversation.messages[last]['role']}, but "
                f"must end with the {ASSISTANT}'s answer that the label rates"
            )
        if not last:
            raise DataError(f"column {name} contains no message before the answer")
        conversation = replace(conversation, first=last)
    cell = row[columns.label]
    is_good = as_judgement(cell)
    if is_good is None:
        what = "empty" if cell is None or not str(cell).strip() else f"{short(cell)}"
        raise DataError(
            f"column {columns.label} must be true (a liked answer) or false (a disliked one), but "
            f"is {what}"
        )
    if not conversation.target_messages:
        raise DataError(f"the last message of column {name} does not contribute to the loss")
    return conversation, is_good
