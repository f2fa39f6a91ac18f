"""The parts of a conversation that contribute to the loss, with several kinds of templates."""

from collections.abc import Sequence

import pytest

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.messages import Message
from ftcluster_train.engine.tasks.chat.marked_texts import (
    MarkedText,
    Render,
    marked_texts,
    plain_text,
    target_tokens,
    with_known_roles,
)

SYSTEM: Message = {"role": "system", "content": "Be brief."}
ASKS: Message = {"role": "user", "content": "Two and two?"}
ANSWERS: Message = {"role": "assistant", "content": "Four."}
THINKS: Message = {"role": "assistant", "content": "<think>2+2</think>Four."}
THANKS: Message = {"role": "user", "content": "Thanks."}
ENDS: Message = {"role": "assistant", "content": "Bye."}


def chatml(messages: Sequence[Message], prompt: bool) -> str:
    """Return a conversation in the format of Qwen."""
    written = [f"<|{m['role']}|>{m['content']}<|end|>\n" for m in messages]
    return "".join(written) + ("<|assistant|>" if prompt else "")


def thinking(messages: Sequence[Message], prompt: bool) -> str:
    """Keep the last answer's thoughts, and omit the thoughts of earlier answers."""
    last = len(messages) - 1
    short = [
        {**m, "content": m["content"].rpartition("</think>")[2] if i < last else m["content"]}
        for i, m in enumerate(messages)
    ]
    return chatml(short, prompt) + ("<think>" if prompt else "")


def learned(texts: Sequence[MarkedText]) -> list[list[str]]:
    return [[text.text[start:end] for start, end in text.spans] for text in texts]


def test_every_answer_of_a_conversation_is_learned() -> None:
    conversation = Conversation([SYSTEM, ASKS, ANSWERS, THANKS, ENDS])
    [text] = marked_texts(conversation, chatml)
    assert text.text == chatml(conversation.messages, False)
    assert learned([text]) == [["Four.<|end|>\n", "Bye.<|end|>\n"]]
    # in a prompt with answers, only the completion is a target
    prompted = Conversation([ASKS, ANSWERS, THANKS, ENDS], first=3)
    assert learned(marked_texts(prompted, chatml)) == [["Bye.<|end|>\n"]]
    # a function call
    calls: Message = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    found = marked_texts(Conversation([ASKS, calls, ANSWERS]), chatml)
    assert learned(found) == [["None<|end|>\n", "Four.<|end|>\n"]]
    # thoughts that the template writes with other spaces
    found = marked_texts(Conversation([ASKS, THINKS]), writes_thoughts)
    assert learned(found) == [["<think>\n2+2\n</think>Four.<|end|>\n"]]


def test_an_answer_that_changes_once_others_follow_is_a_text_of_its_own() -> None:
    texts = marked_texts(Conversation([ASKS, THINKS, THANKS, ENDS]), thinking)
    assert learned(texts) == [["2+2</think>Four.<|end|>\n"], ["Bye.<|end|>\n"]]
    assert texts[0].text.startswith("<|user|>Two and two?")
    assert "<think>" not in texts[1].text


def writes_thoughts(messages: Sequence[Message], prompt: bool) -> str:
    """Write thoughts again with other spaces around them."""
    written = [
        {**m, "content": m["content"].replace("<think>", "<think>\n").replace("</", "\n</")}
        for m in messages
    ]
    return chatml(written, prompt)


def knows(*roles: str) -> Render:
    def render(messages: Sequence[Message], prompt: bool) -> str:
        return chatml([m for m in messages if m["role"] in roles], prompt)

    return render


def test_every_message_is_written_or_refused() -> None:
    """Templates silently omit messages of roles that they do not know."""
    rule: Message = {"role": "developer", "content": "Be brief."}
    conversation = Conversation([rule, ASKS, ANSWERS])
    knows_all = knows("developer", "user", "assistant")
    assert with_known_roles(conversation, knows_all) is conversation
    renamed = with_known_roles(conversation, knows("system", "user", "assistant"))
    assert [message["role"] for message in renamed.messages] == ["system", "user", "assistant"]
    with pytest.raises(DataError, match="omits message 1, of the role system"):
        with_known_roles(conversation, knows("user", "assistant"))
    twice = Conversation([ASKS, ANSWERS, {**ASKS, "role": "guest"}, ANSWERS])
    with pytest.raises(DataError, match="omits message"):
        with_known_roles(twice, knows("user", "assistant"))


def test_a_message_is_missed_though_another_has_its_words() -> None:
    """The answer may repeat a tool's result, for example."""
    result = {"role": "function", "content": "4"}
    told = Conversation([ASKS, result, {"role": "assistant", "content": "It is 4."}])
    known = with_known_roles(told, knows("user", "tool", "assistant"))
    assert known.messages[1]["role"] == "tool"
    with pytest.raises(DataError, match="omits message 2, of the role tool"):
        with_known_roles(told, knows("user", "assistant"))


def drops(messages: Sequence[Message], prompt: bool) -> str:
    return chatml([m for m in messages if m["role"] == "user"], prompt)


def shortens(messages: Sequence[Message], prompt: bool) -> str:
    return chatml([{**m, "content": m["content"][:3]} for m in messages], prompt)


def counts(messages: Sequence[Message], prompt: bool) -> str:
    return f"{len(messages)} messages\n" + chatml(messages, prompt)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (drops, "omits message 2, which is a training target"),
        (shortens, "omits message 2, which is a training target"),
        (counts, "beginning of the message cannot be determined"),
    ],
)
def test_templates_that_are_refused(template: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        marked_texts(Conversation([ASKS, ANSWERS]), template)  # type: ignore[arg-type]


def test_without_a_template() -> None:
    text = plain_text(Conversation([ASKS, ANSWERS], 1), "</s>")
    assert text.text == "Two and two?Four.</s>"
    assert learned([text]) == [["Four.</s>"]]


def test_a_token_is_learned_where_it_begins_in_an_answer() -> None:
    offsets = [(0, 0), (0, 3), (3, 6), (6, 8), (8, 9), (9, 12)]
    assert target_tokens(offsets, [(4, 8), (9, 12)]) == [3, 5]
    assert target_tokens(offsets[1:], [(0, 6)]) == [1]  # no token predicts the first token
    assert target_tokens(offsets, []) == []
