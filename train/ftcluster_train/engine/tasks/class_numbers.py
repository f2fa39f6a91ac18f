"""The class names and class numbers in a model's configuration."""

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig


def numbered(names: Sequence[str]) -> dict[str, Any]:
    """Return the configuration fields for classes with these names, numbered in this order.

    The problem type is reset, because the pretrained model's type may not fit the new classes.
    """
    numbers = dict(enumerate(names))
    label2id = {name: number for number, name in numbers.items()}
    return {"id2label": numbers, "label2id": label2id, "problem_type": None}


def names_of_model(trained: PretrainedConfig) -> list[str]:
    """Return the class names of a trained model, in the order of their numbers."""
    names = trained.id2label  # in a hand-written file the numbers may begin at 1
    return [str(names.get(n, f"LABEL_{n}")) for n in range(trained.num_labels)]
