"""Conversion of conversations to texts, in which the assistant's messages are marked as targets.

Standard library only.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.messages import ASSISTANT, Message

# maps role names that some templates reject to synonyms that most templates support
SYNONYMS = {"developer": "system", "function": "tool"}
MARK = "ftcluster-message-"
THOUGHTS = re.compile("</?think>")  # templates may change the white space around these tags

# function that renders messages as text; True adds the beginning of the assistant's next message
Render = Callable[[Sequence[Message], bool], str]
CharacterRange = tuple[int, int]  # index of the first character, and index after the last character


@dataclass(frozen=True)
class MarkedText:
    """A text, and the character ranges (`spans`) whose tokens contribute to the loss."""

    text: str
    spans: tuple[CharacterRange, ...]


def with_known_roles(conversation: Conversation, render: Render) -> Conversation:
    """Rename roles so that the chat template writes every message; return the conversation.

    Roles are renamed to their synonyms only if the template drops or rejects a message.

    Raises:
        DataError: the template still drops a message or rejects the conversation.
    """
    try:
        _check_written(conversation.messages, render)
        return conversation
    except DataError:
        renamed = [
            {**message, "role": SYNONYMS.get(message["role"], message["role"])}
            for message in conversation.messages
        ]
        if renamed == list(conversation.messages):
            raise
    _check_written(renamed, render)
    return replace(conversation, messages=renamed)


def _check_written(messages: Sequence[Message], render: Render) -> None:
    """Check that the rendered text contains each message, except the assistant's.

    A mark is appended to each message, because two messages may have the same content.

    Raises:
        DataError: the text lacks a message.
    """
    marks = {
        number: f"{MARK}{number}."
        for number, message in enumerate(messages)
        if message["role"] != ASSISTANT and (message.get("content") or "").strip()
    }
    marked = [
        {**message, "content": f"{message['content']} {marks[number]}"}
        if number in marks
        else message
        for number, message in enumerate(messages)
    ]
    whole = render(marked, False)
    for number, mark in marks.items():
        if mark not in whole:
            raise DataError(
                f"the chat template omits message {number + 1}, of the role "
                f"{messages[number]['role']}"
            )


def marked_texts(conversation: Conversation, render: Render) -> list[MarkedText]:
    """Render a conversation with the chat template, and mark the assistant's messages as targets.

    A target begins at the end of the template's generation prompt, and includes everything that the
    template adds after the message. Some templates change a message when other messages follow. For
    example, they drop the assistant's thoughts. The conversation up to such a message is rendered
    as a separate text.

    Raises:
        DataError: the template drops a target message, or changes the text before the message.
    """
    messages = conversation.messages
    whole = render(messages, False)
    texts: list[MarkedText] = []
    spans: list[CharacterRange] = []
    for number in conversation.target_messages:
        before = render(messages[:number], False) if number else ""
        begun = render(messages[:number], True) if number else ""
        written = whole if number == len(messages) - 1 else render(messages[: number + 1], False)
        start = _common(begun, written)
        if start < len(begun) and not written.startswith(before):
            raise DataError(
                f"the chat template changes the text before message {number + 1} once that message "
                "follows, so the beginning of the message cannot be determined"
            )
        # the generation prompt may already contain the start of the message, such as <think>
        message_text = without_spaces(written[len(before) :])
        parts = THOUGHTS.split(messages[number].get("content") or "")
        if not written[start:].strip() or not all(
            without_spaces(part) in message_text for part in parts
        ):
            raise DataError(
                f"the chat template omits message {number + 1}, which is a training target"
            )
        span = (start, len(written))
        if whole.startswith(written):
            spans.append(span)
        else:
            texts.append(MarkedText(written, (span,)))
    return [*texts, MarkedText(whole, tuple(spans))] if spans else texts


def without_spaces(text: str) -> str:
    """Remove the white space from a text, because templates may change it."""
    return "".join(text.split())


def _common(left: str, right: str) -> int:
    """Return the length of the longest common prefix of two texts."""
    if right.startswith(left):
        return len(left)
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(right))


def after_answer(render: Render) -> tuple[str, int]:
    """Render a sample conversation; return its text, and the index after the answer in it.

    Raises:
        DataError: the template rejects the conversation, or drops the answer.
    """
    answer = f"{MARK}answer"
    text = render(
        [{"role": "user", "content": MARK}, {"role": ASSISTANT, "content": answer}], False
    )
    if answer not in text:
        raise DataError("the chat template omits the answer")
    return text, text.rindex(answer) + len(answer)


def plain_text(conversation: Conversation, end: str) -> MarkedText:
    """Return a prompt and its completion as one text, without a chat template.

    Args:
        end: end-of-text token.
    """
    prompt, completion = (str(message["content"]) for message in conversation.messages)
    text = prompt + completion + end
    return MarkedText(text, ((len(prompt), len(text)),))


def target_tokens(offsets: Sequence[CharacterRange], spans: Sequence[CharacterRange]) -> list[int]:
    """Return the indices of the tokens that begin in one of the spans, without token 0.

    Args:
        offsets: character range of each token in the text.
        spans: character ranges of the targets.

    >>> target_tokens([(0, 0), (0, 2), (2, 5), (5, 6), (6, 9)], [(2, 6)])
    [2, 3]
    >>> target_tokens([(0, 2), (5, 5), (5, 6), (8, 8), (8, 9)], [(2, 6)])
    [1, 2]
    """
    numbers = _tokens_in(offsets, spans)
    return [number for number in numbers if number]


def _tokens_in(offsets: Sequence[CharacterRange], spans: Sequence[CharacterRange]) -> Iterator[int]:
    remaining = iter(spans)
    span = next(remaining, None)
    for number, (start, end) in enumerate(offsets):
        # with trim_offsets, the range of a space is empty and lies after the space
        first = start if start < end else start - 1
        while span and first >= span[1]:
            span = next(remaining, None)
        if span is None:
            return
        if span[0] <= first:
            yield number
