"""A trained model in OpenVINO and ONNX Runtime, by the real exporter in its own environment."""

import json
from pathlib import Path

import pytest

from tests.cluster.conftest import Machine

pytestmark = pytest.mark.long


@pytest.mark.parametrize("words", ["openvino", "openvino --int8", "onnx", "onnx --int8"])
def test_the_exported_model_computes_what_torch_does(
    machine: Machine, tmp_path: Path, words: str
) -> None:
    kind, *options = words.split()
    target = tmp_path / "exported"
    trained = json.loads(machine.first_training.stdout)["run"]
    command = ("export-model", kind, trained, "-o", str(target), "--json", *options)
    done = machine.home.run(*command)
    found = json.loads(done.stdout)
    assert found["difference"] < (0.1 if options else 1e-3)
    assert found["agreement"] == 1.0 or options
    assert list(target.glob("*.xml" if kind == "openvino" else "*.onnx"))
    assert (target / "tokenizer.json").is_file()
