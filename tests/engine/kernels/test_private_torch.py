"""The private functions of torch that the kernels use exist and work as expected."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from ftcluster_kernels.private_torch import (
    has_memory,
    has_onednn_linear,
    has_step_hooks,
    is_transformed,
    version_of,
)
from ftcluster_train.health.probe import cpu_flags


def test_the_version_of_a_tensor() -> None:
    tensor = torch.zeros(1)
    before = version_of(tensor)
    tensor.add_(1)
    assert version_of(tensor) > before
    with torch.inference_mode():
        assert version_of(torch.zeros(1)) == 0


def test_whether_a_transform_is_active() -> None:
    found = []
    torch.func.vmap(lambda x: found.append(is_transformed()) or x)(torch.zeros(2))
    assert (found, is_transformed()) == ([True], False)


def test_transforms_without_torch_func() -> None:
    with torch.autograd.forward_ad.dual_level():
        assert is_transformed()
    with FlopCounterMode(display=False):
        assert is_transformed()
    with torch.device("cpu"):  # a mode for functions, which does not see operations
        assert not is_transformed()
    assert not is_transformed()


def test_batched_gradients_have_no_memory() -> None:
    seen = []
    weight = torch.ones(3, requires_grad=True)
    output = weight * 2
    output.register_hook(lambda grad: seen.append(has_memory(grad)))
    torch.autograd.grad(output, weight, torch.eye(3), is_grads_batched=True)
    torch.func.vmap(lambda x: seen.append(has_memory(x)) or x)(torch.zeros(2))
    assert (seen, has_memory(weight)) == ([False, False], True)


def test_hooks_of_an_optimizer() -> None:
    optimizer = torch.optim.Adam([torch.ones(2, requires_grad=True)])
    assert not has_step_hooks(optimizer)
    optimizer.register_step_pre_hook(lambda *_: None)
    assert has_step_hooks(optimizer)


def test_a_linear_layer_by_onednn_is_there_where_it_and_its_instructions_are() -> None:
    """Check when a linear layer uses oneDNN, which emulates bf16 with AVX-512."""
    is_there = torch.backends.mkldnn.is_available()
    assert has_onednn_linear(torch.float32) == is_there
    assert has_onednn_linear(torch.bfloat16) == (is_there and "avx512f" in cpu_flags())
