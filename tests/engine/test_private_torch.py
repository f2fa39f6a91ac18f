"""The private names of torch that the kernels use still exist and do the same."""

import torch

from ftcluster_train.health.probe import cpu_flags
from ftcluster_train.kernels.private_torch import (
    has_onednn_linear,
    is_transformed,
    version_of,
)


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


def test_a_linear_layer_by_onednn_is_there_where_it_and_its_instructions_are() -> None:
    """In bf16 it emulates them with AVX-512."""
    is_there = torch.backends.mkldnn.is_available()
    assert has_onednn_linear(torch.float32) == is_there
    assert has_onednn_linear(torch.bfloat16) == (is_there and "avx512f" in cpu_flags())
