"""Conversations as texts of which parts are learned. Standard library only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ftcluster_common.conversations import Conversation, Message
from ftcluster_common.data_files import DataError

# the text of messages; whether the beginning of the assistant's next message follows them
Render = Callable[[Sequence[Message], bool], str]
Span = tuple[int, int]  # the first character and the one behind the last


@dataclass(frozen=True)
class LearnedText:
    """A text, and the parts of it that are learned."""

    text: str
    spans: tuple[Span, ...]


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
    spans: list[Span] = []
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
        content = (messages[number].get("content") or "").strip()
        # what the template begins itself may be a part of the message, such as <think>
        if not written[start:].strip() or content not in written[len(before) :]:
            raise DataError(f"the chat template leaves out message {number + 1}, which is learned")
        span = (start, len(written))
        if whole.startswith(written):
            spans.append(span)
        else:
            texts.append(LearnedText(written, (span,)))
    return [*texts, LearnedText(whole, tuple(spans))] if spans else texts


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(other))


def plain_text(conversation: Conversation, end: str) -> LearnedText:
    """A prompt and its completion, one after the other, without a chat template.

    Args:
        end: the end-of-text token.
    """
    prompt, completion = (str(message["content"]) for message in conversation.messages)
    text = prompt + completion + end
    return LearnedText(text, ((len(prompt), len(text)),))


def learned_tokens(offsets: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """The numbers of the tokens that begin in one of the spans, except the first token of all.

    Args:
        offsets: of each token in the text.

    >>> learned_tokens([(0, 0), (0, 2), (2, 5), (5, 6), (6, 9)], [(2, 6)])
    [2, 3]
    """
    numbers = _tokens_in(offsets, spans)
    return [number for number in numbers if number]


def _tokens_in(offsets: Sequence[Span], spans: Sequence[Span]) -> Iterator[int]:
    remaining = iter(spans)
    span = next(remaining, None)
    for number, (start, end) in enumerate(offsets):
        while span and start >= span[1]:
            span = next(remaining, None)
        if span is None:
            return
        if span[0] <= start < end:
            yield number
