"""Data and models that do not fit a task are refused before the first step."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine import rank
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.errors import TrainError
from tests.engine.jobs import run_rank
from tests.engine.models import make_tokenizer
from tests.engine.runs import classes, make_whole_job, questions, triplets, write_data, write_model

KINDS = {"bert": "text-classification", "gpt2": "causal-lm"}  # tasks by kind of model


@pytest.fixture(autouse=True)
def one_world(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "join_world", lambda: world)
    monkeypatch.setattr(rank, "leave_world", lambda: None)


def refusal(job: Job, by_rank: bool = False) -> TrainError:
    """Return the error of a run, before or after the start of its ranks."""
    if not by_rank:
        with pytest.raises(TrainError) as error:
            prepare(job)
        return error.value
    write_inputs(job.run_dir, prepare(job))
    with pytest.raises(TrainError) as error:
        rank.run(job)
    assert '"step"' not in (job.run_dir / "events.jsonl").read_text()
    return error.value


def texts(folder: Path, count: int = 40) -> str:
    return write_data(folder / "data", {"train": classes(count, 1), "validation": classes(9, 2)})


def job_of(
    folder: Path, task: str, kind: str = "bert", data: str = "", model: str = "", **changes: Any
) -> Job:
    """Return a job on texts with a model of this kind, unless other data or models are named."""
    model = model or write_model(folder / "model", kind, KINDS[kind])
    return make_whole_job(folder / "run", task, data or texts(folder), model, **changes)


def test_an_encoder_cannot_be_a_causal_model(tmp_path: Path) -> None:
    job = job_of(tmp_path, "causal-lm")
    error = refusal(job, by_rank=True)
    assert "reads text in both directions" in error.message
    assert "config_overrides.is_decoder=true" in error.hint
    decoder = replace(job.recipe, config_overrides={"is_decoder": True})
    rank.run(replace(job, recipe=decoder))  # following the hint fixes the error


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "gpt2", "causal-lm")
    tiny = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 50}
    changes = {"tokenizer": model, "config_overrides": tiny}
    job = job_of(tmp_path, "causal-lm", model="config:gpt2", recipe=changes)
    assert "belongs to another model" in refusal(job).message


def test_adapters_without_their_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/adapter_config.json").write_text("{}")
    job = job_of(tmp_path, "text-ranking", model=str(tmp_path / "model"))
    error = refusal(job)
    assert "adapters, but not their base model" in error.message
    assert "merge_and_unload" in error.hint


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "does not name the base model of the adapters"),
        ({"base_model_name_or_path": "/nowhere"}, "/nowhere, is no folder on "),
        ({"use_qalora": True}, "adapter_config.json has use_qalora=True"),
        ({"use_dora": True, "target_modules": ["query"]}, "has an adapter with use_dora=False"),
        ({"r": 0}, "needs the numbers r and lora_alpha"),
        ({"target_modules": [5]}, "has no list target_modules"),
        ({"target_modules": ["query"]}, "has the weights classifier.bias"),
        ({"target_modules": ["classifier"]}, "layer classifier has another size"),
    ],
)
def test_adapters_that_cannot_be_evaluated(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "adapters"
    folder.mkdir()
    if fields:
        base = write_model(tmp_path / "base", "bert", "text-ranking")
        plain = {"base_model_name_or_path": base, "r": 2, "lora_alpha": 4, "target_modules": []}
        fields = {**plain, **fields}
    layers = [f"bert.encoder.layer.{n}.attention.self.query" for n in range(2)]
    if fields.get("target_modules") == ["classifier"]:
        layers = ["classifier"]
    sizes = {"A": (2, 32), "B": (32, 2)}
    tensors = {
        f"base_model.model.{layer}.lora_{part}.weight": torch.zeros(size)
        for layer in layers
        for part, size in sizes.items()
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "adapter_model.safetensors")
    data = write_data(tmp_path / "pairs", {"validation": triplets(9, 1)})
    job = replace(job_of(tmp_path, "text-ranking", data=data, model=str(folder)), purpose=EVALUATE)
    with pytest.raises(TrainError) as error:
        run_rank(job)
    assert said in error.value.message


def test_texts_that_fill_no_block(tmp_path: Path) -> None:
    job = job_of(tmp_path, "causal-lm", "gpt2", data=texts(tmp_path, 1), options={"block_size": 40})
    assert "fewer than one block of 40" in refusal(job).message


def test_fields_that_a_configuration_has_not(tmp_path: Path) -> None:
    wrong = {"config_overrides": {"n_layers": 2}}
    error = refusal(job_of(tmp_path, "causal-lm", "gpt2", recipe=wrong))
    assert "config_overrides.n_layers is not a field of the configuration of a gpt2 model" in (
        error.message
    )
    assert "did you mean n_layer?" in error.hint


def test_labels_that_training_has_not(tmp_path: Path) -> None:
    wrong = [*classes(8, 2), {"text": "w5", "label": 7}]
    data = write_data(tmp_path / "data", {"train": classes(40, 1), "validation": wrong})
    error = refusal(job_of(tmp_path, "text-classification", data=data))
    assert error.message == "validation has the label 7, and the training data has 0, 1, 2"


def test_a_model_name_that_the_hub_does_not_give(tmp_path: Path) -> None:
    job = job_of(tmp_path, "causal-lm", model="no-such/model")
    assert "model 'no-such/model' is neither a local folder nor available" in refusal(job).message


def test_a_data_name_that_the_hub_does_not_give(tmp_path: Path) -> None:
    job = job_of(tmp_path, "text-classification", data="no-such/data")
    assert "data 'no-such/data' cannot be loaded" in refusal(job).message


def test_weights_that_are_damaged(tmp_path: Path) -> None:
    job = job_of(tmp_path, "text-classification")
    (tmp_path / "model/model.safetensors").write_bytes(b"not weights")
    assert f"{tmp_path / 'model'} cannot be loaded" in refusal(job, by_rank=True).message


def test_a_disk_without_space_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    error = refusal(job_of(tmp_path, "text-classification"), by_rank=True)
    assert "free, but saving the model needs" in error.message
    assert "free some space" in error.hint


def test_questions_that_all_have_no_answer(tmp_path: Path) -> None:
    rows = [row for row in questions(20, 1) if not row["answers"]["text"]]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    error = refusal(job_of(tmp_path, "question-answering", data=data))
    assert "train has no questions, but 5 questions without an answer" in error.message
    assert "version_2_with_negative=true" in error.message + error.hint


def test_a_tokenizer_that_does_not_tell_places(tmp_path: Path) -> None:
    job = make_whole_job(tmp_path / "run", "question-answering", "data", "model")
    assert make_task(job.recipe, make_tokenizer())
    with pytest.raises(TrainError) as error:
        make_task(job.recipe, SimpleNamespace(is_fast=False))
    assert "does not report the characters of a token" in error.value.message
