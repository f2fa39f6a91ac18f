"""The control node's lists of transformers' arguments, against the transformers of this stack."""

import dataclasses

import transformers

from ftcluster.old_scripts import FLAGS
from ftcluster.refused import REFUSED
from ftcluster.stacks import numbers
from ftcluster.training import OtherNames, Training

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
