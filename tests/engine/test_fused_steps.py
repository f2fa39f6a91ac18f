"""Steps of Adam and AdamW equal torch's steps without the fused kernel, for any layout."""

import copy
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest
import torch

from tests.engine import test_fast

enabled, said = test_fast.enabled, test_fast.said  # fixtures

SHAPE = (2, 3, 4, 5)
OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW)


def in_order_of(dims: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that copies a tensor to memory with this order of dimensions."""
    back = [dims.index(i) for i in range(len(dims))]
    return lambda x: x.permute(dims).contiguous().permute(back)


def spaced(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with gaps between its elements."""
    return torch.stack((x, torch.full_like(x, 1e3)), -1)[..., 0]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": torch.clone,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "spaced": spaced,
    "negative": lambda x: torch._neg_view(x.neg()),
    "expanded": lambda x: x.new_ones(()).expand(x.shape),
    **{str(dims): in_order_of(dims) for dims in list(permutations(range(4)))[1::5]},
}


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of parameters in each call of torch's fused kernels."""
    calls: list[int] = []
    for name in ("_fused_adam_", "_fused_adamw_"):
        kernel = getattr(torch, name)
        monkeypatch.setattr(
            torch, name,
            lambda params, *args, kernel=kernel, **named: (
                calls.append(len(params)), kernel(params, *args, **named)
            ),
        )  # fmt: skip
    return calls


def trained(
    kind: Any,
    of_weight: Callable[[torch.Tensor], torch.Tensor],
    of_grad: Callable[[torch.Tensor], torch.Tensor],
    **options: Any,
) -> torch.Tensor:
    start = torch.linspace(-1, 1, 120).view(SHAPE)
    weight = torch.nn.Parameter(of_weight(start))
    optimizer = kind([weight], lr=0.1, **options)
    for step in range(3):
        weight.grad = of_grad((start * (step + 2)).sin())
        optimizer.step()
    return weight.detach().clone()


@pytest.mark.usefixtures("enabled")
def test_layouts(fused_calls: list[int]) -> None:
    for kind in OPTIMIZERS:
        for (weight, of_weight), (grad, of_grad) in product(LAYOUTS.items(), LAYOUTS.items()):
            if weight in ("expanded", "negative"):  # torch rejects these layouts for weights
                continue
            fused_calls.clear()
            wanted = trained(kind, of_weight, of_grad, fused=False)
            assert not fused_calls
            found = trained(kind, of_weight, of_grad)
            torch.testing.assert_close(found, wanted, msg=f"{kind}, {weight}, {grad}")
            alike = weight == grad and weight != "spaced"
            assert fused_calls == [1] * (3 if alike else 0), (weight, grad)


@pytest.mark.usefixtures("enabled")
def test_a_step_that_is_not_fused_is_reported(said: Any) -> None:
    trained(torch.optim.AdamW, LAYOUTS["channels last"], LAYOUTS["contiguous"])
    (line,) = said()
    assert "not fused, because the strides" in line


@pytest.mark.usefixtures("enabled")
def test_a_model_of_images_in_channels_last() -> None:
    """Gradients have the strides that torch's convolutions return, as in torch's tutorial."""
    ends = []
    for fused in (False, None):
        torch.manual_seed(1)
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)]
        model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(144, 2))
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().sum().backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends)


@pytest.mark.usefixtures("enabled")
def test_groups_stay_as_the_script_made_them(fused_calls: list[int]) -> None:
    weights = [torch.nn.Parameter(torch.randn(5)) for _ in range(3)]
    for chosen, calls in (
        ({}, [2, 1]), ({"foreach": False}, []), ({"fused": False}, []), ({"fused": True}, [2, 1]),
    ):  # fmt: skip
        for kind in OPTIMIZERS:
            fused_calls.clear()
            groups = [{"params": weights[:2]}, {"params": weights[2:], "weight_decay": 0.1}]
            optimizer = kind(iter(groups), **chosen)
            before = [group["fused"] for group in optimizer.param_groups]
            for weight in weights:
                weight.grad = torch.ones(5)
            optimizer.step()
            assert fused_calls == calls
            assert [group["fused"] for group in optimizer.param_groups] == before
    for other in (torch.float64, torch.bfloat16):
        weight = torch.nn.Parameter(torch.ones(3, dtype=other))
        weight.grad = torch.ones_like(weight)
        fused_calls.clear()
        torch.optim.AdamW([weight]).step()
        assert not fused_calls


@pytest.mark.usefixtures("enabled")
def test_gradients_that_come_within_the_step(fused_calls: list[int]) -> None:
    """Gradients from a closure or a hook are first seen by the kernel."""
    ends = []
    for fused in (False, None):
        for late in ("closure", "hook"):
            weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
            optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)

            def fill(*_: Any, weight: torch.nn.Parameter = weight) -> None:
                weight.grad = torch.arange(12.0).view(4, 3).T

            if late == "closure":
                optimizer.step(fill)
            else:
                weight.grad = torch.ones(3, 4)
                optimizer.register_step_pre_hook(fill)
                optimizer.step()
            ends.append(weight.detach())
    assert not fused_calls
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0])


@pytest.mark.usefixtures("enabled")
def test_a_step_that_fails_and_a_copy(fused_calls: list[int]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], betas=(0.9, 0.999))
    weight.grad = torch.ones(3)
    optimizer.param_groups[0]["betas"] = (0.9,)
    with pytest.raises(ValueError, match="unpack"):
        optimizer.step()
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    assert optimizer.param_groups[0]["fused"] is None
    other = copy.deepcopy(optimizer)
    other.param_groups[0]["params"][0].grad = torch.ones(3)
    fused_calls.clear()
    other.step()
    assert fused_calls == [1]
    assert other.state_dict()["param_groups"][0]["fused"] is None
