"""`export-model` around the exporter, which tests/cluster/test_export_model.py runs (long)."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster.operations import export_model
from tests.unit.shell import Shell

# writes what it was asked for beside a model, and says how it went
PROGRAM = """
import json, sys, pathlib
asked = json.loads(pathlib.Path(sys.argv[1]).read_text())
target = pathlib.Path(asked["target"])
target.mkdir()
(target / "asked.json").write_text(json.dumps(asked))
print("loading")
print(json.dumps({"difference": DIFFERENCE, "agreement": 1.0, "rows": len(asked["rows"]),
                  "accuracy_before": 0.75, "accuracy_after": 0.5}))
"""


@pytest.fixture(autouse=True)
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export_model, "environment", lambda _: Path(sys.executable))
    monkeypatch.setattr(export_model, "EXPORTERS", tmp_path)
    write_model(tmp_path / "model", "text-classification")
    Path("rows.csv").write_text("text,label\na,0\nb,1\n")
    program(1e-6)


def write_model(folder: Path, task: str) -> None:
    folder.mkdir(exist_ok=True)
    about = {"recipe": "r", "task": task, "options": {"text_columns": [], "label_column": "label"}}
    (folder / "ftcluster.json").write_text(json.dumps(about))


def program(difference: float) -> None:
    Path("program.py").write_text(PROGRAM.replace("DIFFERENCE", repr(difference)))


def asked(folder: str) -> Any:
    return json.loads(Path(folder, "asked.json").read_text())


def test_a_model_is_exported_and_compared(shell: Shell) -> None:
    said = shell("export-model openvino model --data rows.csv")
    assert "accuracy: 0.7500 before, 0.5000 after" in said.out
    found = asked("model-openvino")
    assert found["rows"] == [
        {"texts": ["a"], "label": "0"}, {"texts": ["b"], "label": "1"}
    ]  # fmt: skip
    assert (found["int8"], found["format"]) == (False, "openvino")
    assert Path("model-openvino/ftcluster.json").is_file()
    document = shell("export-model onnx model --int8 -o small --json").document
    assert (document["model"], document["rows"]) == (str(Path("small").absolute()), 4)
    assert "exists" in shell("export-model onnx model -o small", 2).err


def test_one_that_computes_something_else_is_not_kept(shell: Shell, tmp_path: Path) -> None:
    program(0.02)
    assert "differ by 2.00%" in shell("export-model onnx model", 1).err
    assert shell("export-model onnx model --int8").out  # which it may with 8 bits
    program(float("nan"))
    shell("export-model openvino model", 1)
    Path("program.py").write_text("raise SystemExit('no such layer')")
    assert "no such layer" in shell("export-model openvino model", 1).err
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"model", "model-onnx"}


@pytest.mark.parametrize(
    ("task", "words", "code", "said"),
    [
        ("text-classification", "gguf model", 2, "llama.cpp"),
        ("text-classification", "tflite model", 2, "openvino, onnx"),
        ("text-classification", "openvino", 2, "a format and a model"),
        ("instruction-tuning", "onnx model", 2, "OpenVINO only"),
        ("fortune-telling", "onnx model", 2, "is not exported"),
        ("text-classification", "onnx model --data missing.csv", 1, "missing.csv"),
    ],
)
def test_what_is_refused(
    shell: Shell, tmp_path: Path, task: str, words: str, code: int, said: str
) -> None:
    write_model(tmp_path / "model", task)
    assert said in shell(f"export-model {words}", code).err
