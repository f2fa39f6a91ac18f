"""The control node's lists of transformers' arguments, against the transformers of this stack."""

import dataclasses

import transformers

from ftcluster.recipe.names import OTHER_NAMES, OTHER_VALUES
from ftcluster.recipe.training_arguments import OtherNames
from ftcluster.recipe.unsupported import UNSUPPORTED
from ftcluster.stacks.catalog import numbers
from ftcluster.user_script.compatibility import REMOVED
from ftcluster_common.recipe import Training

THEIRS = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}


def test_every_argument_is_either_supported_or_unsupported_with_a_reason() -> None:
    ours = {field.name for kind in (Training, OtherNames) for field in dataclasses.fields(kind)}
    assert len(THEIRS) > 90
    assert not THEIRS - ours - UNSUPPORTED.keys() - OTHER_NAMES.keys() - OTHER_VALUES.keys()


def test_removed_arguments_are_as_in_the_table() -> None:
    version = numbers(transformers.__version__)
    assert {name: version < removed for name, (removed, _) in REMOVED.items()} == {
        name: name in THEIRS for name in REMOVED
    }
