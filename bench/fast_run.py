"""One run of a stock example script for bench/fast, in a process with the python of a host's stack.

    PYTHON -m bench.fast_run prepare FOLDER DATA ENCODER
    PYTHON -m bench.fast_run run SCRIPT ARGS ...

`prepare` makes models with random weights, the tokenizer of ENCODER and the data in the forms that
the scripts read. `run` runs the script unchanged, notes when each step ends, and prints one JSON
object: `wall` and `cpu`, seconds of the steps after the warm-up, and the script's own metrics. The
library evaluate, which would ask the Hub for each metric, is replaced by the metrics of the engine.
"""

import json
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

WARM_UP = 3  # steps that are not counted, as in bench.engine_run


def prepare(folder: Path, data: Path, encoder: Path) -> None:
    """Write the files that the scripts read into `folder`."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    tokenizer = hf.AutoTokenizer.from_pretrained(encoder)
    config = hf.DistilBertConfig(vocab_size=len(tokenizer))
    models = {
        "glue": hf.DistilBertForSequenceClassification(config),
        "qa": hf.DistilBertForQuestionAnswering(config),
        "clm": hf.GPT2LMHeadModel(hf.GPT2Config()),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for split in ("train", "validation"):
        for name in ("mrpc", "squad"):
            text = (data / name / f"{split}.jsonl").read_text(encoding="utf-8")
            if name == "squad":  # run_qa reads the field "data" of a document
                text = json.dumps({"data": [json.loads(line) for line in text.splitlines()]})
            (folder / f"{name}-{split}.json").write_text(text, encoding="utf-8")
    text = (data / "shakespeare/input.txt").read_text(encoding="utf-8")
    (folder / "shakespeare.txt").write_text(text, encoding="utf-8")


def run(script: str, words: list[str]) -> None:
    """Run a script and print the measurements."""
    from transformers import TrainerCallback, trainer

    times: list[tuple[float, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append((time.perf_counter(), time.process_time()))

    trainer.DEFAULT_CALLBACKS.append(Clock)
    sys.modules["evaluate"] = evaluate = ModuleType("evaluate")
    evaluate.load = Metric  # type: ignore[attr-defined]
    sys.argv = [script, *words]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    output = Path(words[words.index("--output_dir") + 1])
    results = json.loads((output / "all_results.json").read_text(encoding="utf-8"))
    (wall, cpu), (last_wall, last_cpu) = times[min(WARM_UP, len(times)) - 1], times[-1]
    counted = len(times) - WARM_UP
    found = {"wall": last_wall - wall, "cpu": last_cpu - cpu, "steps": counted, "results": results}
    print(json.dumps(found))


class Metric:
    """A stand-in for evaluate.load with the metrics of the three scripts."""

    def __init__(self, name: str, *_: Any, **__: Any) -> None:
        self._name = name

    def compute(self, predictions: Any, references: Any) -> dict[str, float]:
        """Return `accuracy`, or the metrics of `squad`."""
        if self._name == "accuracy":
            pairs = zip(predictions, references, strict=True)
            return {"accuracy": sum(a == b for a, b in pairs) / len(predictions)}
        from ftcluster_train.engine.tasks.squad.metrics import exact_match, squad_f1

        texts = {one["id"]: one["prediction_text"] for one in predictions}
        answers = [(texts[one["id"]], one["answers"]["text"]) for one in references]
        functions = {"exact_match": exact_match, "f1": squad_f1}
        return {
            name: 100 * sum(function(*pair) for pair in answers) / len(answers)
            for name, function in functions.items()
        }


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(*map(Path, sys.argv[2:5]))
    else:
        run(sys.argv[2], sys.argv[3:])
