"""Converts chat messages from all common file formats to the form that chat templates read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster_common.data.data_files import DataError, Row, short
from ftcluster_common.given_files import parse_json

ASSISTANT = "assistant"
ROLES = {"human": "user", "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT}  # ShareGPT
SPEAKERS = re.compile(r"\n\n(Human|Assistant):")

Message = Mapping[str, Any]  # fields that a chat template may read


def read_tools(row: Row) -> Any:
    """Return a row's function descriptions, which TRL's files store as a JSON string.

    Raises:
        DataError: the cell contains anything else.
    """
    tools = row.get("tools") or None
    if isinstance(tools, str):
        tools = _json("column tools", tools)
    if tools is not None and not (isinstance(tools, list) and all(map(_is_object, tools))):
        raise DataError(f"column tools must be a list of function descriptions, got {short(tools)}")
    return _without_nulls(tools) or None


def text_message(column: str, cell: Any, role: str) -> list[Message]:
    """Return a list with one message, which has this role and the text of the cell.

    Raises:
        DataError: the cell is not a string, or is empty.
    """
    if not isinstance(cell, str):
        raise DataError(f"column {column} must be a string, got {short(cell)}")
    if not cell.strip():
        raise DataError(f"column {column} is empty")
    return [{"role": role, "content": cell}]


def is_dialogue(cell: Any) -> bool:
    """Return True if a cell is a string that begins with Human: or Assistant:."""
    return isinstance(cell, str) and bool(SPEAKERS.match(f"\n\n{cell.lstrip()}"))


def read_dialogue(text: str) -> list[Message]:
    """Return the messages of a string with the lines "Human:" and "Assistant:" (hh-rlhf).

    >>> [message["role"] for message in read_dialogue("Human: Hi.\\n\\nAssistant: Hello.")]
    ['user', 'assistant']
    """
    _, *parts = SPEAKERS.split(f"\n\n{text.lstrip()}")
    roles = {"Human": "user", "Assistant": ASSISTANT}
    return [
        {"role": roles[speaker], "content": said.strip()}
        for speaker, said in zip(parts[::2], parts[1::2], strict=True)
    ]


def read_messages(column: str, cell: Any, _role: str = "") -> list[Message]:
    """Return the messages of a cell, which is a list or a JSON string with a list.

    Raises:
        DataError: the cell is not such a list, or a message is invalid or empty. The error names
            the message.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        cell = _json(f"column {column}", cell)
    if not isinstance(cell, list):
        raise DataError(f"column {column} must be a list of messages, got {short(cell)}")
    if not cell:
        raise DataError(f"column {column} is empty")
    return [
        _message(f"message {number} in column {column}", message)
        for number, message in enumerate(cell, start=1)
    ]


def _message(which: str, given: Any) -> Message:
    """Return a message for chat templates: a role, a string as content, arguments as objects."""
    if not _is_object(given):
        raise DataError(f"{which} must be an object with role and content, got {short(given)}")
    message = dict(given)
    if "role" not in message and "from" in message:  # ShareGPT
        message["role"], message["content"] = message.pop("from"), message.pop("value", None)
    role = message.get("role")
    if not isinstance(role, str):
        raise DataError(f"{which} must be an object with role and content, got {short(given)}")
    message["role"] = ROLES.get(role, role)
    content = message.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined(which, content)
    if content is not None and not isinstance(content, str):
        raise DataError(f"the content of {which} must be a string, got {short(content)}")
    for key, allowed in {"weight": (0, 1), "train": (True, False)}.items():
        if message.get(key) is None:
            message.pop(key, None)
        elif message[key] not in allowed:
            choices = " or ".join(map(str, allowed))
            raise DataError(f"the {key} of {which} must be {choices}, got {short(message[key])}")
    if calls := message.get("tool_calls"):
        message["tool_calls"] = _calls(which, calls)
    elif not (content or "").strip() and role != "tool":  # a tool may return nothing
        raise DataError(f"{which} (role {role}) is empty")
    return message


def _joined(which: str, parts: Sequence[Any]) -> str:
    """Return the text of a content that OpenAI's and Anthropic's files split into parts."""
    for part in parts:
        if not (_is_object(part) and isinstance(part.get("text"), str)):
            kind = part.get("type") if _is_object(part) else part
            raise DataError(f"{which} contains a part {short(kind)}; only text is supported")
    return "".join(part["text"] for part in parts)


def _calls(which: str, calls: Any) -> list[Any]:
    """Return tool calls with arguments as objects; OpenAI's files store them as JSON strings."""
    if not (isinstance(calls, list) and all(map(_is_object, calls))):
        raise DataError(f"tool_calls of {which} must be a list of objects, got {short(calls)}")
    read = []
    for call in calls:
        function = call.get("function", call)
        if not _is_object(function):
            raise DataError(
                f"the function that {which} calls must be an object, got {short(function)}"
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _json(f"the arguments of {which}", arguments or "{}")
        function = {**function, "arguments": _without_nulls(arguments)}
        read.append({**call, "function": function} if "function" in call else function)
    return read


def _json(what: str, text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{what} must be JSON, got {short(text)}: {error}") from error


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _without_nulls(value: Any) -> Any:
    """Return a value without null fields, which Parquet adds if other rows have these fields."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
