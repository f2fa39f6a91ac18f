"""Predictions: the engine against transformers' pipeline, sentence-transformers and OpenVINO.

    .venv-dev/bin/python -m bench.inference [CASE ...] --data DIR --encoder DIR --site DIR
        --exporter PYTHON [--turns N] [--rows SHARE] [--models DIR] [--threads N] [--prefix DIR]
        [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR of --data has the folders mrpc and squad; --encoder is all-MiniLM-L6-v2. --site is a
folder with sentence-transformers and openvino for the stack's Python:

    pip install --target DIR --no-deps sentence-transformers scikit-learn scipy joblib
        threadpoolctl cloudpickle narwhals openvino openvino-telemetry

and --exporter the Python of an environment with the packages of
runner/ftcluster/export/exporters/openvino.txt, which exports the models with 8-bit weights.

Each measurement begins with a file of rows and ends with a file of predictions, in fp32, with a
loaded and warm model. All ways predict the same rows with the same weights, each in a process of
its own (bench.inference_run), in turns; results are medians. `default` is the pipeline as it
comes; `tuned` has batches of 32 rows, sorted by length, torch.inference_mode and the allocator of
planned runs, which `ours` uses too; `tuned, bf16` is measured once, for `classify`. transformers 5
has no pipeline for question answering; there, `default` pads as run_qa does. The limit is the rate
of the model's matmuls, measured between the batches of ours; ours as a share of the limit does not
count padding.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machines import resumed
from bench.runs import ROOT, arguments, environment, machine, run_module, write
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.job import PREDICT, Job

MODULE = "bench.inference_run"
EXPORTER = ROOT / "runner/ftcluster/export/exporters/program.py"
Row = dict[str, Any]
WAYS = ("ours", "tuned", "openvino")
BF16 = "tuned, bf16"
ONCE = {"default": 0.3, BF16: 0.3}  # ways that are measured once, on a part of the rows
CLOSE = 1e-3  # scores and elements of embeddings that differ by less are alike


@dataclass(frozen=True)
class Case:
    """Rows to predict and the recipe that predicts them.

    Attributes:
        recipe: name and overrides.
        rows: function from the data's folder to all rows.
        count: rows of a measurement.
        kind: end of the model's class name in transformers, for the export.
        alike: function that compares the prediction of a row of ours with another one.
    """

    recipe: tuple[str, ...]
    rows: Callable[[Path], Iterator[Row]]
    count: int
    kind: str
    alike: Callable[[Any, Any], bool]


def read(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def pairs(data: Path) -> Iterator[Row]:
    """Yield the pairs of MRPC."""
    for row in read(data / "mrpc/train.jsonl"):
        yield {name: row[name] for name in ("sentence1", "sentence2")}


def sentences(data: Path) -> Iterator[Row]:
    """Yield the first sentences of MRPC."""
    for row in read(data / "mrpc/train.jsonl"):
        yield {"text": row["sentence1"]}


def questions(data: Path) -> Iterator[Row]:
    """Yield the questions of SQuAD with their contexts."""
    for row in read(data / "squad/validation.jsonl"):
        yield {name: row[name] for name in ("question", "context")}


def texts(data: Path) -> Iterator[Row]:
    """Yield the questions and the contexts of SQuAD, in turns."""
    for row in questions(data):
        yield from ({"text": text} for text in row.values())


def queries(data: Path) -> Iterator[Row]:
    """Yield each question of SQuAD with its own context."""
    for row in questions(data):
        yield {"query": row["question"], "text": row["context"]}


def same_label(ours: Any, other: Any) -> bool:
    """Compare the names of classes."""
    return bool(ours == other["label"])


def same_entities(ours: Any, other: Any) -> bool:
    """Compare the places and types of entities."""
    return [(one["start"], one["end"], one["label"]) for one in ours] == [
        (one["start"], one["end"], one["entity_group"]) for one in other
    ]


def same_text(ours: Any, other: Any) -> bool:
    """Compare answers."""
    return bool(ours == other)


def close(ours: Any, other: Any) -> bool:
    """Compare numbers."""
    a, b = (one if isinstance(one, list) else [one] for one in (ours, other))
    return all(math.isclose(x, y, abs_tol=CLOSE) for x, y in zip(a, b, strict=True))


CLASSES = "SequenceClassification"
WORK = {
    "classify": "classes of MRPC's pairs, DistilBERT-base",
    "classify-minilm": "classes of MRPC's pairs, MiniLM",
    "ner": "entities in MRPC's sentences, DistilBERT-base",
    "squad": "answers to SQuAD's questions, DistilBERT-base",
    "embed": "embeddings of SQuAD's questions and contexts, MiniLM",
    "rerank": "scores of SQuAD's questions with their contexts, MiniLM",
}
CASES = {
    "classify": Case(("mrpc",), pairs, 300, CLASSES, same_label),
    "classify-minilm": Case(("mrpc",), pairs, 1500, CLASSES, same_label),
    "ner": Case(("ner", "data_config=null"), sentences, 500, "TokenClassification",
                same_entities),
    "squad": Case(("squad",), questions, 100, "QuestionAnswering", same_text),
    "embed": Case(("embed", "max_length=256"), texts, 800, "FeatureExtraction", close),
    "rerank": Case(("rerank", "data_config=null", "max_length=256"), queries, 450, CLASSES, close),
}  # fmt: skip


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = arguments(__doc__, CASES, threads=2)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--exporter", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="keeps the models for the next run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=float, default=1.0, help="share of each case's rows")
    options = parser.parse_args()
    site = options.site.absolute()
    of_machine = {**machine(options.prefix, options.threads, site), "precision": "fp32"}
    results = resumed(options.results, of_machine)
    results.setdefault("speed", {})
    with tempfile.TemporaryDirectory() as scratch:
        bench = Runner(
            options.prefix, options.data.absolute(), options.encoder.absolute(), site,
            options.exporter.absolute(), (options.models or Path(scratch)).absolute(),
            options.threads,
        )  # fmt: skip
        for name in options.cases or CASES:
            results["speed"][name] = bench.measure(name, options.turns, options.rows)
            write(options.results, results)
    print(table(results["speed"]))
    return 0


@dataclass(frozen=True)
class Runner:
    """A runner of predictions."""

    prefix: Path
    data: Path
    encoder: Path
    site: Path
    exporter: Path
    models: Path
    threads: int

    def measure(self, name: str, turns: int, share: float) -> dict[str, Any]:
        """Measure a case; return the medians of each way, and how many predictions are alike."""
        model, exported = self._model(name)
        found: dict[str, list[dict[str, Any]]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(turns):
                outputs = {}
                once = [way for way in ONCE if way != BF16 or name == "classify"]
                for way in (*WAYS, *(once if turn == 0 else ())):
                    run_dir, part = Path(folder) / f"{turn}-{way}", ONCE.get(way, 1.0)
                    done = self.run(
                        name, run_dir, model, share * part, way=way.partition(",")[0],
                        bf16=way == BF16, limit=True, exported=str(exported),
                    )  # fmt: skip
                    outputs[way] = [*read(Path(done.pop("output")))]
                    found.setdefault(way, []).append(done)
                    rate = done["rows"] / done["seconds"]
                    print(f"{name}, {way}: {rate:.1f} rows/s", file=sys.stderr, flush=True)
        alike = statistics.mean(
            CASES[name].alike(ours["prediction"], other["prediction"])
            for ours, other in zip(outputs["ours"], outputs["tuned"], strict=True)
        )
        return {**self._summary(found), "alike": alike}

    @staticmethod
    def _summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        summary: dict[str, Any] = {
            way: {
                "rows_per_second": statistics.median(one["rows"] / one["seconds"] for one in runs),
                "rows_per_cpu_second": statistics.median(one["rows"] / one["cpu"] for one in runs),
                "all": runs,
            }
            for way, runs in found.items()
        }
        summary["ours"]["share_of_limit"] = statistics.median(
            one["flop"] / one["seconds"] / one["limit"] for one in found["ours"]
        )
        for way, runs in found.items():
            summary[way]["times_of_ours"] = statistics.median(
                other["seconds"] / other["rows"] * ours["rows"] / ours["seconds"]
                for other, ours in zip(runs, found["ours"], strict=False)
            )
        return summary

    def run(
        self, name: str, run_dir: Path, model: Path, share: float, **options: Any
    ) -> dict[str, Any]:
        """Run one way; see bench.inference_run."""
        case = CASES[name]
        run_dir.mkdir(parents=True)
        rows = run_dir / "rows.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            for _, row in zip(range(round(share * case.count)), case.rows(self.data), strict=False):
                file.write(json.dumps(row) + "\n")
        recipe = load_recipe(case.recipe[0], [*case.recipe[1:], f"data={rows}", f"model={model}"])
        job = Job("bench", run_dir, run_dir / "prefix", recipe, "fp32", ipex=False, purpose=PREDICT)
        (run_dir / "job.json").write_text(json.dumps(job.to_dict()), encoding="utf-8")
        tcmalloc = options["way"] in ("ours", "tuned")
        variables = environment(self.threads, tcmalloc, self.site)
        return run_module(MODULE, self.prefix, run_dir, {"case": name, **options}, variables)

    def _model(self, name: str) -> tuple[Path, Path]:
        """Return the folders of a case's model and of its export, and make them if necessary."""
        model, exported = self.models / name, self.models / f"{name}-openvino"
        if not exported.exists():
            options = {"make": name, "encoder": str(self.encoder), "to": str(model)}
            run_module(MODULE, self.prefix, Path(), options, environment(self.threads))
            row = next(CASES[name].rows(self.data))
            request = {
                "format": "openvino", "source": str(model), "target": str(exported),
                "kind": CASES[name].kind, "int8": True, "max_length": 128, "measure": "",
                "rows": [{"texts": [*row.values()], "label": None}],
            }  # fmt: skip
            asked, answered = (self.models / f"{name}-{file}.json" for file in ("export", "result"))
            asked.write_text(json.dumps(request), encoding="utf-8")
            subprocess.run([self.exporter, EXPORTER, asked, answered], check=True)
            result = json.loads(answered.read_text(encoding="utf-8"))
            if "error" in result:
                raise SystemExit(f"{name} cannot be exported: {result['error']}")
            for file in model.glob("*token*"):
                (exported / file.name).write_bytes(file.read_bytes())
        return model, exported


def table(speed: dict[str, Any]) -> str:
    """Format the medians as a Markdown table."""
    lines = [
        "| rows/s | default | tuned | ftcluster | ratio to tuned | of the matmul limit "
        "| OpenVINO, 8-bit weights | predictions equal to tuned |",
        "|---" * 8 + "|",
    ]
    for name, work in WORK.items():
        if name not in speed:
            continue
        default, tuned, ours, openvino = (
            speed[name][way] for way in ("default", "tuned", "ours", "openvino")
        )
        rates = (f"{way['rows_per_second']:.3g}" for way in (default, tuned, ours))
        lines.append(
            f"| {work} | {' | '.join(rates)} | **{tuned['times_of_ours']:.2f}** "
            f"| {ours['share_of_limit']:.0%} | {openvino['rows_per_second']:.3g} "
            f"| {speed[name]['alike']:.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
