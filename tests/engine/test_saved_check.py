"""A saved model that differs from the trained model is rejected, whatever the cause."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import parametrizations, prune
from transformers import PreTrainedModel

from ftcluster_common.tasks.chat import InstructionTuning
from ftcluster_train.engine.adapters import add_adapters
from ftcluster_train.engine.saved_check import NotAsTrainedError
from tests.engine.jobs import OPTIONS, check_saved, run_rank
from tests.engine.models import make_model
from tests.engine.runs import classes, make_whole_job, write_data, write_model

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


def change(name: str, how: Callable[[Tensors], Any]) -> Callable[[Path], None]:
    """Change the tensors in a file of a folder."""

    def spoil(folder: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / name).items()}
        how(tensors)
        save_file(tensors, folder / name, metadata={"format": "pt"})

    return spoil


def settings(name: str, **fields: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return spoil


def dropped(tensors: Tensors) -> None:
    del tensors["bert.encoder.layer.1.output.dense.weight"]


def permuted(tensors: Tensors) -> None:
    query, key = (f"bert.encoder.layer.0.attention.self.{name}.weight" for name in ("query", "key"))
    tensors[query], tensors[key] = tensors[key], tensors[query]


def renamed(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace("bert.encoder.layer", "bert.blocks")] = tensors.pop(name)


def rounded(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        tensors[name] = tensor.bfloat16()


def cut(tensors: Tensors) -> None:
    tensors["classifier.weight"] = tensors["classifier.weight"][:2].clone()
    tensors["classifier.bias"] = tensors["classifier.bias"][:2].clone()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (change(WEIGHTS, dropped), r"missing keys: bert\.encoder\.layer\.1\.output\.dense\.weight"),
        (change(WEIGHTS, permuted), r"different values in bert.*key\.weight, bert.*query\.weight"),
        (change(WEIGHTS, renamed), r"missing keys: .* and \d+ more; unexpected keys: bert\.blocks"),
        (change(WEIGHTS, rounded), "different values in"),
        (change(WEIGHTS, cut), "cannot be loaded|mismatched keys: .*classifier"),
        (settings("config.json", dtype="bfloat16"), "different values in"),
        (settings("config.json", hidden_act="relu"), r"its outputs differ by \d+\.\d+%"),
        (settings("config.json", num_hidden_layers=1), r"unexpected keys: bert\.encoder\.layer\.1"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"{}"), "it cannot be loaded: "),
    ],
)
def test_spoiled_files_are_found(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    with pytest.raises(NotAsTrainedError) as caught:
        check_saved(tmp_path, "text-classification", make_model("bert"), spoil=spoil)
    assert re.search(said, caught.value.message)
    assert str(tmp_path / "saved") in caught.value.message
    assert (tmp_path / "saved").exists()


def test_weights_that_become_tied_are_found(tmp_path: Path) -> None:
    def tie(folder: Path) -> None:
        change(WEIGHTS, lambda tensors: tensors.pop("lm_head.weight"))(folder)
        settings("config.json", tie_word_embeddings=True)(folder)

    tied = make_model("gpt2", "causal-lm")
    assert check_saved(tmp_path, "causal-lm", tied)["difference"] < 1e-5
    model = make_model("gpt2", "causal-lm", tie_word_embeddings=False)
    with pytest.raises(NotAsTrainedError, match=r"different values in lm_head\.weight"):
        check_saved(tmp_path, "causal-lm", model, spoil=tie)


def test_another_pooling_is_found(tmp_path: Path) -> None:
    """sentence-transformers reads the pooling from a file beside the model."""
    pooling = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    spoil = settings("1_Pooling/config.json", **pooling)
    model, task = make_model("bert", "sentence-similarity"), "sentence-similarity"
    assert check_saved(tmp_path, task, model)["difference"] < 1e-5
    with pytest.raises(NotAsTrainedError, match=r"pooling='cls'.* it was trained with .*'mean'"):
        check_saved(tmp_path, task, model, spoil=spoil)


def weight_norm(model: PreTrainedModel) -> None:
    parametrizations.weight_norm(model.classifier)


def pruned(model: PreTrainedModel) -> None:
    prune.l1_unstructured(model.classifier, "weight", 0.5)


@pytest.mark.parametrize("changed", [weight_norm, pruned])
def test_torchs_own_changes_of_layers_are_found(
    tmp_path: Path, changed: Callable[[PreTrainedModel], None]
) -> None:
    """A model with such layers saves weights that its class does not load."""
    model = make_model("bert")
    changed(model)
    with pytest.raises(NotAsTrainedError, match=r"unexpected keys: classifier\."):
        check_saved(tmp_path, "text-classification", model)


def swapped(tensors: Tensors) -> None:
    one, other = (f"base_model.model.model.layers.{i}.mlp.up_proj.lora_A.weight" for i in (0, 1))
    tensors[one], tensors[other] = tensors[other], tensors[one]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (change("adapter_model.safetensors", swapped), "different values in .*up_proj.lora_A"),
        (settings("adapter_config.json", lora_alpha=7), "its outputs differ by"),
        (settings("adapter_config.json", target_modules=["up_proj"]), "matches no layer"),
        (settings("adapter_config.json", target_modules=["lm_head", "up_proj"]), "has no adapter"),
    ],
    ids=["swapped", "scale", "fewer", "more"],
)
def test_spoiled_adapters_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], said: str
) -> None:
    tuning = InstructionTuning(lora_r=4, chat_template=False)
    monkeypatch.setitem(OPTIONS, "instruction-tuning", tuning)
    base = write_model(tmp_path / "base", "llama", "instruction-tuning")
    model = make_model("llama", "instruction-tuning")
    model.save_pretrained(base)
    add_adapters(model, tuning)
    for name, parameter in model.named_parameters():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(parameter)
    plain = check_saved(tmp_path, "instruction-tuning", model, base)
    assert plain["difference"] < 1e-5
    with pytest.raises(NotAsTrainedError, match=said):
        check_saved(tmp_path, "instruction-tuning", model, base, spoil)
    if "scale" in said:  # without a base that can compute, as in NF4, the file is read instead
        with pytest.raises(NotAsTrainedError, match="is scaled by"):
            check_saved(tmp_path, "instruction-tuning", model, spoil=spoil)


@pytest.mark.parametrize("first", ["model", "checkpoint-2"])
@pytest.mark.usefixtures("one_world")
def test_a_run_whose_model_is_spoiled_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A run whose first checkpoint is damaged fails too."""
    rows = classes(16, 1)
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:4]})
    model = write_model(tmp_path / "model", "bert", "text-classification")
    job = make_whole_job(
        tmp_path / "runs/one", "text-classification", data, model, max_steps=4,
        save_strategy="steps", save_steps=2,
    )  # fmt: skip
    original = PreTrainedModel.save_pretrained

    def save_pretrained(self: PreTrainedModel, folder: Path, **options: Any) -> None:
        original(self, folder, **options)
        if Path(folder).name.startswith(first):
            change(WEIGHTS, permuted)(Path(folder))

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save_pretrained)
    with pytest.raises(NotAsTrainedError, match="different values in"):
        run_rank(job)
    events = [json.loads(line) for line in (job.run_dir / "events.jsonl").read_text().splitlines()]
    told = {kind: [e for e in events if e["event"] == kind] for kind in ("reloaded", "result")}
    assert not told["result"]
    assert len(told["reloaded"]) == (1 if first == "model" else 0)
    assert not (job.run_dir / "checkpoints/checkpoint-4").exists() or first == "model"
