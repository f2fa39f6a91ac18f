"""A program that exports a model for OpenVINO or ONNX Runtime and compares it with torch.

    python program.py REQUEST RESULT

REQUEST is a JSON file with `format`, `source` and `target` (folders), `kind` (end of the model's
class name), `int8`, `max_length`, `measure` (accuracy, pearson, loss or "") and `rows`. A row has
one or two `texts` and a `label` (a number or null). RESULT is a JSON file; it contains `error` if
the model cannot be exported. The environment of this program contains torch.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

BATCH = 8
SHOWN = 400
MOST_IN_ONE_FILE = 1_500_000_000  # bytes; protobuf's limit is 2 GB
DECODER = "CausalLM"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OUTPUTS = {
    "QuestionAnswering": ("start_logits", "end_logits"),
    "FeatureExtraction": ("last_hidden_state",),
}
LOGITS = ("logits",)
# without this argument, transformers may ask a question on a terminal
NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
Arrays = Mapping[str, Any]  # numpy arrays by the name of an input or output
RunProgram = Callable[[Arrays], Arrays]
numpy: Any = import_module("numpy")


def main() -> int:
    """Run the program and return the exit code."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        result = exported(request)
    except Exception as error:
        message = " ".join(COLOURS.sub("", str(error)).split())
        result = {"error": f"{type(error).__name__}: {message:.{SHOWN}}"}
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")
    return 0


def exported(request: dict[str, Any]) -> dict[str, Any]:
    """Write the model into `target`, load it again, and compare it with the original."""
    transformers, torch = import_module("transformers"), import_module("torch")
    transformers.logging.set_verbosity_error()
    kind, source = request["kind"], request["source"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **NO_CODE)
    name = "AutoModel" if kind == "FeatureExtraction" else f"AutoModelFor{kind}"

    def load() -> Any:
        of_task = getattr(transformers, name)
        return of_task.from_pretrained(source, dtype=torch.float32, **NO_CODE).eval()

    model = load()
    taken = signature(model.forward).parameters
    inputs = [word for word in tokenizer("a").keys() if word in taken]  # noqa: SIM118
    outputs = OUTPUTS.get(kind, LOGITS)
    if request["format"] == "onnx":
        after = to_onnx(request, model, inputs, outputs)
        model = load()  # exporting has changed the model
    else:
        after = to_openvino(request, tokenizer, outputs)

    def before(batch: Arrays) -> Arrays:
        with torch.inference_mode():
            computed = model(**_tensors(batch))
        return {output: computed[output].numpy() for output in outputs}

    size = 1 if kind == DECODER else BATCH  # padding would shift a decoder's positions
    batches = batches_of(tokenizer, request["rows"], inputs, request["max_length"], size)
    several = model.config.problem_type == "multi_label_classification"
    decides = kind != "FeatureExtraction" and model.config.num_labels > 1
    decide = (lambda row: row > 0) if several else (lambda row: row.argmax(-1))
    return compared(before, after, batches, request["measure"], decide if decides else None)


def to_openvino(request: dict[str, Any], tokenizer: Any, outputs: Sequence[str]) -> RunProgram:
    """Export with optimum-intel; return a function that runs the exported model."""
    intel = import_module("optimum.intel")
    kind, target = request["kind"], request["target"]
    of_kind = getattr(intel, f"OVModelFor{kind}")
    weights: dict[str, Any] = {"load_in_8bit": False}
    if request["int8"]:
        weights = {"quantization_config": intel.OVWeightQuantizationConfig(bits=8)}
    exporting = of_kind.from_pretrained(
        request["source"], export=True, compile=False, **weights, **NO_CODE
    )
    exporting.save_pretrained(target)
    if kind == DECODER:  # OpenVINO GenAI reads it instead of tokenizer.json
        convert = import_module("optimum.exporters.openvino.convert")
        convert.export_tokenizer(tokenizer, target, task="text-generation")
    # By default, a CPU with AMX computes in bf16 and keeps a decoder's cache in 8 bits.
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    model = of_kind.from_pretrained(target, ov_config=exact, **NO_CODE)

    def run(batch: Arrays) -> Arrays:
        computed = model(**_tensors(batch))
        return {name: numpy.asarray(computed[name]) for name in outputs}

    def run_decoder(batch: Arrays) -> Arrays:
        """Run all tokens except the last; then run the last token with the resulting cache."""
        tensors = _tensors(batch)
        first = model(**{name: values[:, :-1] for name, values in tensors.items()})
        ids = tensors["input_ids"][:, -1:]
        last = model(
            input_ids=ids, attention_mask=tensors["attention_mask"],
            past_key_values=first.past_key_values,
        )  # fmt: skip
        return {"logits": numpy.concatenate([first.logits, last.logits], axis=1)}

    return run_decoder if kind == DECODER else run


def to_onnx(
    request: dict[str, Any], model: Any, inputs: Sequence[str], outputs: Sequence[str]
) -> RunProgram:
    """Export with torch's exporter; return a function that runs the exported model."""
    torch, runtime = import_module("torch"), import_module("onnxruntime")
    target = Path(request["target"])
    path, whole = target / "model.onnx", target / "fp32" / "model.onnx"
    written = whole if request["int8"] else path
    written.parent.mkdir(parents=True, exist_ok=True)
    model.config.return_dict = False
    model.set_attn_implementation("eager")
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, -2:] = 0  # a mask of only ones could be dropped from the export
    values = {"input_ids": mask * 5, "attention_mask": mask}
    large = sum(weight.numel() * 4 for weight in model.parameters()) > MOST_IN_ONE_FILE
    torch.onnx.export(
        model, (), str(written), input_names=list(inputs), output_names=list(outputs),
        kwargs={name: values.get(name, torch.zeros_like(mask)) for name in inputs},
        dynamic_shapes={name: {0: "rows", 1: "tokens"} for name in inputs}, dynamo=True,
        external_data=large, verbose=False,
    )  # fmt: skip
    if request["int8"]:
        quantization = import_module("onnxruntime.quantization")
        quantization.quantize_dynamic(
            whole, path, weight_type=quantization.QuantType.QInt8, per_channel=True,
            use_external_data_format=large,
        )  # fmt: skip
        shutil.rmtree(whole.parent)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda batch: dict(zip(outputs, session.run(outputs, dict(batch)), strict=True))


def batches_of(
    tokenizer: Any, rows: Sequence[Mapping[str, Any]], inputs: Sequence[str], limit: int, size: int
) -> Iterator[tuple[Arrays, list[Any]]]:
    """Yield batches of rows: the model's inputs and the labels."""
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        columns = [list(column) for column in zip(*(row["texts"] for row in part), strict=True)]
        tokens = tokenizer(
            *columns, padding=size > 1, truncation=True,
            max_length=min(limit, tokenizer.model_max_length), return_tensors="np",
        )  # fmt: skip
        if tokens["input_ids"].shape[1] > 1:  # a decoder predicts nothing for an empty text
            yield (
                {name: tokens[name].astype("int64") for name in inputs},
                [row["label"] for row in part],
            )


def compared(
    before: RunProgram, after: RunProgram, batches: Iterator[tuple[Arrays, list[Any]]],
    measure: str, decide: Callable[[Any], Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """Compare the exported model's outputs with the original's, and measure both models' quality.

    Args:
        before: function that runs the original model with torch.
        after: function that runs the exported model.
        batches: inputs and labels of each batch.
        measure: accuracy, pearson, loss or "".
        decide: function from a row's output to the decision, such as the index of a class; None for
            a model without decisions.
    """
    largest = scale = numpy.float64(0)
    rows, same = 0, []
    scores: dict[str, list[Any]] = {"before": [], "after": []}
    for batch, labels in batches:
        first, second = before(batch), after(batch)
        mask = batch["attention_mask"].astype(bool)
        rows += len(labels)
        for name, values in first.items():
            by_token = values.ndim > 2 or name not in LOGITS
            for n, label in enumerate(labels):
                original, exported_row = values[n], second[name][n]
                if by_token:
                    original, exported_row = original[mask[n]], exported_row[mask[n]]
                # unlike max(), these functions keep a NaN
                largest = numpy.maximum(largest, numpy.abs(original - exported_row).max())
                scale = numpy.maximum(scale, numpy.abs(original).max())
                if decide:
                    same.append(float(numpy.mean(decide(original) == decide(exported_row))))
                for when, row in (("before", original), ("after", exported_row)):
                    if measure == "loss":
                        scores[when].append(_losses(row, batch["input_ids"][n]))
                    elif measure and label is not None:
                        predicted = float(row[0]) if measure == "pearson" else int(row.argmax())
                        scores[when].append((predicted, label))
    if not rows:
        raise ValueError("the models cannot be compared, because no row contains enough tokens")
    result = {"difference": float(largest), "scale": float(scale), "rows": rows}
    if same:
        result["agreement"] = sum(same) / len(same)
    for when, scored in scores.items() if measure else ():
        result[f"{measure}_{when}"] = MEASURES[measure](scored)
    return result


def _losses(logits: Any, ids: Any) -> Any:
    """Return the cross entropy of each token except the first, in nats."""
    shifted = logits[:-1].astype("float64")
    shifted -= shifted.max(-1, keepdims=True)
    return numpy.log(numpy.exp(shifted).sum(-1)) - shifted[numpy.arange(len(ids) - 1), ids[1:]]


MEASURES: Mapping[str, Callable[[Any], float]] = {
    "accuracy": lambda pairs: sum(predicted == label for predicted, label in pairs) / len(pairs),
    "pearson": lambda pairs: float(numpy.corrcoef(numpy.array(pairs).T)[0, 1]),
    "loss": lambda losses: float(numpy.concatenate(losses).mean()),
}


def _tensors(batch: Arrays) -> dict[str, Any]:
    from_numpy = import_module("torch").from_numpy
    return {name: from_numpy(values) for name, values in batch.items()}


if __name__ == "__main__":
    sys.exit(main())
