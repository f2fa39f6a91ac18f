"""The order of a training's samples must never change, because a run resumes with it."""

import json
from pathlib import Path

from tests.unit.engine.data.sampler_cases import digest, samplers

RECORDED = Path(__file__).with_name("sampler_orders.json")


def test_each_recorded_training_has_the_same_samples_in_the_same_order() -> None:
    assert {name: digest(sampler) for name, sampler in samplers()} == json.loads(
        RECORDED.read_text()
    )
