"""Trained models exported to OpenVINO and ONNX Runtime by the real exporters in their environments.

The environments stay in the tests' cache; pip needs the package index the first time.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster_train.engine.data.synthetic_pairs import generate
from tests.cluster.conftest import Machine

pytestmark = pytest.mark.long
FILES = {
    "openvino": {"openvino_model.xml", "openvino_model.bin"},
    "onnx": {"model.onnx"},
}


def exported(machine: Machine, kind: str, model: str, target: Path, *options: str) -> Any:
    done = machine.home.run("export-model", kind, model, "-o", str(target), "--json", *options)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in target.iterdir()}
    assert names >= {*FILES[kind], "config.json", "tokenizer.json", "ftcluster.json", "README.md"}
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", ["openvino", "openvino --int8", "onnx", "onnx --int8"])
def test_a_classifier_is_as_good_as_its_training_said(
    machine: Machine, tmp_path: Path, words: str
) -> None:
    kind, *options = words.split()
    trained = json.loads(machine.first_training.stdout)
    rows = tmp_path / "validation.jsonl"
    some = generate(seed=1, count=40, split="validation")  # the same rows as in FEW_PAIRS
    rows.write_text("".join(json.dumps(row) + "\n" for row in some))
    target = tmp_path / "exported"
    found = exported(machine, kind, trained["run"], target, "--data", str(rows), *options)
    assert found["rows"] == len(some)
    # the training measured accuracy in bf16, which may decide one row differently
    assert found["accuracy_before"] == pytest.approx(trained["metrics"]["accuracy"], abs=0.026)
    if not options:
        assert found["difference"] <= 1e-3 * found["scale"]
        assert found["accuracy_after"] == found["accuracy_before"]
    assert found["accuracy_after"] >= found["accuracy_before"] - 0.1


def test_a_decoder_is_exported_with_its_cache(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    rows = generate(seed=1, count=200, split="train")
    text = "".join(f"{row['sentence1']} {row['sentence2']}\n" for row in rows)
    (tmp_path / "texts/train.txt").write_text(text)
    done = machine.home.run(
        "train", "clm", "--model", "config:gpt2", "--data", str(tmp_path / "texts"), "--json",
        f"tokenizer={machine.model}", "config_overrides={n_embd: 32, n_layer: 2, n_head: 4}",
        "block_size=64", "max_steps=4", "from_scratch=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps({"text": row["sentence1"]}) + "\n" for row in rows[:8]))
    run, target = json.loads(done.stdout)["run"], tmp_path / "exported"
    found = exported(machine, "openvino", run, target, "--data", str(few))
    assert found["difference"] <= 1e-3 * found["scale"]
    assert found["loss_after"] == pytest.approx(found["loss_before"], rel=1e-4)
    assert (target / "openvino_tokenizer.xml").is_file()  # OpenVINO GenAI needs this file
