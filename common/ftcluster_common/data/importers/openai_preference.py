"""Reads OpenAI's files for preference fine-tuning: a prompt with a preferred and another answer."""

from collections.abc import Mapping
from typing import Any

from ftcluster_common.data.importers.record import Annotated, Importer
from ftcluster_common.data.rows import DataError, Row, short

# ftcluster's column for each column of the file
ANSWERS = {"preferred_output": "chosen", "non_preferred_output": "rejected"}


def _matches(row: Row) -> bool:
    return isinstance(row.get("input"), Mapping) and ANSWERS.keys() <= row.keys()


def _read(row: Row) -> Annotated:
    given = row.get("input")
    messages = given.get("messages") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(messages, list) or not messages:
        raise DataError(f"input must be an object with messages, got {short(given)}")
    answers: dict[str, Any] = {}
    for name, column in ANSWERS.items():
        if not isinstance(row.get(name), list) or not row[name]:
            has = f"{name} is {short(row[name])}" if name in row else f"no {name}"
            raise DataError(f"{has}; it must be a list of messages")
        answers[column] = row[name]
    tools = {"tools": given["tools"]} if given.get("tools") else {}
    return Annotated({"prompt": messages, **answers, **tools}, ({},))


OPENAI_PREFERENCE = Importer("OpenAI (preference fine-tuning)", _matches, _read)
