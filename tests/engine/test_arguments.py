"""The control node's lists of transformers' arguments, against the transformers of this stack."""

import dataclasses

import transformers

from ftcluster.recipe.training_arguments import OtherNames
from ftcluster.recipe.unsupported import REFUSED
from ftcluster.stacks.catalog import numbers
from ftcluster.user_script.compatibility import FLAGS
from ftcluster_common.recipe import Training

THEIRS = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}


def test_every_argument_is_either_honoured_or_refused() -> None:
    honoured = {field.name for kind in (Training, OtherNames) for field in dataclasses.fields(kind)}
    assert len(THEIRS) > 90
    assert not THEIRS - honoured - REFUSED.keys()


def test_old_flags_are_taken_and_refused_as_the_table_has_it() -> None:
    version = numbers(transformers.__version__)
    assert {name: flag.taken_by(version) for name, flag in FLAGS.items()} == {
        name: name in THEIRS for name in FLAGS
    }
