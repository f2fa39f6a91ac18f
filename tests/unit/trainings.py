"""The section `training` of a recipe as a host has it, for tests."""

from dataclasses import asdict
from typing import Any

from ftcluster.recipe.training_arguments import Training as OfRecipe
from ftcluster_train.job import Training


def training(**changes: Any) -> Training:
    """All fields have a recipe's defaults, but for `changes`."""
    return Training(**{**asdict(OfRecipe()), **changes})
