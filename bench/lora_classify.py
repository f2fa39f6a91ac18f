"""Classification with low-rank adapters: memory, speed and metric, against full fine-tuning.

    .venv-dev/bin/python -m bench.lora_classify --data DIR --encoder DIR [VARIANT ...] [--site DIR]
        [--turns N] [--steps N] [--epochs N] [--llm DIR] [--llm-epochs N] [--threads N]
        [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR of --data has the folder mrpc; --encoder is a small BERT with its tokenizer, such as
all-MiniLM-L6-v2. Speed and memory are measured with BERT-base's shape and random weights, in
batches of 32 pairs. Turns of all variants alternate, results are medians, and ratios are relative
to full fine-tuning by the engine. `--turns 0` skips these measurements. Variants of peft need
--site, a folder with peft beside the stack's torch, and train by Trainer with batches grouped by
length. Each training is a process of `engine_run`.

With --epochs, a DistilBERT with the encoder's weights (`bench.distilbert`) is trained on MRPC and
evaluated; with --llm, a decoder with adapters, for --llm-epochs. The results have the metrics and
the memory peak of each training.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.runs import Bench, arguments, environment, machine, run_module, write

ALL_WEIGHTS = "all weights"
LORA = ("lora_r=16",)
OURS, PEFT = {"engine": "ours"}, {"engine": "stock", "tuned": True}
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    ALL_WEIGHTS: ((), OURS),
    "LoRA": (LORA, OURS),
    "DoRA": ((*LORA, "use_dora=true"), OURS),
    "all weights, Trainer": ((), PEFT),
    "LoRA, Trainer and peft": (LORA, PEFT),
    "DoRA, Trainer and peft": ((*LORA, "use_dora=true"), PEFT),
}
# trainings whose metric is measured: model, further arguments
PRETRAINED: dict[str, tuple[str, tuple[str, ...]]] = {
    "DistilBERT, all weights": ("{encoder}/distilbert", ("learning_rate=1e-4",)),
    "DistilBERT, LoRA": ("{encoder}/distilbert", (*LORA, "learning_rate=2e-3")),
    "LLM, LoRA": ("{llm}", (*LORA, "learning_rate=5e-4")),
}
FACTS = ("samples_per_second", "samples_per_cpu_second", "peak_bytes")
RANDOM_BERT = """
import sys, torch
from transformers import AutoTokenizer, BertConfig, BertModel
torch.manual_seed(0)
BertModel(BertConfig()).save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
"""


def main() -> int:
    """Measure, print the table and write the results; returns the exit code."""
    parser = arguments(__doc__, VARIANTS, threads=2)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=0)
    parser.add_argument("--llm", type=Path)
    parser.add_argument("--llm-epochs", type=float, default=1)
    options = parser.parse_args()
    names = options.cases or [
        name for name in VARIANTS if options.site or VARIANTS[name][1] is OURS
    ]
    of_machine = machine(options.prefix, options.threads, options.site)
    results: dict[str, Any] = {"machine": of_machine, "batch": 32, "lora_r": 16}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        encoder = folder / "encoder"
        shutil.copytree(options.encoder, encoder)
        bench = Bench(options.prefix, options.data.absolute(), encoder, options.threads)
        if options.turns:
            make_bert(bench, folder / "bert")
            results["speed"] = speeds(bench, folder, names, options)
            write(options.results, results)
        if options.epochs:
            run_python(bench, "-m", "bench.distilbert", encoder)
        for name, (model, overrides) in PRETRAINED.items():
            is_llm = model == "{llm}"
            epochs = options.llm_epochs if is_llm else options.epochs
            if not epochs or (is_llm and not options.llm):
                continue
            path = Path(model.format(encoder=encoder, llm=options.llm)).absolute()
            words = (f"num_train_epochs={epochs}", *overrides)
            results.setdefault("metrics", {})[name] = measured(bench, folder / name, path, words)
            write(options.results, results)
    for name, row in results.get("speed", {}).items():
        print(
            f"{name:24} {row['samples_per_cpu_second']:8.2f} samples/s of CPU"
            f" ({row['samples_per_cpu_second_ratio']:.2f}), {row['peak_bytes'] / 1e9:6.2f} GB"
            f" ({row['peak_bytes_ratio']:.2f})"
        )
    for name, row in results.get("metrics", {}).items():
        shown = ", ".join(f"{metric} {row[metric]:.3f}" for metric in ("accuracy", "f1"))
        print(f"{name:24} {shown}, {row['peak_bytes'] / 1e9:6.2f} GB")
    return 0


def speeds(bench: Bench, folder: Path, names: Sequence[str], options: Any) -> dict[str, Any]:
    """Return speed and memory of the variants, whose turns alternate."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.turns):
        for name in names:
            overrides, engine = VARIANTS[name]
            run_dir = folder / f"speed-{names.index(name)}-{turn}"
            run = trained(
                bench, run_dir, folder / "bert", overrides, options.site,
                **engine, steps=options.steps,
            )  # fmt: skip
            turns[name].append(run)
            print(f"{name}: {run['samples_per_second']:.1f} samples/s", file=sys.stderr)
    return summary(turns)


def measured(bench: Bench, run_dir: Path, model: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Train a pretrained model; return its metrics on the validation set and its memory peak."""
    run = trained(bench, run_dir, model, overrides, **OURS, evaluate=True)
    facts = {name: run[name] for name in ("steps", "peak_bytes")}
    return {"recipe": " ".join(overrides), **facts, **run["metrics"]}


def make_bert(bench: Bench, folder: Path) -> None:
    """Write a model of BERT-base's shape with random weights and the encoder's tokenizer."""
    run_python(bench, "-c", RANDOM_BERT, bench.encoder, folder)


def run_python(bench: Bench, *arguments: Any) -> None:
    """Run the Python of the stack."""
    program = [bench.prefix / "current/bin/python", *arguments]
    subprocess.run(program, env=environment(bench.threads), check=True, capture_output=True)


def trained(
    bench: Bench, run_dir: Path, model: Path, overrides: Sequence[str], site: Path | None = None,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train once on MRPC; return the measurements."""
    bench.prepare(run_dir, ("mrpc", f"model={model}", "data={data}/mrpc", *overrides))
    variables = environment(bench.threads, tcmalloc=True, site=site)
    return run_module("bench.engine_run", bench.prefix, run_dir, options, variables)


def summary(turns: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return each variant's medians, and its ratios to the first variant in the same turn."""
    first = next(iter(turns.values()))
    medians: dict[str, dict[str, Any]] = {}
    for name, runs in turns.items():
        pairs = list(zip(runs, first, strict=True))
        medians[name] = {fact: statistics.median(run[fact] for run in runs) for fact in FACTS}
        for fact in FACTS:
            medians[name][f"{fact}_ratio"] = statistics.median(
                run[fact] / baseline[fact] for run, baseline in pairs
            )
        medians[name]["all"] = [{fact: run[fact] for fact in FACTS} for run in runs]
    return medians


if __name__ == "__main__":
    sys.exit(main())
