"""A server for a model of `ftcluster export-model`: classes, tags, embeddings or scores over HTTP.

    pip install fastapi uvicorn tokenizers onnxruntime    # or openvino, for an OpenVINO folder
    MODEL=my-model-onnx uvicorn serve:app
    curl localhost:8000/predict -H 'Content-Type: application/json' \\
        -d '{"inputs": ["A wonderful film."]}'

Classifiers and embedders expect a text as input, taggers expect a list of words, and rerankers
expect a pair of query and text. For regression, and for classifiers with several classes per row,
the response contains the model's raw outputs.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel, Field
from tokenizers import Tokenizer


class Request(BaseModel):
    """The body of a request."""

    inputs: list[str | list[str]] = Field(min_length=1, max_length=64)


def read(name: str) -> Any:
    """Return the content of a JSON file in the model's folder; {} if the file does not exist."""
    path = FOLDER / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def load() -> tuple[set[str], Any]:
    """Return the names of the model's inputs, and a function that computes its first output."""
    if (FOLDER / "model.onnx").is_file():
        import onnxruntime

        session = onnxruntime.InferenceSession(FOLDER / "model.onnx")
        return {tensor.name for tensor in session.get_inputs()}, lambda x: session.run(None, x)[0]
    import openvino

    model = openvino.Core().compile_model(FOLDER / "openvino_model.xml", "CPU")
    names = {tensor.any_name for tensor in model.inputs}
    return names, lambda x: model.create_infer_request().infer(x)[0]


FOLDER = Path(os.environ["MODEL"])
CONFIG, TRAINED, POOLING = (
    read("config.json"),
    read("ftcluster.json"),
    read("1_Pooling/config.json"),
)
TASK, NAMES = TRAINED["task"], CONFIG.get("id2label", {})
ACTIVATION = str(CONFIG.get("sentence_transformers", {}).get("activation_fn", "Sigmoid"))
INPUTS, COMPUTE = load()
tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
tokenizer.enable_truncation(TRAINED["options"]["max_length"])
tokenizer.enable_padding(pad_id=CONFIG.get("pad_token_id") or 0)
app = FastAPI()


@app.post("/predict")
def predict(request: Request) -> list[Any]:
    """Return one prediction for each input, computed as `ftcluster predict` does."""
    tags = TASK == "token-classification"
    encoded = tokenizer.encode_batch([*map(_input, request.inputs)], is_pretokenized=tags)
    arrays = {
        "input_ids": np.array([encoding.ids for encoding in encoded]),
        "attention_mask": np.array([encoding.attention_mask for encoding in encoded]),
        "token_type_ids": np.array([encoding.type_ids for encoding in encoded]),
    }
    output = COMPUTE({name: array for name, array in arrays.items() if name in INPUTS})
    if TASK == "sentence-similarity":
        weights = arrays["attention_mask"][..., None]
        is_cls = POOLING.get("pooling_mode_cls_token")
        pooled = output[:, 0] if is_cls else (output * weights).sum(1) / weights.sum(1)
        if any(module["type"].endswith("Normalize") for module in read("modules.json")):
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
        return pooled.tolist()
    if TASK == "text-ranking":
        scores = output[:, 0]
        return (1 / (1 + np.exp(-scores)) if ACTIVATION.endswith("Sigmoid") else scores).tolist()
    if tags:  # a word gets the tag of its first token
        numbers = output.argmax(-1)
        firsts = [
            {w: t for t, w in reversed([*enumerate(encoding.word_ids)])} for encoding in encoded
        ]
        return [
            [name_of(row[first[w]]) if w in first else "O" for w in range(len(words))]
            for row, first, words in zip(numbers, firsts, request.inputs, strict=True)
        ]
    if len(NAMES) == 1 or CONFIG.get("problem_type") == "multi_label_classification":
        return output.tolist()
    shares = np.exp(output - output.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return [{"class": name_of(row.argmax()), "probability": float(row.max())} for row in shares]


def name_of(number: Any) -> str:
    """Return the name of a class or tag; transformers does not save its default names."""
    return str(NAMES.get(str(number), f"LABEL_{number}"))


def _input(value: str | list[str]) -> Any:
    return tuple(value) if TASK == "text-ranking" else value
