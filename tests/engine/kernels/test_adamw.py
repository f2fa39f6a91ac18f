"""The C loop takes the same steps as torch's AdamW; test_optimizer_step.py tests its precision."""

import copy

import pytest
import torch

from ftcluster_common.recipe import Training
from ftcluster_kernels import simd
from ftcluster_train.engine.optim.flat_step import AdamW

TRAINING = Training(learning_rate=1e-2)
STEPS = 4


def take_steps(count: int, scale: float | None) -> tuple[torch.Tensor, torch.Tensor, AdamW]:
    """Return weights, their bf16 copy and the optimizer after STEPS steps."""
    torch.manual_seed(0)
    weights, rounded = torch.randn(count), torch.empty(count, dtype=torch.bfloat16)
    group = {"params": [weights], "weight_decay": 0.1}
    adamw = AdamW([group], TRAINING, {weights: rounded})
    for step in range(STEPS):
        adamw.param_groups[0]["lr"] /= 1 + step
        weights.grad = torch.rand(count) * torch.logspace(-12, 3, count)  # sums do not cancel
        before = weights.grad.clone()
        adamw.grad_scale = None if scale is None else torch.tensor(scale)
        adamw.step()
        if simd.is_available():
            assert torch.equal(weights.grad, before)
    return weights, rounded, adamw


@pytest.mark.parametrize("scale", [None, 7.3])
@pytest.mark.parametrize("count", [1, 1000, 40_001])
def test_steps(count: int, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, rounded, adamw = take_steps(count, scale)
    assert torch.equal(rounded, weights.bfloat16())
    monkeypatch.setattr(simd, "is_available", lambda: False)
    of_torch, also_rounded, other = take_steps(count, scale)
    assert torch.equal(also_rounded, of_torch.bfloat16())
    torch.testing.assert_close(weights, of_torch, rtol=1e-6, atol=1e-7)
    state, expected = adamw.state[weights], other.state[of_torch]
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(state[name], values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rows_without_a_gradient(decay: float) -> None:
    """Rows get gradients in some steps only; one never does, and one only has a state."""
    torch.manual_seed(0)
    ours = torch.randn(7, 45)
    theirs = ours.clone()
    rounded, before = ours.bfloat16(), ours[5].clone()
    adamw = AdamW([{"params": [ours], "weight_decay": decay}], TRAINING, {ours: rounded})
    other = torch.optim.AdamW([theirs], lr=TRAINING.learning_rate, eps=1e-8, weight_decay=decay)
    for step, rows in enumerate(([0, 1], [1, 2], [0], [6], [])):
        ours.grad = torch.zeros(7, 45)
        ours.grad[rows] = torch.randn(len(rows), 45) * (1 - step % 2)  # 0 in every second step
        ours.grad[rows, 3] = -0.0
        theirs.grad = ours.grad.clone()
        adamw.step()
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        assert torch.equal(rounded, ours.bfloat16())
    assert torch.equal(ours[5], before) == (decay == 0)


def test_a_state_of_torch_is_continued() -> None:
    weights, _, adamw = take_steps(100, None)
    ours, theirs = weights.clone(), weights.clone()
    pair = [AdamW([{"params": [ours]}], TRAINING), torch.optim.AdamW([theirs], fused=True)]
    for optimizer, one in zip(pair, (ours, theirs), strict=True):
        optimizer.load_state_dict(copy.deepcopy(adamw.state_dict()))
        one.grad = torch.ones(100)
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
