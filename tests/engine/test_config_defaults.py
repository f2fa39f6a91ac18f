"""What the plan takes for the defaults of transformers' configurations."""

import pytest
from transformers import AutoConfig

from ftcluster.planning.model_size import DEFAULTS


@pytest.mark.parametrize("kind", DEFAULTS)
def test_they_are(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    assert {name: getattr(config, name) for name in DEFAULTS[kind]} == DEFAULTS[kind]
