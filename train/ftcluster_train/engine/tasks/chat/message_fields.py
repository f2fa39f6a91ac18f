"""Detection of message fields that a chat template ignores.

A mark is appended to each string in the fields, and the conversation is rendered again. If the
result contains a field's mark, the template writes this field. Otherwise the conversation is
rendered without the field. If this does not change the rendered text, the template ignores it.

Standard library only.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.messages import ASSISTANT, Message
from ftcluster_train.engine.tasks.chat.marked_texts import (
    MARK,
    THOUGHTS,
    MarkedText,
    Render,
    marked_texts,
    without_spaces,
)

READ = frozenset(("role", "content", "weight", "train"))  # fields that ftcluster uses itself
NAMES = frozenset(
    ("id", "type", "index", "tool_call_id")
)  # fields that templates compare but do not write
CERTAIN = 50  # after this number of verified drops of a field, missing marks are trusted
TOOLS = "tools"
IN_CONTENT = "thoughts in the content"

Path = tuple[Any, ...]  # path to a value in a conversation: keys and list indices
RenderOf = Callable[[Conversation], Render]


class WrittenFields:
    """Counts fields in conversations, and how often the chat template drops each field."""

    def __init__(self) -> None:
        self._all: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._checked: Counter[str] = Counter()
        self._masked: Counter[str] = Counter()  # fields that are written, but not in target text

    def add(
        self, conversation: Conversation, texts: Sequence[MarkedText], render_of: RenderOf
    ) -> None:
        """Count the fields of a conversation, and those fields that the template drops.

        Args:
            texts: texts of the conversation from `marked_texts`.
            render_of: function that returns the renderer for a conversation.
        """
        written = [without_spaces(text.text) for text in texts]
        for message in conversation.messages:
            self._add_content(message, written)
        leaves = dict(_leaves(conversation))
        if not leaves:
            return
        marks = {path: f"{MARK}field-{number}." for number, path in enumerate(leaves)}
        rendered = _texts(_with_marks(conversation, marks), render_of)
        marked = None if rendered is None else _joined(rendered)
        target_text = "" if rendered is None else _target_text(rendered)
        lost: dict[tuple[Path, str], bool] = {}
        written_any: dict[tuple[Path, str], bool] = {}
        # Strings are handled first, because a value without a mark, such as a number in arguments,
        # counts as written if a string in the same field is written.
        for path, (label, value) in sorted(leaves.items(), key=_is_no_text):
            of = (path[:2] if path[0] != TOOLS else path[:1], label)
            is_name, has_mark = path[-1] in NAMES, not _is_no_text((path, (label, value)))
            is_written = has_mark and marked is not None and marks[path] in marked
            if not is_written and not has_mark and not is_name and written_any.get(of):
                is_written = True
            elif not is_written:
                sure = is_name or (has_mark and bool(marked))
                is_written = not self._is_unread(
                    conversation, path, label, texts, render_of, sure=sure
                )
            elif path[0] in conversation.target_messages and marks[path] not in target_text:
                self._masked[label] += 1
            written_any[of] = written_any.get(of, False) or is_written
            lost[of] = lost.get(of, False) or not is_written
        for of, is_lost in lost.items():
            self._all[of[1]] += 1
            # templates may drop some parts of a tool's description
            self._lost[of[1]] += not written_any[of] if of[1] == TOOLS else is_lost

    def _add_content(self, message: Message, written: Sequence[str]) -> None:
        """Count the content of an answer; `marked_texts` has checked all other messages."""
        content = message.get("content") or ""
        if message["role"] != ASSISTANT or not content.strip():
            return
        has_thoughts = bool(THOUGHTS.search(content))
        kinds = [f"content of {ASSISTANT}", *[f"{IN_CONTENT} of {ASSISTANT}"] * has_thoughts]
        self._all.update(kinds)
        parts = [*map(without_spaces, THOUGHTS.split(content))]
        missing = [not any(part in text for text in written) for part in parts]
        # text and thoughts alternate; the first <think> is missing if the template adds it
        first = THOUGHTS.search(content)
        begun = bool(first and first.group().startswith("</"))
        self._lost[kinds[0]] += any(missing[begun::2])
        if has_thoughts:
            self._lost[kinds[1]] += any(missing[1 - begun :: 2])

    def _is_unread(
        self, conversation: Conversation, path: Path, label: str, texts: Sequence[MarkedText],
        render_of: RenderOf, *, sure: bool,
    ) -> bool:  # fmt: skip
        """Return True if the template renders the same text without the field.

        The template is not run if `sure` is True and enough drops of the field were verified.
        """
        if sure and self._checked[label] >= CERTAIN:
            return True
        without = _texts(_without(conversation, path), render_of)
        is_unread = without is not None and _joined(without) == _joined(texts)
        self._checked[label] += is_unread
        return is_unread

    def notices(self, split: str) -> list[str]:
        """Return notices about fields that the template dropped in a set, and reset the counts."""
        lost = [
            f"{label} ({self._lost[label]} of {count})"
            for label, count in self._all.items()
            if self._lost[label]
        ]
        masked = [f"{label} ({count})" for label, count in self._masked.items()]
        for counter in (self._all, self._lost, self._checked, self._masked):
            counter.clear()
        notices = []
        if masked:
            notices.append(
                f"{split}: these fields do not contribute to the loss, because the chat template "
                f"writes them before the target tokens: {', '.join(masked)}"
            )
        if not lost:
            return notices
        return [
            *notices,
            f"{split}: NOT WRITTEN by the chat template, so the model never reads it: "
            f"{', '.join(lost)}; use a tokenizer whose template writes it (tokenizer=DIR), or "
            "remove it from the data",
        ]


def _joined(texts: Sequence[MarkedText]) -> str:
    return "\0".join(text.text for text in texts)


def _is_no_text(leaf: tuple[Path, tuple[str, Any]]) -> bool:
    """Return True if a leaf cannot be marked: it is not a string, or its field is in NAMES."""
    path, (_, value) = leaf
    return path[-1] in NAMES or not isinstance(value, str)


def _target_text(texts: Sequence[MarkedText]) -> str:
    return "\0".join(text.text[begin:end] for text in texts for begin, end in text.spans)


def _texts(conversation: Conversation, render_of: RenderOf) -> list[MarkedText] | None:
    try:
        return marked_texts(conversation, render_of(conversation))
    except DataError:
        return None


def _leaves(conversation: Conversation) -> Iterator[tuple[Path, tuple[str, Any]]]:
    """Yield the path, name and value of each leaf in fields that ftcluster does not use itself."""
    for number, message in enumerate(conversation.messages):
        for field, value in message.items():
            if field not in READ:
                for path, name in _within(value, (number, field), str(field)):
                    yield path, (f"{name} of {message['role']}", _at(conversation, path))
    for path, _ in _within(conversation.tools, (TOOLS,), TOOLS):
        if path[-1] not in NAMES:
            yield path, (TOOLS, _at(conversation, path))


def _within(value: Any, path: Path, name: str) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            # tool call arguments have arbitrary names, so all arguments count as one field
            longer = name if name.endswith(".arguments") else f"{name}.{key}"
            yield from _within(item, (*path, key), longer)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield from _within(item, (*path, number), name)
    elif value not in (None, "", [], {}) and path[-1] != "type":
        yield path, name


def _at(conversation: Conversation, path: Path) -> Any:
    value: Any = conversation.tools if path[0] == TOOLS else conversation.messages[path[0]]
    for key in path[1:]:
        value = value[key]
    return value


def _with_marks(conversation: Conversation, marks: Mapping[Path, str]) -> Conversation:
    for path, mark in marks.items():
        value = _at(conversation, path)
        if isinstance(value, str) and path[-1] not in NAMES:
            conversation = _changed(conversation, path, partial(_marked, mark))
    return conversation


def _marked(mark: str, text: Any) -> str:
    return f"{text} {mark}"


def _without(conversation: Conversation, path: Path) -> Conversation:
    """Return a conversation without the field, or part of a field, at `path`."""
    if len(path) == 2 and path[0] != TOOLS:
        messages = [dict(message) for message in conversation.messages]
        del messages[path[0]][path[1]]
        return replace(conversation, messages=messages)
    return _changed(conversation, path, lambda value: "" if isinstance(value, str) else None)


def _changed(conversation: Conversation, path: Path, change: Callable[[Any], Any]) -> Conversation:
    if path[0] == TOOLS:
        return replace(conversation, tools=_replaced(conversation.tools, path[1:], change))
    messages = _replaced(list(conversation.messages), path, change)
    return replace(conversation, messages=messages)


def _replaced(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a value in which `change` has replaced the part at `path`."""
    if not path:
        return change(value)
    copied = list(value) if isinstance(value, list) else dict(value)
    copied[path[0]] = _replaced(copied[path[0]], path[1:], change)
    return copied
