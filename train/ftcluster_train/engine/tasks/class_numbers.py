"""The classes in a model's configuration, by their numbers."""

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig


def numbered(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a model's configuration for classes with these names, in their order.

    The model's previous problem type may not fit the new classes, so it is reset.
    """
    numbers = dict(enumerate(names))
    label2id = {name: number for number, name in numbers.items()}
    return {"id2label": numbers, "label2id": label2id, "problem_type": None}


def names_of_model(trained: PretrainedConfig) -> list[str]:
    """Return the names of a trained model's classes, by their numbers."""
    known = trained.id2label  # in a file that a person wrote, the numbers may begin at 1
    return [str(known.get(n, f"LABEL_{n}")) for n in range(trained.num_labels)]
