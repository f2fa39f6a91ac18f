"""Fields of messages that templates write or omit; the conversations are OpenAI's."""

from collections.abc import Callable, Sequence
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.messages import Message, read_messages
from ftcluster_train.engine.tasks.chat.marked_texts import Render, marked_texts
from ftcluster_train.engine.tasks.chat.message_fields import WrittenFields

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# like Hermes and Qwen: tools first, calls as JSON, thoughts of every answer
WHOLE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{% if m.name %}{{ m.name }}: {% endif %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls %}<call>{{ c.function | tojson }}</call>{% endfor %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FIRST_CALL = WHOLE.replace("in m.tool_calls", "in (m.tool_calls or [])[:1]")
STRICT = WHOLE.replace(  # like Mistral: ids of nine characters
    "<call>",
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}<call>",
)
LAST_THOUGHTS = WHOLE.replace("if m.reasoning_content", "if loop.last and m.reasoning_content")
CALLS = [
    {"id": "abcdefgh1", "type": "function",
     "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 3}'}},
    {"id": "abcdefgh2", "type": "function",
     "function": {"name": "clock", "arguments": '{"zone": "CET"}'}},
]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What it is like"}}
]  # fmt: skip
CHAT = [
    {"role": "user", "name": "Ann", "content": "Is it raining?"},
    {"role": "assistant", "content": None, "reasoning_content": "I ask.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "abcdefgh1", "content": "rain"},
    {"role": "tool", "tool_call_id": "abcdefgh2", "content": "noon"},
    {"role": "assistant", "content": "It is.", "reasoning_content": "So it rains."},
]


def renders(template: str) -> Callable[[Conversation], Render]:
    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    compiled = jinja2.Environment(autoescape=False).from_string(
        template, {"raise_exception": refuse}
    )

    def of(conversation: Conversation) -> Render:
        def render(messages: Sequence[Message], prompt: bool) -> str:
            try:
                return compiled.render(
                    messages=messages, tools=conversation.tools, add_generation_prompt=prompt
                )
            except jinja2.TemplateError as error:
                raise DataError(str(error)) from error

        return render

    return of


def notices(template: str, messages: Any, tools: Any = None, count: int = 1) -> str:
    fields, render_of = WrittenFields(), renders(template)
    for _ in range(count):
        conversation = Conversation(read_messages("messages", messages), 0, tools)
        fields.add(conversation, marked_texts(conversation, render_of(conversation)), render_of)
    return "\n".join(fields.notices("train"))


def test_a_template_of_role_and_content_leaves_out_all_else() -> None:
    asks, *_, ends = CHAT
    for count in (1, 60):
        [line] = notices(PLAIN, [asks, ends], TOOLS, count).splitlines()
        for field in ("name of user", "reasoning_content of assistant", "tools"):
            assert f"{field} ({count} of {count})" in line
    assert "tool_calls.function.name of assistant (1 of 1)" in notices(PLAIN, CHAT)
    assert "tool_calls.function.arguments of assistant (1 of 1)" in notices(PLAIN, CHAT)


@pytest.mark.parametrize("template", [WHOLE, STRICT])
def test_a_template_that_writes_all_leaves_out_ids_alone(template: str) -> None:
    line = notices(template, CHAT, TOOLS)
    assert "tool_call_id of tool (2 of 2)" in line
    for field in ("name of user", "reasoning_content", "arguments", "tools (", "function.name"):
        assert field not in line


def test_a_second_call_that_is_not_written() -> None:
    line = notices(FIRST_CALL, CHAT, TOOLS)
    assert "tool_calls.function.name of assistant (1 of 1)" in line
    assert "tools (" not in line


def test_thoughts_of_learned_answers_are_written_in_a_text_of_their_own() -> None:
    turns = [*CHAT, {"role": "user", "content": "Thanks."}, {"role": "assistant", "content": "Hi."}]
    assert "reasoning_content" not in notices(LAST_THOUGHTS, turns)
    unlearned = [{**m, "weight": 0} if m["role"] == "assistant" else m for m in turns[:-1]]
    assert "reasoning_content of assistant (2 of 2)" in notices(
        LAST_THOUGHTS, [*unlearned, turns[-1]]
    )


def test_thoughts_in_the_content_of_answers_that_are_not_learned() -> None:
    short = PLAIN.replace("m.content or ''", "m.content.split('</think>')[-1]")
    messages = [
        {"role": "user", "content": "Two and two?"},
        {"role": "assistant", "content": "<think>2+2</think>Four.", "weight": 0},
        {"role": "user", "content": "And two?"},
        {"role": "assistant", "content": "Six."},
    ]
    line = notices(short, messages)
    assert "thoughts in the content of assistant (1 of 1)" in line
    assert "content of assistant (1 of 2)" not in line.replace("the content", "")


@pytest.mark.parametrize("key", ["thoughts", "images", "loss", "annotations"])
@pytest.mark.parametrize("value", ["a text", ["a.png"], False, 0.5, {"a": {"b": ["c"]}}])
def test_fields_that_no_template_knows(key: str, value: Any) -> None:
    messages = [CHAT[0], {"role": "assistant", "content": "Yes.", key: value}]
    assert f"{key}" in notices(WHOLE, messages)


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.text(min_size=1, max_size=8).filter(lambda key: key not in CHAT[1]), NESTED)
def test_any_field_is_reported_once_or_written(key: str, value: Any) -> None:
    messages = [CHAT[0], {"role": "assistant", "content": "Yes.", "weight": 1, key: value}]
    if key in ("from", "train", "weight", "name"):
        return
    empty = not [leaf for leaf in str(value) if leaf not in "[]{}, "] or value in (None, "")
    assert notices(WHOLE, messages).count("NOT WRITTEN") <= 1
    everything = PLAIN.replace("{{ m.content or '' }}", "{{ m.content }}{{ m | tojson }}")
    assert empty or "NOT WRITTEN" not in notices(everything, messages)
