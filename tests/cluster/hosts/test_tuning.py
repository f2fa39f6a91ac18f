"""Instruction tuning with adapters, then preference tuning that continues them, on two hosts.

On demand, with a setup: `.venv-dev/bin/pytest -m long tests/cluster/hosts/test_tuning.py`.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import HEAD
from tests.cluster.rows import Row, write_rows

TINY = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64}
EVERY_STEP = (
    "batch_size=8", "precision=fp32", "training.logging_steps=1", "training.warmup_ratio=0",
    "--json",
)  # fmt: skip
RIGHT = ("even", "odd")


def completion(number: int) -> Row:
    return {"prompt": f"Number {number} is ", "completion": RIGHT[number % 2]}


def preference(number: int) -> Row:
    return {"prompt": f"Number {number} is ", "chosen": RIGHT[number % 2], "rejected": "neither"}


def trained(cluster: Cluster, folder: Path, *words: str) -> list[dict[str, Any]]:
    """Train on two hosts, copy the model to a folder, and return the run's events."""
    control = cluster.control
    done = control.run("train", *words, *TWO, *EVERY_STEP)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], result["world_size"]) == ("done", 2)
    fetched = control.run("fetch", result["run"], str(folder))
    assert fetched.returncode == 0, fetched.stderr
    run = Path(result["model"]).parent
    events = control.shell(HEAD, f"cat {run}/events.jsonl").splitlines()
    no_rank_is_left(cluster)
    return [json.loads(line) for line in events]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if event["event"] == "step"]


@pytest.mark.long
def test_preference_tuning_continues_the_adapters_of_instruction_tuning(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = "".join(f"Number {n} is {RIGHT[n % 2]}.\n" for n in range(400))
    (tmp_path / "text.txt").write_text(text)
    base, first, second = (tmp_path / name for name in ("base", "first", "second"))
    trained(
        cluster, base, "gpt2-shakespeare", f"--data={tmp_path / 'text.txt'}",
        f"config_overrides={TINY}", "block_size=32", "vocab_size=300", "ranks_per_host=1",
        "training.max_steps=20",
    )  # fmt: skip
    asked = write_rows(tmp_path / "asked", completion, train=80, validation=16)
    events = trained(
        cluster, first, "sft", f"--data={asked}", f"--model={base}", "chat_template=false",
        "max_length=32", "lora_r=4", "training.learning_rate=1e-2", "training.max_steps=20",
        "training.gradient_accumulation_steps=1",
    )  # fmt: skip
    assert losses(events)[-1] < losses(events)[0]
    settings = json.loads((first / "adapter_config.json").read_text())
    assert settings["r"] == 4
    assert not (first / "model.safetensors").exists()

    compared = write_rows(tmp_path / "compared", preference, train=80, validation=16)
    words = (
        "dpo", f"--data={compared}", f"--model={first}", "chat_template=false", "max_length=32",
        "training.learning_rate=1e-2", "training.max_steps=10",
        "training.gradient_accumulation_steps=1",
    )  # fmt: skip
    refused = cluster.control.run("train", *words, *TWO, "lora_r=8")
    assert refused.returncode != 0
    assert "lora_r is 8, but the adapters in" in refused.stderr
    events = trained(cluster, second, *words)
    # at first the model equals its reference, which is the base model with the adapters
    assert losses(events)[0] == pytest.approx(math.log(2), abs=1e-3)
    assert losses(events)[-1] < 0.9 * losses(events)[0]
    equal = [event["equal"] for event in events if event["event"] == "parameters"]
    assert equal
    assert all(equal)
    continued = json.loads((second / "adapter_config.json").read_text())
    names = ("base_model_name_or_path", "r", "lora_alpha", "target_modules")
    assert [continued[name] for name in names] == [settings[name] for name in names]
    before, after = (
        (folder / "adapter_model.safetensors").read_bytes() for folder in (first, second)
    )
    assert (len(before), before != after) == (len(after), True)

    measured = cluster.control.run(
        "evaluate", "sft", "--model", str(second), f"--data={asked}", "chat_template=false",
        "max_length=32", *TWO, "--json",
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr
    assert math.isfinite(json.loads(measured.stdout)["metrics"]["loss"])
