"""The model of a training step: fitted to points that follow it, and to other points."""

from dataclasses import replace
from itertools import product

import pytest

from ftcluster.benchmark.scaling_model import Mode, Step, fit, prediction_errors

COMPUTE, LATENCY, PER_BYTE, HIDDEN = 2.0, 0.004, 1 / 120e6, -0.5
SIZES = {"fp32": 500e6, "bf16": 250e6}
FP32, BF16 = (Mode("gloo", dtype, "whole") for dtype in SIZES)
EIGHTH = Mode("gloo", "fp32", "whole", every=8)


def step(mode: Mode, hosts: int, noise: float = 1.0) -> Step:
    """Return a step according to the formula."""
    size = SIZES[mode.dtype] / mode.every if hosts > 1 else 0.0
    often = HIDDEN / mode.every if hosts > 1 else 0.0
    latency = LATENCY / mode.every * (hosts - 1)
    moved = PER_BYTE * size * (hosts - 1) / hosts
    seconds = noise * (COMPUTE + often + latency + moved)
    return Step(mode, hosts, seconds, size, latency=latency)


def test_it_predicts_what_follows_the_formula() -> None:
    steps = [step(mode, hosts) for mode, hosts in product((FP32, BF16), (1, 2, 4))]
    model = fit([*steps, step(EIGHTH, 4)])
    assert model
    assert model.latency == pytest.approx({FP32: LATENCY, BF16: LATENCY, EIGHTH: LATENCY / 8})
    assert model.per_byte["gloo"] == pytest.approx(PER_BYTE)
    assert model.fixed["gloo", "whole"] == pytest.approx(HIDDEN)
    for mode, hosts in product((FP32, BF16, EIGHTH), (1, 3, 8, 256)):
        assert model.seconds(mode, hosts) == pytest.approx(step(mode, hosts).seconds)


def test_a_step_is_never_shorter_than_its_computing() -> None:
    model = fit([step(FP32, 1), step(FP32, 2), Step(BF16, 2, COMPUTE, 1e6)])
    assert model
    assert model.seconds(BF16, 2) >= COMPUTE
    # the bandwidth is not negative although the larger exchanges were faster
    steps = [step(FP32, 1), Step(FP32, 2, 2.4, 5e8), Step(FP32, 4, 2.2, 5e8)]
    model = fit(steps)
    assert model
    assert model.per_byte["gloo"] >= 0
    # without several hosts there is no model
    assert fit([step(FP32, 1)]) is None
    assert fit([step(FP32, 2)]) is None


def test_few_points_give_few_parameters() -> None:
    one = fit([step(FP32, 1), step(FP32, 2)])
    assert one
    assert one.fixed == {("gloo", "whole"): 0}
    assert one.seconds(FP32, 2) == pytest.approx(step(FP32, 2).seconds)
    two = fit([step(FP32, 1), step(FP32, 2), step(FP32, 4)])
    assert two
    assert two.seconds(FP32, 4) == pytest.approx(step(FP32, 4).seconds)
    assert two.fixed["gloo", "whole"] < 0


def test_rows_that_grow_with_the_hosts_end_at_all_rows() -> None:
    growing = [
        replace(step(FP32, hosts), exchanged=1e8 + 1e7 * hosts, most=1.6e8) for hosts in (2, 4)
    ]
    model = fit([step(FP32, 1), *growing])
    assert model
    size = model.exchanged[FP32]
    assert [size(hosts) for hosts in (2, 5, 8)] == pytest.approx([1.2e8, 1.5e8, 1.6e8])


def test_each_point_is_predicted_from_the_others() -> None:
    steps = [step(mode, hosts) for mode, hosts in product((FP32, BF16), (1, 2, 4))]
    exact = prediction_errors(steps)
    assert [(one.mode, one.hosts) for one, _ in exact] == [
        (FP32, 2), (FP32, 4), (BF16, 2), (BF16, 4)
    ]  # fmt: skip
    # three points remain for two parameters
    assert [error for _, error in exact] == pytest.approx([0, 0, 0, 0], abs=1e-9)
    steps[2] = step(FP32, 4, noise=1.1)
    errors = {(one.mode, one.hosts): error for one, error in prediction_errors(steps)}
    assert errors[FP32, 4] == pytest.approx(1 / 1.1 - 1)
    assert max(map(abs, errors.values())) > 0.05
