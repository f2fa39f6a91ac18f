"""The kernels used in a step are named, and no class is reported as lacking a used kernel."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import ftcluster_kernels as kernels
from ftcluster_train.comm.world import World
from tests.engine.jobs import make_job, make_samples, run
from tests.engine.models import VOCABULARY

FUNCTIONS = {
    value
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}.")
    if ".lib" not in module.name  # compiled libraries, which Python cannot import
    for value in vars(importlib.import_module(module.name)).values()
    if inspect.isclass(value) and issubclass(value, torch.autograd.Function)
}
NAMES = {"activations", "attention", "cross_entropy", "dropout", "low_rank", "norm", "rotary"}


@pytest.mark.parametrize(
    "function", sorted(FUNCTIONS, key=repr), ids=lambda function: function.__name__
)
def test_each_function_names_its_kernel(function: type) -> None:
    # "": the function computes the same as torch
    assert vars(function)["kernel"] in {"", *NAMES}
    # a node of the graph leads back to the function, for which torch has no public name
    assert function._backward_cls._forward_cls is function  # type: ignore[attr-defined]


def test_each_kernel_has_a_function() -> None:
    assert {vars(function)["kernel"] for function in FUNCTIONS} - {""} == NAMES


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.parametrize("size", [16, 32, 48, 64, 96, 128])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_of_heads_of_any_size(
    tmp_path: Path, world: World, size: int, precision: str
) -> None:
    sizes = {"hidden_size": 2 * size, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=VOCABULARY, intermediate_size=32, num_labels=3, **sizes)
    job = make_job(tmp_path, "text-classification", precision, max_steps=1)
    samples = make_samples("text-classification", 8)
    done = run(job, BertForSequenceClassification(config), samples, world)
    assert "attention" in done.of("kernels")[0]["used"]
    assert not done.notices


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.parametrize("size", [32, 64, 96])
def test_attention_of_heads_that_share_keys(tmp_path: Path, world: World, size: int) -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, head_dim=size, num_attention_heads=4,
        num_key_value_heads=2, num_hidden_layers=1, intermediate_size=64,
    )  # fmt: skip
    job = make_job(tmp_path, "causal-lm", "bf16", max_steps=1)
    done = run(job, LlamaForCausalLM(config), make_samples("causal-lm", 8), world)
    used = done.of("kernels")[0]["used"]
    assert {"activations", "attention", "norm", "rotary"} <= {*used}
    assert not done.notices
