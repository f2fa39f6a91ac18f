"""OpenAI's preference format, as a training with DPO reads it."""

from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.data.conversations import read_preference
from ftcluster_common.tasks.chat import PreferenceTuning, preference_columns
from tests.unit.common.importers.exports import notes, problems, read, write


def row_of(**changes: Any) -> dict[str, Any]:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a prime."},
    ]
    return {
        "input": {"messages": turns, "tools": [], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", "content": "Seven."}],
        "non_preferred_output": [{"role": "assistant", "content": "Nine, surely."}],
        **changes,
    }


def test_both_answers_follow_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.jsonl", [row_of()])
    [row] = read(path)
    columns = preference_columns(PreferenceTuning(), list(row))
    chosen, rejected = read_preference(row, columns)
    assert [message["content"] for message in chosen.messages] == [
        "Be brief.", "Name a prime.", "Seven."
    ]  # fmt: skip
    assert chosen.target_messages == rejected.target_messages == [2]
    assert rejected.messages[2]["content"] == "Nine, surely."
    assert "export of OpenAI (preference fine-tuning): 1 of 1 rows are read" in notes(path)[0]


def test_tools_are_kept(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    given = {**row_of()["input"], "tools": [tool]}
    [row] = read(write(tmp_path / "pairs.jsonl", [row_of(input=given)]))
    assert row["tools"] == [tool]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"input": {"messages": []}}, "input must be an object with messages"),
        ({"input": "Name a prime."}, "input must be an object with messages"),
        ({"preferred_output": "Seven."}, "preferred_output is 'Seven.'; it must be a list"),
        ({"non_preferred_output": []}, "non_preferred_output is []; it must be a list"),
    ],
)
def test_a_damaged_row_is_refused_with_file_row_and_reason(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    [message] = problems(write(tmp_path / "pairs.jsonl", [row_of(), row_of(**change), row_of()]))
    assert message.startswith("pairs.jsonl:2: OpenAI (preference fine-tuning): ")
    assert problem in message
