"""Conversations in the forms that public files have."""

import json
from typing import Any

import pytest

from ftcluster_common.data.conversations import read_conversation, read_preference
from ftcluster_common.data.data_files import DataError
from ftcluster_common.tasks.chat import (
    InstructionTuning,
    PreferenceTuning,
    conversation_columns,
    preference_columns,
)

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def read(row: dict[str, Any]) -> Any:
    options = InstructionTuning()
    return read_conversation(row, conversation_columns(options, list(row)))


def said(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in read(row).messages]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        (
            {"instruction": "Translate.", "input": "cheese", "output": "fromage"},
            [("user", "Translate.\n\ncheese"), ("assistant", "fromage")],
        ),
        (
            {"instruction": "Say a number.", "input": "", "output": "7", "text": "a copy of all"},
            [("user", "Say a number."), ("assistant", "7")],
        ),
        (
            {"instruction": "Who?", "context": "Ada wrote.", "response": "Ada", "category": "qa"},
            [("user", "Who?\n\nAda wrote."), ("assistant", "Ada")],
        ),
        (
            {"id": 1, "system_prompt": "Be short.", "question": "Why?", "response": "So."},
            [("system", "Be short."), ("user", "Why?"), ("assistant", "So.")],
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
             "system": "s"},
            [("system", "s"), ("user", "a"), ("assistant", "b")],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                       {"type": "text", "text": "b"}]},
                          {"role": "assistant", "content": "c"}]},
            [("user", "ab"), ("assistant", "c")],
        ),
        (
            {"messages": '[{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]'},
            [("user", "a"), ("assistant", "b")],
        ),
    ],
    ids=["alpaca", "alpaca without input", "dolly", "orca", "sharegpt", "parts", "text of JSON"],
)  # fmt: skip
def test_forms_of_public_files(row: dict[str, Any], messages: list[tuple[str, str]]) -> None:
    assert said(row) == messages


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (["instruction", "prompt", "completion"], "instruction"),
        (["history", "input", "output"], "history"),
        (["question", "context", "answer"], "context"),
    ],
)
def test_a_column_that_may_belong_to_the_prompt_is_asked_for(
    columns: list[str], named: str
) -> None:
    with pytest.raises(DataError, match=f"^{named} may belong to the prompt"):
        conversation_columns(InstructionTuning(), columns)
    answer = columns[-1]
    options = InstructionTuning(prompt_column=columns[1], completion_column=answer)
    assert conversation_columns(options, columns)[:3] == ("", columns[1], answer)


def test_messages_that_are_not_to_be_learned() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "wrong", "weight": 0},
        {"role": "assistant", "content": "bad", "train": False},
        {"role": "assistant", "content": "right", "weight": 1.0},
        {"role": "assistant", "content": "plain", "weight": None},
    ]
    assert read({"messages": messages}).target_messages == [3, 4]
    with pytest.raises(DataError, match="that contributes to the loss"):
        read({"messages": messages[:3]})
    with pytest.raises(
        DataError, match=r"weight of message 1 in column messages must be 0 or 1, got 0\.5"
    ):
        read({"messages": [{"role": "assistant", "content": "b", "weight": 0.5}]})


def test_tools_and_arguments_are_objects() -> None:
    """Files may have them as texts, and Parquet adds the keys of other rows."""

    def row(arguments: Any, tools: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        asks = {"role": "user", "content": "Rain?"}
        return {
            "messages": [asks, {"role": "assistant", "content": None, "tool_calls": [call]}],
            "tools": tools,
        }

    expected = read(row({"city": "Rome"}, [TOOL]))
    assert expected.tools == [TOOL]
    assert read(row('{"city": "Rome"}', json.dumps([TOOL]))) == expected
    filled = {**TOOL, "function": {**TOOL["function"], "strict": None}}  # type: ignore[dict-item]
    assert read(row({"city": "Rome", "street": None}, [filled])) == expected
    for arguments, tools in (("{city", [TOOL]), ({}, "weather"), ({}, ["weather"])):
        with pytest.raises(DataError, match=r"must be JSON|must be a list of function"):
            read(row(arguments, tools))


def test_texts_of_a_preference_that_begin_alike() -> None:
    """The rows of hh-rlhf have this form."""
    begin = "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Sing.\n\nAssistant:"
    row = {"chosen": f"{begin} La la.", "rejected": f"{begin} No.\n\nReally."}
    columns = preference_columns(PreferenceTuning(), list(row))
    chosen, rejected = read_preference(row, columns)
    assert chosen.first == rejected.first == 3
    assert [message["content"] for message in chosen.messages] == [
        "Hi.",
        "Hello.",
        "Sing.",
        "La la.",
    ]
    assert rejected.messages[3]["content"] == "No.\n\nReally."
    assert chosen.target_messages == [3]
