"""The classes of a model by their numbers, in its configuration."""

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig


def numbered(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a model's configuration for classes with these names, in their order.

    The problem type of the classes that the model had before may not go with them.
    """
    numbers = dict(enumerate(names))
    label2id = {name: number for number, name in numbers.items()}
    return {"id2label": numbers, "label2id": label2id, "problem_type": None}


def names_of_model(trained: PretrainedConfig) -> list[str]:
    """The names of a trained model's classes, by their numbers."""
    known = trained.id2label  # its numbers may begin at 1 in a file that a person wrote
    return [str(known.get(n, f"LABEL_{n}")) for n in range(trained.num_labels)]
