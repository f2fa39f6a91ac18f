"""Conversations in rows of data: messages, or a prompt with its completion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ftcluster_common.data_files import DataError, Row
from ftcluster_common.recipe import InstructionTuning, PreferenceTuning

MESSAGES = ("messages", "conversation", "conversations", "chat")
PROMPTS = (
    ("prompt", "completion"), ("prompt", "response"), ("question", "answer"),
    ("query", "response"), ("input", "output"),
)  # fmt: skip
ASSISTANT = "assistant"

Message = Mapping[str, Any]  # role and content, and what else the chat template reads


class ConversationColumns(NamedTuple):
    """The column with messages; or those of a prompt and a completion, and "" for messages."""

    messages: str
    prompt: str = ""
    completion: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(filter(None, self))


@dataclass(frozen=True)
class Conversation:
    """Messages, and which of them are learned.

    Attributes:
        first: the number of the first message that may be learned, from 0.
        tools: descriptions of functions, for the chat template.
    """

    messages: Sequence[Message]
    first: int = 0
    tools: Any = None

    @property
    def learned(self) -> list[int]:
        """The numbers of the messages that are learned."""
        return [
            number
            for number, message in enumerate(self.messages)
            if number >= self.first and message["role"] == ASSISTANT
        ]


def conversation_columns(options: InstructionTuning, columns: Sequence[str]) -> ConversationColumns:
    """The columns with conversations.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    names = {name.lower(): name for name in columns}
    prompt, completion = options.prompt_column, options.completion_column
    messages = options.messages_column
    if messages is None and prompt is None and completion is None:
        messages = next((names[name] for name in MESSAGES if name in names), None)
    if messages is not None:
        found = ConversationColumns(messages)
    else:
        for known in PROMPTS:
            pair = [names.get(name, "") for name in known]
            if all(pair) and prompt in (None, pair[0]) and completion in (None, pair[1]):
                prompt, completion = pair
                break
        found = ConversationColumns("", prompt or "", completion or "")
    missing = [name for name in found.names if name not in columns]
    if missing or not (found.messages or (found.prompt and found.completion)):
        what = (
            f"no column {', '.join(missing)}" if missing else "no columns known for conversations"
        )
        raise DataError(
            f"{what}; found {', '.join(columns) or 'none'}; name them: messages_column=NAME, or "
            f"prompt_column={prompt or 'NAME'} completion_column={completion or 'NAME'}"
        )
    return found


def read_conversation(
    row: Row, columns: ConversationColumns, chat_template: bool = True
) -> Conversation:
    """The conversation of a row.

    Args:
        chat_template: False: a prompt and a completion have to be texts.

    Raises:
        DataError: a column is missing, a message is not one or is empty, or there is no message to
            learn; says which one.
    """
    missing = [name for name in columns.names if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; found {', '.join(map(str, row))}")
    if not chat_template and columns.messages:
        raise DataError(f"{columns.messages} needs a chat template: chat_template=true")
    tools = row.get("tools") or None
    if columns.messages:
        messages = _messages(columns.messages, row[columns.messages])
        found = Conversation(messages, 0, tools)
    else:
        texts = isinstance(row[columns.prompt], str) or not chat_template
        read = _text if texts else _messages
        prompt = read(columns.prompt, row[columns.prompt], "user")
        completion = read(columns.completion, row[columns.completion], ASSISTANT)
        found = Conversation([*prompt, *completion], len(prompt), tools)
    if not found.learned:
        raise DataError(
            f"{columns.messages or columns.completion} has no message of the role {ASSISTANT}"
        )
    return found


class PreferenceColumns(NamedTuple):
    """The columns of two answers, and that of their prompt, or "" where the answers have it."""

    chosen: str
    rejected: str
    prompt: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(filter(None, self))


def preference_columns(options: PreferenceTuning, columns: Sequence[str]) -> PreferenceColumns:
    """The columns with prompts and answers.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    names = {name.lower(): name for name in columns}
    prompt = options.prompt_column
    if prompt is None:
        prompt = next((names[name] for name, _ in PROMPTS if name in names), "")
    found = PreferenceColumns(options.chosen_column, options.rejected_column, prompt)
    missing = [name for name in found.names if name not in columns]
    if missing:
        raise DataError(
            f"no column {', '.join(missing)}; found {', '.join(columns) or 'none'}; name them: "
            "prompt_column=NAME chosen_column=NAME rejected_column=NAME"
        )
    return found


def read_preference(
    row: Row, columns: PreferenceColumns, chat_template: bool = True
) -> tuple[Conversation, Conversation]:
    """The conversations of a row with the chosen and with the rejected answer.

    Answers that are lists of messages may begin with their prompt: it is what they have in common.

    Args:
        chat_template: False: prompt and answers have to be texts.

    Raises:
        DataError: a column is missing, a message is not one or is empty, or an answer has no
            message of the assistant; says which one.
    """
    missing = [name for name in columns.names if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; found {', '.join(map(str, row))}")
    answers = columns[:2]
    texts = isinstance(row[columns.chosen], str) or not chat_template
    pair = [(_text if texts else _messages)(name, row[name], ASSISTANT) for name in answers]
    prompt: Sequence[Message] = []
    first = 0
    if pair[0][0]["role"] != ASSISTANT:  # the answers begin with their prompt
        while first < min(map(len, pair)) - 1 and pair[0][first] == pair[1][first]:
            first += 1
    elif columns.prompt:
        cell = row[columns.prompt]
        read = _text if isinstance(cell, str) or not chat_template else _messages
        prompt = read(columns.prompt, cell, "user")
        first = len(prompt)
    if not first:
        raise DataError(
            f"{columns.chosen} and {columns.rejected} have no prompt, nor do they begin alike: "
            "prompt_column=NAME"
        )
    found = [Conversation([*prompt, *one], first, row.get("tools") or None) for one in pair]
    for name, conversation in zip(answers, found, strict=True):
        if not conversation.learned:
            raise DataError(f"{name} has no message of the role {ASSISTANT} of its own")
    chosen, rejected = found
    return chosen, rejected


def _text(column: str, cell: Any, role: str) -> list[Message]:
    if not isinstance(cell, str):
        raise DataError(f"{column} is {_short(cell)}, not a text")
    if not cell.strip():
        raise DataError(f"{column} is empty")
    return [{"role": role, "content": cell}]


def _messages(column: str, cell: Any, _role: str = "") -> list[Message]:
    if not isinstance(cell, list):
        raise DataError(f"{column} is {_short(cell)}, not a list of messages")
    if not cell:
        raise DataError(f"{column} is empty")
    for number, message in enumerate(cell, start=1):
        which = f"message {number} of {column}"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"{which} is {_short(message)}, not an object with role and content")
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            raise DataError(f"{which} has the content {_short(content)}, not a text")
        optional = message["role"] == "tool" or message.get("tool_calls")  # may have no text
        if not optional and not (content or "").strip():
            raise DataError(f"{which}, of the role {message['role']}, is empty")
    return cell


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
