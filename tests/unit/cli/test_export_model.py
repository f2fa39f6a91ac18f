"""`export-model` around the exporter, which tests/cluster/test_export_model.py runs (long)."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster.export import exporter
from ftcluster.operations.models import export_model
from tests.unit.shell import Shell

# writes its request beside a model, and reports a result
PROGRAM = """
import json, os, pathlib, sys
asked = json.loads(pathlib.Path(sys.argv[1]).read_text())
target = pathlib.Path(asked["target"])
consent = pathlib.Path.home() / "intel/openvino_telemetry"  # where openvino_telemetry looks
asked |= {"environment": dict(os.environ), "consent": consent.read_text()}
(target / "asked.json").write_text(json.dumps(asked))
(target / "config.json").write_text("its own")
print("loading")
found = {"difference": DIFFERENCE, "scale": 2.0, "agreement": 1.0, "rows": len(asked["rows"])}
for when, value in (("before", 0.75), ("after", 0.5)) if asked["measure"] else ():
    found[asked["measure"] + "_" + when] = value
pathlib.Path(sys.argv[2]).write_text(json.dumps(ERROR or found))
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export_model, "environment", lambda *_: Path(sys.executable))
    monkeypatch.setattr(exporter, "PROGRAM", tmp_path / "program.py")
    write_model("text-classification")
    Path("rows").mkdir()
    Path("rows/train.csv").write_text("text,label\nz,good\n")
    Path("rows/dev.csv").write_text("text,label\na,bad\nb,good\n")
    program(1e-6)


def write_model(task: str, names: tuple[str, ...] = ("bad", "good"), **config: Any) -> None:
    folder = Path("model")
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    options = {"text_columns": [], "label_column": "label", "text_column": "text"}
    about = {"recipe": "r", "task": task, "options": {**options, "max_length": 64}}
    files: dict[str, Any] = {
        "ftcluster.json": about,
        "config.json": {"id2label": dict(enumerate(names)), **config},
        "tokenizer.json": {},
        "model.safetensors": {},
        "ftcluster.rows": {},
        "modules.json": [
            {"path": path, "type": f"sentence_transformers.models.{kind}"}
            for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"))
        ],
        "1_Pooling/config.json": {"pooling_mode": "mean"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def program(difference: float, error: str = "") -> None:
    text = PROGRAM.replace("DIFFERENCE", f"float('{difference}')")
    Path("program.py").write_text(text.replace("ERROR", repr({"error": error} if error else {})))


def asked(folder: str) -> Any:
    return json.loads(Path(folder, "asked.json").read_text())


def test_a_model_is_exported_and_compared_on_its_validation(shell: Shell) -> None:
    said = shell("export-model openvino model --data rows").out
    assert "2 rows: the largest difference is 1e-06, for outputs up to 2" in said
    assert "accuracy: 0.7500 before the export, 0.5000 after" in said
    found = asked("model-openvino")
    assert found["rows"] == [{"texts": ["a"], "label": 0}, {"texts": ["b"], "label": 1}]
    assert (found["int8"], found["format"], found["max_length"]) == (False, "openvino", 64)
    # the exporter's own files stay; weights and training rows are not copied
    assert Path("model-openvino/config.json").read_text() == "its own"
    assert {path.name for path in Path("model-openvino").iterdir()} == {
        "asked.json", "config.json", "ftcluster.json", "tokenizer.json", "modules.json",
        "1_Pooling",
    }  # fmt: skip
    folder = Path("model-openvino")
    others = [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]
    assert others == [], "a model is the user's alone"
    document = shell("export-model onnx model --int8 -o small --json").document
    assert (document["model"], document["rows"]) == (str(Path("small").absolute()), 4)
    assert "exists" in shell("export-model onnx model -o small", 2).err


def test_the_exporter_asks_no_host_and_tells_nobody(shell: Shell) -> None:
    shell("export-model openvino model -o out")
    environment = asked("out")["environment"]
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment.keys() - {"LC_CTYPE"} <= {"PATH", "HOME", "TMPDIR", *exporter.OFFLINE}
    assert asked("out")["consent"] == "0"
    assert environment["HOME"] != str(Path.home())


def test_one_that_computes_something_else_is_not_kept(shell: Shell, tmp_path: Path) -> None:
    program(0.02)
    error = shell("export-model onnx model", 1).err
    assert "0.02, for outputs up to 2, but at most 0.1% is allowed" in error
    assert shell("export-model onnx model --int8").out  # allowed with 8 bits
    program(float("nan"))
    shell("export-model openvino model --int8", 1)
    program(0, "ValueError: no such layer")
    assert "no such layer" in shell("export-model openvino model", 1).err
    Path("program.py").write_text("raise SystemExit('no torch')")
    assert "no torch" in shell("export-model openvino model", 1).err
    Path("program.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "signal 9" in shell("export-model openvino model", 1).err
    kept = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {"model", "rows", "model-onnx"}


@pytest.mark.parametrize(
    ("names", "config", "labels", "measure", "numbers"),
    [
        (("bad", "good"), {}, "bad good", "accuracy", [0, 1]),
        (("bad", "good"), {}, "1 0", "accuracy", [1, 0]),
        (("1", "2"), {}, "1 2", "accuracy", [0, 1]),
        (("LABEL_0",), {}, "1.5 3", "pearson", [1.5, 3.0]),
        (("a", "b"), {"problem_type": "multi_label_classification"}, "a b", "", [None, None]),
    ],
)
def test_labels_are_read_as_the_model_was_trained(
    shell: Shell, names: tuple[str, ...], config: dict[str, Any], labels: str, measure: str,
    numbers: list[float | None],
) -> None:  # fmt: skip
    write_model("text-classification", names, **config)
    Path("rows.csv").write_text("text,label\n" + "".join(f"x,{one}\n" for one in labels.split()))
    shell("export-model onnx model --data rows.csv -o out")
    found = asked("out")
    assert (found["measure"], [row["label"] for row in found["rows"]]) == (measure, numbers)


def test_a_language_model_is_measured_by_its_loss(shell: Shell) -> None:
    write_model("causal-lm")
    said = shell("export-model openvino model --data rows -o out").out
    assert "loss: 0.7500 before the export, 0.5000 after" in said
    assert [row["texts"] for row in asked("out")["rows"]] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("task", "words", "code", "said"),
    [
        ("text-classification", "gguf model", 2, "llama.cpp"),
        ("text-classification", "tflite model", 2, "openvino or onnx"),
        ("text-classification", "openvino", 2, "name a format"),
        ("instruction-tuning", "onnx model", 2, "only be exported to OpenVINO"),
        ("seq2seq-lm", "onnx model", 2, "cannot be exported"),
        ("token-classification", "onnx model --data rows", 2, "cannot be read here"),
        ("text-classification", "onnx model --data missing.csv", 1, "missing.csv"),
        (
            "text-classification",
            "onnx model --data others.csv",
            1,
            "not classes of the model",
        ),
        ("text-classification", "onnx model --data empty.jsonl", 1, "row 2 has no value in column"),
        ("text-classification", "onnx model --data rows.parquet", 1, "Parquet"),
        ("text-classification", "onnx rows", 1, "contains no ftcluster.json"),
    ],
)
def test_what_is_refused(shell: Shell, task: str, words: str, code: int, said: str) -> None:
    write_model(task)
    Path("others.csv").write_text("text,label\na,bad\nb,ugly\n")
    Path("empty.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    Path("rows.parquet").write_text("")
    assert said in shell(f"export-model {words}", code).err
    assert not list(Path().glob("*model-*"))


def test_a_model_whose_files_may_run_is_not_exported(shell: Shell) -> None:
    Path("model/evil.py").write_text("raise SystemExit")
    refused = shell("export-model onnx model", 1).err
    assert "files that ftcluster's training does not write: evil.py" in refused
    write_model("text-classification", auto_map={"AutoModel": "evil.Model"})
    Path("model/evil.py").unlink()
    assert "config.json sets auto_map" in shell("export-model onnx model", 1).err
    assert not list(Path().glob("*model-*"))


@pytest.mark.parametrize("config", [[], {"id2label": ["bad"]}, {"id2label": {"x": "bad"}}, "{"])
def test_a_model_whose_files_are_damaged_is_refused_by_name(shell: Shell, config: Any) -> None:
    write_model("text-classification")
    text = config if isinstance(config, str) else json.dumps(config)
    Path("model/config.json").write_text(text)
    said = shell("export-model onnx model --data rows", 1).err
    assert "names the columns that the model reads" in said or "config.json is not" in said
    assert not Path("model-onnx").exists()
