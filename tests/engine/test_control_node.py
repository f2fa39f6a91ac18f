"""The control node's lists of transformers' names agree with transformers."""

import dataclasses
import json
import os
import subprocess
from typing import Any

import pytest
import transformers
from packaging.version import Version
from transformers import AutoConfig

from ftcluster_common.recipe import Training
from tests.programs import CONTROL

THEIRS = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
PRINT_LISTS = """
import dataclasses, json
from ftcluster.planning.model_size import DEFAULTS
from ftcluster.recipe.names import OTHER_NAMES, OTHER_VALUES
from ftcluster.recipe.training_arguments import OtherNames
from ftcluster.recipe.unsupported import UNSUPPORTED
from ftcluster.user_script.compatibility import REMOVED
others = [field.name for field in dataclasses.fields(OtherNames)]
print(json.dumps({
    "arguments": [*others, *UNSUPPORTED, *OTHER_NAMES, *OTHER_VALUES],
    "removed": {name: ".".join(map(str, version)) for name, (version, _) in REMOVED.items()},
    "defaults": DEFAULTS,
}))
"""


@pytest.fixture(scope="module")
def lists() -> Any:
    """Return the lists of the package that is installed for the control node."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [CONTROL / "python", "-c", PRINT_LISTS]
    return json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)


def test_every_argument_is_either_supported_or_unsupported_with_a_reason(lists: Any) -> None:
    ours = {field.name for field in dataclasses.fields(Training)}
    assert len(THEIRS) > 90
    assert not THEIRS - ours - {*lists["arguments"]}


def test_removed_arguments_are_as_in_the_table(lists: Any) -> None:
    version = Version(transformers.__version__)
    removed = lists["removed"]
    assert {name: version < Version(since) for name, since in removed.items()} == {
        name: name in THEIRS for name in removed
    }


def test_defaults_of_configurations(lists: Any) -> None:
    for kind, defaults in lists["defaults"].items():
        config = AutoConfig.for_model(kind)
        assert {name: getattr(config, name) for name in defaults} == defaults
