"""Exports a model for OpenVINO or ONNX Runtime, and compares what both compute with torch.

    python program.py REQUEST

REQUEST is a JSON file: `format`, `source` and `target` (folders), `task`, `int8`, and `rows`, each
one or two `texts` and a `label` or null. It runs in an environment of its own, which has torch and
the exporter's own versions; the control node's has neither. The result is printed as JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

MOST_TOKENS = 512
BATCH = 8
# the class of transformers, and that of optimum-intel; by task
KINDS = {
    "text-classification": "SequenceClassification",
    "text-ranking": "SequenceClassification",
    "question-answering": "QuestionAnswering",
    "token-classification": "TokenClassification",
    "sentence-similarity": "FeatureExtraction",
    "causal-lm": "CausalLM",
    "instruction-tuning": "CausalLM",
    "preference-tuning": "CausalLM",
}
Outputs = list[Any]  # of each row an array


def main() -> int:
    """Entry point; returns the exit code."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    transformers, torch = import_module("transformers"), import_module("torch")
    transformers.logging.set_verbosity_error()
    kind, source = KINDS[request["task"]], request["source"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    name = "AutoModel" if kind == "FeatureExtraction" else f"AutoModelFor{kind}"
    model = getattr(transformers, name).from_pretrained(source, dtype=torch.float32).eval()
    batches = _batches(tokenizer, [row["texts"] for row in request["rows"]])
    with torch.inference_mode():
        before = _rows(batches, lambda batch: model(**_tensors(torch, batch)))
    run = {"openvino": _openvino, "onnx": _onnx}[request["format"]](request, kind, model, batches)
    tokenizer.save_pretrained(request["target"])
    after = _rows(batches, run)
    print(json.dumps(_compared(before, after, [row["label"] for row in request["rows"]], model)))
    return 0


def _openvino(
    request: dict[str, Any], kind: str, _model: Any, _batches: Sequence[Any]
) -> Callable[[Any], Any]:
    intel, torch = import_module("optimum.intel"), import_module("torch")
    options: dict[str, Any] = {"export": True, "compile": False, "load_in_8bit": False}
    if request["int8"]:
        options["quantization_config"] = intel.OVWeightQuantizationConfig(bits=8)
        del options["load_in_8bit"]
    if kind == "CausalLM":
        options["use_cache"] = True
    of_kind = getattr(intel, f"OVModelFor{kind}")
    of_kind.from_pretrained(request["source"], **options).save_pretrained(request["target"])
    # a CPU with AMX would compute in bf16, which is not what is compared
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    loaded = of_kind.from_pretrained(request["target"], ov_config=exact)
    return lambda batch: loaded(**_tensors(torch, batch))


def _onnx(
    request: dict[str, Any], _kind: str, model: Any, batches: Sequence[Any]
) -> Callable[[Any], Any]:
    torch, runtime = import_module("torch"), import_module("onnxruntime")
    target = Path(request["target"])
    target.mkdir(parents=True, exist_ok=True)
    path, names = target / "model.onnx", list(batches[0])
    inputs = _tensors(torch, batches[0])
    model.config.return_dict = False
    model.set_attn_implementation("eager")
    torch.onnx.export(
        model, (), str(path), kwargs=inputs, input_names=names, output_names=["output"],
        dynamic_shapes={name: {0: "rows", 1: "tokens"} for name in names}, dynamo=True,
        external_data=False,
    )  # fmt: skip
    model.config.return_dict = True
    model.config.save_pretrained(target)
    if request["int8"]:
        quantization = import_module("onnxruntime.quantization")
        whole = path.with_name("model-fp32.onnx")
        path.rename(whole)
        quantization.quantize_dynamic(whole, path, weight_type=quantization.QuantType.QInt8)
        whole.unlink()
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, dict(batch))


def _batches(tokenizer: Any, rows: Sequence[Sequence[str]]) -> list[Any]:
    """The rows as arrays of numpy, a few at once."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    found = []
    for start in range(0, len(rows), BATCH):
        columns = [list(column) for column in zip(*rows[start : start + BATCH], strict=True)]
        found.append(
            tokenizer(
                *columns, padding=True, truncation=True, max_length=MOST_TOKENS,
                return_tensors="np",
            )
        )  # fmt: skip
    return [{name: values.astype("int64") for name, values in one.items()} for one in found]


def _tensors(torch: Any, batch: Any) -> dict[str, Any]:
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def _rows(batches: Sequence[Any], run: Callable[[Any], Any]) -> Outputs:
    """The first output of each row, without padding where it has one of each token."""
    found: Outputs = []
    for batch in batches:
        outputs = run(batch)
        first = outputs[0] if isinstance(outputs, list | tuple) else next(iter(outputs.values()))
        array, mask = import_module("numpy").asarray(first), batch["attention_mask"].astype(bool)
        by_token = array.ndim > 1 and array.shape[1] == mask.shape[1]
        found += [row[mask[n]] if by_token else row for n, row in enumerate(array)]
    return found


def _compared(
    before: Outputs, after: Outputs, labels: Sequence[str | None], model: Any
) -> dict[str, Any]:
    """How far the outputs are from torch's, and of classes how often each is right."""
    numpy = import_module("numpy")
    pairs = list(zip(before, after, strict=True))
    difference = max(
        float(numpy.linalg.norm(one - other) / (numpy.linalg.norm(one) or 1))
        for one, other in pairs
    )
    same = [float((one.argmax(-1) == other.argmax(-1)).mean()) for one, other in pairs]
    found = {"difference": difference, "agreement": sum(same) / len(same), "rows": len(pairs)}
    names = getattr(model.config, "id2label", None) or {}
    if names and len(names) > 1 and all(label is not None for label in labels):
        for name, outputs in (("accuracy_before", before), ("accuracy_after", after)):
            right = [
                names[int(row.argmax())] == label
                for row, label in zip(outputs, labels, strict=True)
                if row.ndim == 1
            ]
            found |= {name: sum(right) / len(right)} if right else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
