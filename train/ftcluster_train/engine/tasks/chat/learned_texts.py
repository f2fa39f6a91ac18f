"""Conversations as texts, of which the assistant's messages contribute to the loss.

Standard library only.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.messages import ASSISTANT, Message

# OpenAI's newer and older name of a role
SYNONYMS = {"developer": "system", "function": "tool"}
MARK = "ftcluster-message-"
THOUGHTS = re.compile("</?think>")  # which some templates write anew, with other spaces

# the text of messages; whether the beginning of the assistant's next message follows them
Render = Callable[[Sequence[Message], bool], str]
CharacterRange = tuple[int, int]  # the first character and the one behind the last


@dataclass(frozen=True)
class LearnedText:
    """A text, and the parts of it that are learned."""

    text: str
    spans: tuple[CharacterRange, ...]


def with_known_roles(conversation: Conversation, render: Render) -> Conversation:
    """A conversation of which the chat template writes every message.

    Where it leaves one out or refuses one, the roles that have another name get that.

    Raises:
        DataError: it leaves out a message all the same, or refuses the conversation.
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
    """Raise where a text lacks the content of a message that is no answer.

    What the assistant has thought may be left out of answers that are not learned. Each content
    gets a mark at its end, because another message may have the same words.
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
    """A conversation as its chat template writes it, with each of the assistant's messages.

    A message begins where the template asks for one, and ends with all that the template writes
    behind it. Some templates write a message in another way once others follow it: without what
    the assistant has thought, for example. The conversation up to such a message is a text of its
    own.

    Raises:
        DataError: the template leaves out a message that is learned, or changes what is before it.
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
                f"the chat template writes what is before message {number + 1} in another way once "
                "that follows, so it does not tell where the message begins"
            )
        # what the template begins itself may be a part of the message, such as <think>
        own = without_spaces(written[len(before) :])
        parts = THOUGHTS.split(messages[number].get("content") or "")
        if not written[start:].strip() or not all(without_spaces(part) in own for part in parts):
            raise DataError(f"the chat template leaves out message {number + 1}, which is learned")
        span = (start, len(written))
        if whole.startswith(written):
            spans.append(span)
        else:
            texts.append(LearnedText(written, (span,)))
    return [*texts, LearnedText(whole, tuple(spans))] if spans else texts


def without_spaces(text: str) -> str:
    """Return a text without blanks, which templates write in other places."""
    return "".join(text.split())


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(other))


def after_answer(render: Render) -> tuple[str, int]:
    """An answer as a chat template writes it, and where what the template adds behind it begins.

    Raises:
        DataError: the template refuses it, or leaves the answer out.
    """
    answer = f"{MARK}answer"
    text = render(
        [{"role": "user", "content": MARK}, {"role": ASSISTANT, "content": answer}], False
    )
    if answer not in text:
        raise DataError("the chat template leaves out an answer")
    return text, text.rindex(answer) + len(answer)


def plain_text(conversation: Conversation, end: str) -> LearnedText:
    """A prompt and its completion, one after the other, without a chat template.

    Args:
        end: the end-of-text token.
    """
    prompt, completion = (str(message["content"]) for message in conversation.messages)
    text = prompt + completion + end
    return LearnedText(text, ((len(prompt), len(text)),))


def learned_tokens(offsets: Sequence[CharacterRange], spans: Sequence[CharacterRange]) -> list[int]:
    """The numbers of the tokens that begin in one of the spans, except the first token of all.

    Args:
        offsets: of each token in the text.

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
        # of spaces some tokenizers leave nothing but where they end (trim_offsets)
        first = start if start < end else start - 1
        while span and first >= span[1]:
            span = next(remaining, None)
        if span is None:
            return
        if span[0] <= first:
            yield number
