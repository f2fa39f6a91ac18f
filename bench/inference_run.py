"""One prediction of bench/inference, in a separate process with the Python of a host's stack.

    PYTHON -m bench.inference_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a prediction, whose data are a file of rows. OPTIONS is a JSON object:
`case` (a name in CASES), `way` (`ours`, `default`, `tuned` or `openvino`), `bf16` (True to compute
in bf16; ours and tuned only), `exported` (folder of the OpenVINO model), `limit` (True to measure
matmuls of the model's shapes between the batches of ours, whose time is not counted), `profile`;
or `make` (a case whose model is written to the folder `to`, from the encoder `encoder`).

The time begins with the file of rows and ends with a file of predictions. The model is loaded
before, and has predicted a few rows. Prints one JSON object.
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch.profiler import profile

from bench.engine_run import DTYPES, WORLD
from bench.matmul_limit import Limit
from ftcluster_common.protocol.job import Job, read_job
from ftcluster_train.engine.data.sets import PREDICTED
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.evaluation import PREDICTIONS, run_on_sets
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.predictions import predict as engine_predict
from ftcluster_train.health.host_benchmark import matmul_shapes, weights_of

Rows = list[dict[str, Any]]
Predict = Callable[[Rows], list[Any]]
DISTILBERT = "distilbert"  # DistilBERT-base's shape; MiniLM is the encoder itself
BATCH = 32  # of the tuned ways
TAGS = ("O", *(f"{place}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for place in "BI"))
# added to the logit of O in the untrained tagger, so that entities are as rare as in real text
OUTSIDE_BIAS = 0.5
QA_LENGTH, QA_STRIDE, N_BEST, LONGEST_ANSWER = 384, 128, 20, 30  # as in run_qa
DEFAULT_QA_BATCH = 8  # per_device_eval_batch_size of Trainer
EMBED_LENGTH, RERANK_LENGTH = 256, 256
WARM_UP = 64  # rows
# matmuls that are measured between batches: number of rows, and the narrowest weight
LIMIT_ROWS, NARROWEST = 2048, 64


@dataclass(frozen=True)
class Case:
    """A model and its baseline.

    Attributes:
        kind: end of the model's class name in transformers.
        shape: `minilm` or `distilbert`.
        settings: fields of the model's configuration.
        texts: columns with the texts of a row.
    """

    name: str
    kind: str
    shape: str
    settings: dict[str, Any]
    texts: tuple[str, ...]


PAIRS, ONE_OUTPUT = {"num_labels": 2}, {"num_labels": 1}
NAMED_TAGS = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: n for n, tag in enumerate(TAGS)}}
CASES = {
    case.name: case
    for case in (
        Case("classify", "SequenceClassification", DISTILBERT, PAIRS, ("sentence1", "sentence2")),
        Case("classify-minilm", "SequenceClassification", "minilm", PAIRS,
             ("sentence1", "sentence2")),
        Case("ner", "TokenClassification", DISTILBERT, NAMED_TAGS, ("text",)),
        Case("squad", "QuestionAnswering", DISTILBERT, {}, ("question", "context")),
        Case("embed", "FeatureExtraction", "minilm", {}, ("text",)),
        Case("rerank", "SequenceClassification", "minilm", ONE_OUTPUT, ("query", "text")),
    )
}  # fmt: skip


def main() -> int:
    """Predict once and return the exit code."""
    transformers.logging.set_verbosity_error()
    run_dir, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "make" in options:
        make_model(CASES[options["make"]], Path(options["encoder"]), Path(options["to"]))
        print("{}")
        return 0
    job = read_job(run_dir)
    torch.manual_seed(1)
    if options["way"] == "ours":
        found = ours(job, options)
    else:
        case, way = CASES[options["case"]], options["way"]
        if way == "openvino":
            predict = openvino_way(case, Path(options["exported"]), torch.get_num_threads())
        else:
            load_way = BASELINES.get(options["case"], pipeline_way)
            predict = load_way(case, job.recipe.model, way == "tuned", options.get("bf16", False))
        path, output = Path(str(job.recipe.data)), run_dir / f"{way}.jsonl"
        predict(rows_of(path)[:WARM_UP])
        began, cpu = time.perf_counter(), time.process_time()
        rows = rows_of(path)
        write(rows, predict(rows), output)
        found = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu,
                 "rows": len(rows), "output": str(output)}  # fmt: skip
    print(json.dumps(found))
    return 0


def make_model(case: Case, encoder: Path, to: Path) -> None:
    """Write a case's model, whose head has random weights, and its tokenizer."""
    if case.kind == "FeatureExtraction":
        shutil.copytree(encoder, to)  # with pooling and normalization
        return
    torch.manual_seed(1)
    of_task = getattr(transformers, f"AutoModelFor{case.kind}")
    if case.shape == DISTILBERT:
        config = transformers.AutoConfig.for_model("distilbert", **case.settings)
        model = of_task.from_config(config)
    else:
        model = of_task.from_pretrained(encoder, **case.settings)
    if case.kind == "TokenClassification":
        with torch.no_grad():
            model.classifier.bias[0] = OUTSIDE_BIAS
    model.save_pretrained(to)
    transformers.AutoTokenizer.from_pretrained(encoder).save_pretrained(to)


def rows_of(path: Path) -> Rows:
    """Return the rows of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(rows: Rows, predictions: Iterable[Any], path: Path) -> None:
    """Write the rows with their predictions as JSON lines, as `ftcluster predict` does."""
    with path.open("w", encoding="utf-8") as file:
        for row, prediction in zip(rows, predictions, strict=True):
            file.write(
                json.dumps({**row, "prediction": prediction}, ensure_ascii=False, default=float)
                + "\n"
            )


# ours


def ours(job: Job, options: dict[str, Any]) -> dict[str, Any]:
    """Predict with the engine, as the preparation and a rank of `ftcluster predict` do."""
    job = replace(job, precision="bf16" if options.get("bf16") else "fp32")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    task, model, samples = load(job, prepare(job))
    task.check_model(model)
    [split] = samples.values()
    engine_predict(task, model, First(split, WARM_UP), WORLD, job.precision == "bf16")
    shapes, of_limit = matmul_shapes(model), 0.0
    limit = Limit(limit_shapes(shapes) if options.get("limit") else (), DTYPES[job.precision])
    predict_batch = task.predict

    def between(*args: Any) -> Any:
        nonlocal of_limit
        began = time.perf_counter()
        limit.measure()
        of_limit += time.perf_counter() - began
        return predict_batch(*args)

    if limit.factors:
        task.predict = between  # type: ignore[method-assign]
    # a new folder, whose cache has no samples of these rows
    new = replace(job, run_dir=job.run_dir / "new/ours", prefix=job.run_dir / "new")
    new.run_dir.mkdir(parents=True)
    began, cpu = time.perf_counter(), time.process_time()
    folder = Path(prepare(new, weights=False).samples)
    tokenized = time.perf_counter()
    with profile() if options.get("profile") else nullcontext() as profiler:
        run_on_sets(new, task, model, {PREDICTED: Samples(folder / PREDICTED)}, folder, WORLD)
    ended, cpu_ended = time.perf_counter(), time.process_time()
    tokens = sum(split.lengths("input_ids"))
    found: dict[str, Any] = {
        "seconds": ended - began - of_limit, "cpu": cpu_ended - cpu,
        "tokenizing": tokenized - began, "rows": len(rows_of(Path(str(job.recipe.data)))),
        "tokens": tokens, "flop": 2.0 * weights_of(shapes) * tokens,
        "output": str(new.run_dir / PREDICTIONS / f"{PREDICTIONS}.jsonl"),
    }  # fmt: skip
    if limit.factors:
        found["limit"] = limit.rate(0)
    if profiler:
        table = profiler.key_averages().table("self_cpu_time_total", row_limit=30)
        print(table, file=sys.stderr)
    return found


class First(Samples):
    """The first samples of a set."""

    def __init__(self, samples: Samples, count: int) -> None:
        self.__dict__ = {**samples.__dict__, "_count": min(count, len(samples))}


def limit_shapes(shapes: Mapping[tuple[int, int], int]) -> list[tuple[int, int, int]]:
    """Return the matmuls of a layer of the model: rows, inner size and columns."""
    wide = {shape: count for shape, count in shapes.items() if min(shape) >= NARROWEST}
    layers = min(wide.values())
    return [
        (LIMIT_ROWS, inner, columns)
        for (columns, inner), count in wide.items()
        for _ in range(round(count / layers))
    ]


# baselines


def pipeline_way(case: Case, model: str, tuned: bool, bf16: bool) -> Predict:
    """Return a function that predicts with transformers' pipeline."""
    arguments: dict[str, Any] = {"truncation": True, "max_length": 128}
    if case.kind == "TokenClassification":
        arguments = {"aggregation_strategy": "first"}
    if tuned:
        arguments["batch_size"] = BATCH
    name = {"TokenClassification": "token-classification"}.get(case.kind, "text-classification")
    pipe = transformers.pipeline(
        name, model=model, device="cpu", dtype=torch.bfloat16 if bf16 else torch.float32
    )

    def predict(rows: Rows) -> list[Any]:
        if len(case.texts) == 1:
            inputs: list[Any] = [row[case.texts[0]] for row in rows]
        else:
            first, second = case.texts
            inputs = [{"text": row[first], "text_pair": row[second]} for row in rows]
        with torch.inference_mode():
            return list(pipe(inputs, **arguments))

    return sorted_by_length(case, predict) if tuned else predict


def sorted_by_length(case: Case, predict: Predict) -> Predict:
    """Return a function that predicts the longest rows first, and returns their order again."""

    def by_length(rows: Rows) -> list[Any]:
        order = sorted(range(len(rows)), key=lambda n: -sum(len(rows[n][t]) for t in case.texts))
        found: list[Any] = [None] * len(rows)
        for number, prediction in zip(order, predict([rows[n] for n in order]), strict=True):
            found[number] = prediction
        return found

    return by_length


def sentence_transformer_way(case: Case, model: str, tuned: bool, bf16: bool) -> Predict:
    """Return a function that embeds with SentenceTransformer, which sorts texts by length."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model, device="cpu")
    if bf16:
        encoder.bfloat16()

    def predict(rows: Rows) -> list[Any]:
        texts = [row[case.texts[0]] for row in rows]
        # 32 is also the default
        found = encoder.encode(texts, batch_size=BATCH if tuned else 32)
        return list(found.astype(float).round(6).tolist())

    return predict


def cross_encoder_way(case: Case, model: str, tuned: bool, bf16: bool) -> Predict:
    """Return a function that scores pairs with CrossEncoder, which sorts pairs by length."""
    from sentence_transformers import CrossEncoder

    encoder = CrossEncoder(model, device="cpu", max_length=RERANK_LENGTH)
    if bf16:
        encoder.model.bfloat16()

    def predict(rows: Rows) -> list[Any]:
        first, second = case.texts
        pairs = [(row[first], row[second]) for row in rows]
        return list(encoder.predict(pairs, batch_size=BATCH if tuned else 32).tolist())

    return predict


def answering_way(case: Case, model: str, tuned: bool, bf16: bool) -> Predict:
    """Return a function that answers questions as run_qa does; transformers 5 has no pipeline.

    By default, run_qa pads all features to the maximum length.
    """
    loaded = transformers.AutoModelForQuestionAnswering.from_pretrained(
        model, dtype=torch.bfloat16 if bf16 else torch.float32
    ).eval()

    def run(inputs: dict[str, Any]) -> tuple[Any, Any]:
        with torch.inference_mode():
            outputs = loaded(**{name: torch.from_numpy(value) for name, value in inputs.items()})
        return outputs.start_logits.float().numpy(), outputs.end_logits.float().numpy()

    return partial(answers, case, model, tuned, run)


def answers(
    case: Case, model: str, tuned: bool, run: Callable[[Any], Any], rows: Rows
) -> list[Any]:
    """Answer the questions of rows; see `answering_way`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    first, second = case.texts
    encoded = tokenizer(
        [row[first] for row in rows], [row[second] for row in rows], truncation="only_second",
        max_length=QA_LENGTH, stride=QA_STRIDE, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    of_row = encoded["overflow_to_sample_mapping"]
    order = list(range(len(of_row)))
    if tuned:
        order.sort(key=lambda n: -len(encoded["input_ids"][n]))
    size = BATCH if tuned else DEFAULT_QA_BATCH
    best: list[tuple[float, str]] = [(-math.inf, "")] * len(rows)
    for begin in range(0, len(order), size):
        batch = order[begin : begin + size]
        longest = max(len(encoded["input_ids"][n]) for n in batch) if tuned else QA_LENGTH
        ids, mask = (np.zeros((len(batch), longest), dtype=np.int64) for _ in range(2))
        for i, n in enumerate(batch):
            ids[i, : len(encoded["input_ids"][n])] = encoded["input_ids"][n]
            mask[i, : len(encoded["input_ids"][n])] = 1
        starts, ends = run({"input_ids": ids, "attention_mask": mask})
        for i, n in enumerate(batch):
            context = rows[of_row[n]][second]
            offsets = [
                place if part == 1 else None
                for part, place in zip(encoded.sequence_ids(n), encoded["offset_mapping"][n],
                                       strict=True)
            ]  # fmt: skip
            found = best_answer(starts[i], ends[i], offsets, context)
            best[of_row[n]] = max(best[of_row[n]], found, key=lambda one: one[0])
    return [text for _, text in best]


def best_answer(
    start: Any, end: Any, offsets: Sequence[tuple[int, int] | None], context: str
) -> tuple[float, str]:
    """Return the score and the text of a feature's best answer, as in run_qa."""
    best = (-math.inf, "")
    starts, ends = (np.argsort(of)[-1 : -N_BEST - 1 : -1].tolist() for of in (start, end))
    for i in starts:
        for j in ends:
            if i >= len(offsets) or j >= len(offsets) or not offsets[i] or not offsets[j]:
                continue
            if j < i or j - i + 1 > LONGEST_ANSWER:
                continue
            score = float(start[i] + end[j])
            if score > best[0]:
                best = score, context[offsets[i][0] : offsets[j][1]]
    return best


BASELINES = {"embed": sentence_transformer_way, "rerank": cross_encoder_way, "squad": answering_way}


# OpenVINO


def openvino_way(case: Case, folder: Path, threads: int) -> Predict:
    """Return a function that predicts with an exported model, in sorted batches of 32."""
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", settings)
    request, names = model.create_infer_request(), {port.any_name for port in model.inputs}

    def run(inputs: dict[str, Any]) -> Any:
        found = request.infer({n: value for n, value in inputs.items() if n in names})
        return [found[port] for port in model.outputs]

    if case.kind == "QuestionAnswering":
        return partial(answers, case, str(folder), True, run)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    limit = {"embed": EMBED_LENGTH, "rerank": RERANK_LENGTH}.get(case.name, 128)

    def predict(rows: Rows) -> list[Any]:
        results: list[Any] = []
        for begin in range(0, len(rows), BATCH):
            batch = rows[begin : begin + BATCH]
            columns = [[row[name] for row in batch] for name in case.texts]
            inputs = tokenizer(
                *columns, padding=True, truncation=True, max_length=limit, return_tensors="np"
            )
            [output, *_] = run(dict(inputs))
            results += predictions_of(case, output, inputs["attention_mask"])
        return results

    return sorted_by_length(case, predict)


def predictions_of(case: Case, output: Any, mask: Any) -> list[Any]:
    """Return the predictions of a batch from the model's output."""
    if case.kind == "FeatureExtraction":
        pooled = (output * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return list((pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).round(6).tolist())
    if case.settings == ONE_OUTPUT:
        return list((1 / (1 + np.exp(-output[:, 0]))).tolist())
    numbers = output.argmax(-1)
    if case.kind == "TokenClassification":
        return [row[: int(real.sum())].tolist() for row, real in zip(numbers, mask, strict=True)]
    return [{"label": f"LABEL_{number}"} for number in numbers.tolist()]


if __name__ == "__main__":
    sys.exit(main())
