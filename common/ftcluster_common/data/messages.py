"""Converts messages of conversations from all common file formats to the form of chat templates."""

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
    """Return the descriptions of a row's functions; TRL's files store them as JSON text.

    Raises:
        DataError: the cell holds anything else.
    """
    tools = row.get("tools") or None
    if isinstance(tools, str):
        tools = _json("tools", tools)
    if tools is not None and not (isinstance(tools, list) and all(map(_is_object, tools))):
        raise DataError(f"tools is {short(tools)}, not a list of descriptions of functions")
    return _without_nulls(tools) or None


def text_message(column: str, cell: Any, role: str) -> list[Message]:
    """Return a list with a text as the only message, by this role.

    Raises:
        DataError: the value is not a text, or is empty.
    """
    if not isinstance(cell, str):
        raise DataError(f"{column} is {short(cell)}, not a text")
    if not cell.strip():
        raise DataError(f"{column} is empty")
    return [{"role": role, "content": cell}]


def is_dialogue(cell: Any) -> bool:
    """Return True if a text begins with the line Human: or Assistant:."""
    return isinstance(cell, str) and bool(SPEAKERS.match(f"\n\n{cell.lstrip()}"))


def read_dialogue(text: str) -> list[Message]:
    """Return the messages of a text with the lines "Human:" and "Assistant:" (hh-rlhf).

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
    """Return the messages of a cell: a list, or JSON text with a list.

    Raises:
        DataError: the cell is not such a list, or a message is invalid or empty. The error names
            the message.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        cell = _json(column, cell)
    if not isinstance(cell, list):
        raise DataError(f"{column} is {short(cell)}, not a list of messages")
    if not cell:
        raise DataError(f"{column} is empty")
    return [
        _message(f"message {number} of {column}", message)
        for number, message in enumerate(cell, start=1)
    ]


def _message(which: str, given: Any) -> Message:
    """Return a message for chat templates: role, content as text, arguments as objects."""
    if not _is_object(given):
        raise DataError(f"{which} is {short(given)}, not an object with role and content")
    message = dict(given)
    if "role" not in message and "from" in message:  # ShareGPT
        message["role"], message["content"] = message.pop("from"), message.pop("value", None)
    role = message.get("role")
    if not isinstance(role, str):
        raise DataError(f"{which} is {short(given)}, not an object with role and content")
    message["role"] = ROLES.get(role, role)
    content = message.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined(which, content)
    if content is not None and not isinstance(content, str):
        raise DataError(f"{which} has the content {short(content)}, not a text")
    for key, allowed in {"weight": (0, 1), "train": (True, False)}.items():
        if message.get(key) is None:
            message.pop(key, None)
        elif message[key] not in allowed:
            choices = " or ".join(map(str, allowed))
            raise DataError(f"{which} has the {key} {short(message[key])}, not {choices}")
    if calls := message.get("tool_calls"):
        message["tool_calls"] = _calls(which, calls)
    elif not (content or "").strip() and role != "tool":  # a tool may return nothing
        raise DataError(f"{which}, of the role {role}, is empty")
    return message


def _joined(which: str, parts: Sequence[Any]) -> str:
    """Return the text of content that OpenAI's and Anthropic's files split into parts."""
    for part in parts:
        if not (_is_object(part) and isinstance(part.get("text"), str)):
            kind = part.get("type") if _is_object(part) else part
            raise DataError(f"{which} has a part {short(kind)}; only text is supported")
    return "".join(part["text"] for part in parts)


def _calls(which: str, calls: Any) -> list[Any]:
    """Return tool calls with arguments as objects; OpenAI's files store them as JSON text."""
    if not (isinstance(calls, list) and all(map(_is_object, calls))):
        raise DataError(f"{which} has the tool_calls {short(calls)}, not a list of objects")
    read = []
    for call in calls:
        function = call.get("function", call)
        if not _is_object(function):
            raise DataError(f"{which} calls {short(function)}, not a function")
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
        raise DataError(f"{what} is {short(text)}, not JSON: {error}") from error


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _without_nulls(value: Any) -> Any:
    """Return a value without null keys, which Parquet adds if other rows have them."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
