"""Conversations as texts, of which the assistant's messages contribute to the loss.

Standard library only.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.messages import ASSISTANT, Message

# the newer and the older name of a role in OpenAI's format, and the common name
SYNONYMS = {"developer": "system", "function": "tool"}
MARK = "ftcluster-message-"
THOUGHTS = re.compile("</?think>")  # some templates write these tags again with other spaces

# writes messages as text; True adds the beginning of the assistant's next message
Render = Callable[[Sequence[Message], bool], str]
CharacterRange = tuple[int, int]  # indices of the first character and after the last


@dataclass(frozen=True)
class LearnedText:
    """A text, and the parts of it that contribute to the loss."""

    text: str
    spans: tuple[CharacterRange, ...]


def with_known_roles(conversation: Conversation, render: Render) -> Conversation:
    """Return a conversation of which the chat template writes every message.

    If the template drops or refuses a message, roles that have another name are renamed.

    Raises:
        DataError: the template still drops a message, or refuses the conversation.
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
    """Raise an error if the text lacks the content of a message that is not an answer.

    The assistant's thoughts may be missing in answers that do not contribute to the loss. Each
    content gets a mark at its end, because another message may have the same words.
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
                f"the chat template leaves out message {number + 1}, of the role "
                f"{messages[number]['role']}"
            )


def learned_texts(conversation: Conversation, render: Render) -> list[LearnedText]:
    """Return a conversation as its chat template writes it, with the assistant's messages marked.

    A message begins where the template's generation prompt ends, and includes everything that the
    template writes after it. Some templates write a message differently once other messages follow,
    for example without the assistant's thoughts. The conversation up to such a message becomes a
    text of its own.

    Raises:
        DataError: the template drops a target message, or changes the text before it.
    """
    messages = conversation.messages
    whole = render(messages, False)
    texts: list[LearnedText] = []
    spans: list[CharacterRange] = []
    for number in conversation.learned:
        before = render(messages[:number], False) if number else ""
        begun = render(messages[:number], True) if number else ""
        written = whole if number == len(messages) - 1 else render(messages[: number + 1], False)
        start = _common(begun, written)
        if start < len(begun) and not written.startswith(before):
            raise DataError(
                f"the chat template changes the text before message {number + 1} once that message "
                "follows, so the beginning of the message cannot be determined"
            )
        # the text that the template begins itself may be a part of the message, such as <think>
        own = without_spaces(written[len(before) :])
        parts = THOUGHTS.split(messages[number].get("content") or "")
        if not written[start:].strip() or not all(without_spaces(part) in own for part in parts):
            raise DataError(
                f"the chat template leaves out message {number + 1}, which is a training target"
            )
        span = (start, len(written))
        if whole.startswith(written):
            spans.append(span)
        else:
            texts.append(LearnedText(written, (span,)))
    return [*texts, LearnedText(whole, tuple(spans))] if spans else texts


def without_spaces(text: str) -> str:
    """Return a text without white space, which templates write differently."""
    return "".join(text.split())


def _common(one: str, other: str) -> int:
    """Return the number of characters that two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(other))


def after_answer(render: Render) -> tuple[str, int]:
    """Return an answer as a chat template writes it, and the index after the answer's text.

    Raises:
        DataError: the template refuses the conversation, or drops the answer.
    """
    answer = f"{MARK}answer"
    text = render(
        [{"role": "user", "content": MARK}, {"role": ASSISTANT, "content": answer}], False
    )
    if answer not in text:
        raise DataError("the chat template leaves out the answer")
    return text, text.rindex(answer) + len(answer)


def plain_text(conversation: Conversation, end: str) -> LearnedText:
    """Return a prompt and its completion as one text, without a chat template.

    Args:
        end: end-of-text token.
    """
    prompt, completion = (str(message["content"]) for message in conversation.messages)
    text = prompt + completion + end
    return LearnedText(text, ((len(prompt), len(text)),))


def learned_tokens(offsets: Sequence[CharacterRange], spans: Sequence[CharacterRange]) -> list[int]:
    """Return the indices of the tokens that begin in one of the spans, except for token 0.

    Args:
        offsets: character range of each token in the text.

    >>> learned_tokens([(0, 0), (0, 2), (2, 5), (5, 6), (6, 9)], [(2, 6)])
    [2, 3]
    >>> learned_tokens([(0, 2), (5, 5), (5, 6), (8, 8), (8, 9)], [(2, 6)])
    [1, 2]
    """
    numbers = _tokens_in(offsets, spans)
    return [number for number in numbers if number]


def _tokens_in(offsets: Sequence[CharacterRange], spans: Sequence[CharacterRange]) -> Iterator[int]:
    remaining = iter(spans)
    span = next(remaining, None)
    for number, (start, end) in enumerate(offsets):
        # some tokenizers report only the end of spaces (trim_offsets)
        first = start if start < end else start - 1
        while span and first >= span[1]:
            span = next(remaining, None)
        if span is None:
            return
        if span[0] <= first:
            yield number
