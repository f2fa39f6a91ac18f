"""A model in NF4 equals a model whose weights have the rounded values."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel

from ftcluster_common.tasks.chat import InstructionTuning
from ftcluster_kernels.nf4 import dense
from ftcluster_train.engine import models
from ftcluster_train.engine.adapters import adapted_layers, add_adapters, linear_layers
from ftcluster_train.engine.models import load_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.drawn import unit
from tests.engine.jobs import make_job, run_rank
from tests.engine.models import VOCABULARY
from tests.engine.test_instruction_tuning import TASK, chats, job_of, write_chat_model

# the values in Dettmers et al. 2023, QLoRA, appendix E
NF4 = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0]
)  # fmt: skip
BLOCK = 64


def loaded(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a saved model, and the same model in NF4."""
    path = write_chat_model(folder / "model")
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    recipe = replace(make_job(folder, TASK).recipe, from_scratch=False)
    return plain, load_model(
        AutoModelForCausalLM, recipe, path, plain.config, dtype=dtype, in_4bit=True
    )


def test_values_are_those_of_qlora(tmp_path: Path) -> None:
    plain, model = loaded(tmp_path, torch.float32)
    assert linear_layers(model).keys() == linear_layers(plain).keys()
    for name, layer in linear_layers(model).items():
        exact = plain.get_submodule(name).weight.detach().view(-1, BLOCK)
        values = dense(layer.weight).view(-1, BLOCK)
        largest, factors = exact.abs().amax(1, True), values.abs().amax(1, True)
        torch.testing.assert_close(factors, largest, rtol=0.05, atol=0)  # the scales are in 8 bits
        nearest = NF4[(exact / largest).unsqueeze(-1).sub(NF4).abs().argmin(-1)]
        torch.testing.assert_close(values, nearest * factors)
        assert layer.weight.nbytes == exact.numel() / 2
    unchanged = {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}
    for name in unchanged:
        assert torch.equal(model.get_parameter(name), plain.get_parameter(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("changes", [
    {}, {"lora_target_modules": ("q_proj", "down_proj")}, {"lora_dropout": 1e-12},
], ids=["all layers", "some layers", "dropout"])  # fmt: skip
def test_loss_and_gradients(tmp_path: Path, dtype: torch.dtype, changes: dict[str, Any]) -> None:
    """Compare with a plain model with these weights, plus the addend of the adapters."""
    plain, model = loaded(tmp_path, dtype)
    options = InstructionTuning(lora_r=4, **changes)
    add_adapters(model, options)
    layers = adapted_layers(model)
    assert len(layers) == (4 if "lora_target_modules" in changes else 14)
    adapters = [p for layer in layers.values() for p in (layer.lora_A, layer.lora_B)]
    for layer in layers.values():
        torch.nn.init.normal_(layer.lora_B, std=0.1)
    tokens = torch.randint(VOCABULARY, (3, 20))
    with (
        KernelMode(context=context_of(model)),
        torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16),
    ):
        loss = model.train()(input_ids=tokens, labels=tokens).loss
    found = torch.autograd.grad(loss, adapters)

    weights = {f"{n}.weight": dense(one.weight).float() for n, one in linear_layers(model).items()}
    for name, layer in layers.items():
        scale = layer.adapter.scale
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + scale * layer.lora_B @ layer.lora_A
    exact = functional_call(plain.float(), weights, kwargs={"input_ids": tokens, "labels": tokens})
    expected = torch.autograd.grad(exact.loss, adapters)
    allowed = 1e-4 if dtype == torch.float32 else 8 * unit(dtype, 1)
    assert loss.item() == pytest.approx(exact.loss.item(), rel=allowed)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= allowed * other.norm()


def test_a_resumed_training_is_the_same_to_the_last_bit(
    tmp_path: Path,
    one_world: None,  # noqa: ARG001 - this process is the only rank
) -> None:
    job = job_of(
        tmp_path, chats(60, 1), options={"lora_r": 4, "load_in_4bit": True}, precision="bf16",
        max_steps=6, learning_rate=1e-2, save_strategy="steps", save_steps=3,
    )  # fmt: skip
    first = run_rank(job)
    start = next(one for one in first if one["event"] == "start")
    plain = AutoModelForCausalLM.from_pretrained(job.recipe.model)
    trained = 4 * sum(sum(one.weight.shape) for one in linear_layers(plain).values())
    assert start["parameters"] == plain.num_parameters() + trained
    shutil.rmtree(job.run_dir / "checkpoints/checkpoint-6")
    (job.run_dir / "events.jsonl").unlink()
    again = run_rank(job)
    assert [one["step"] for one in again if one["event"] == "step"] == [4, 5, 6]
    digests = [
        [one["sha256"] for one in run if one["event"] == "parameters"] for run in (first, again)
    ]
    assert digests[0][-1] == digests[1][-1]


def test_without_bitsandbytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path, chats(30, 1), options={"lora_r": 4, "load_in_4bit": True})
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TrainError, match="load_in_4bit needs the package bitsandbytes") as caught:
        prepare(job)
    assert "ftcluster setup" in caught.value.hint
