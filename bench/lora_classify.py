"""Classification with low-rank adapters: memory, speed and metric, against full fine-tuning.

    .venv-dev/bin/python -m bench.lora_classify --data DIR --encoder DIR [VARIANT ...] [--site DIR]
        [--turns N] [--steps N] [--epochs N] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR of --data has the folder mrpc; --encoder is a small BERT with its tokenizer, such as
all-MiniLM-L6-v2. Speed and memory are measured with BERT-base's shape and random weights, in
batches of 32 pairs. Turns of all variants alternate, results are medians, and ratios are relative
to full fine-tuning by the engine. With --epochs the encoder itself is trained too, and evaluated.
Variants of peft need --site, a folder with peft beside the stack's torch, and train by Trainer with
batches grouped by length. Each training is a process of `engine_run`.
"""

import statistics
import subprocess
import sys
import tempfile
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
RATES = {ALL_WEIGHTS: "learning_rate=5e-5"}  # adapters take a larger one
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
    parser.add_argument("--epochs", type=int, default=0)
    options = parser.parse_args()
    names = options.cases or [
        name for name in VARIANTS if options.site or VARIANTS[name][1] is OURS
    ]
    encoder = options.encoder.absolute()
    of_machine = machine(options.prefix, options.threads, options.site)
    results: dict[str, Any] = {"machine": of_machine, "batch": 32, "lora_r": 16}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bench = Bench(options.prefix, options.data.absolute(), encoder, options.threads)
        make_bert(bench, folder / "bert")
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for turn in range(options.turns):
            for name in names:
                run_dir = folder / f"speed-{names.index(name)}-{turn}"
                found = trained(
                    bench, run_dir, name, folder / "bert", options.site, steps=options.steps
                )
                turns[name].append(found)
                print(f"{name}: {found['samples_per_second']:.1f} samples/s", file=sys.stderr)
        results["speed"] = summary(turns)
        write(options.results, results)
        for name in names if options.epochs else ():
            recipe = (f"num_train_epochs={options.epochs}", RATES.get(name, "learning_rate=5e-4"))
            run_dir = folder / f"metric-{names.index(name)}"
            found = trained(bench, run_dir, name, encoder, options.site, recipe, evaluate=True)
            results.setdefault("metrics", {})[name] = found["metrics"]
            write(options.results, results)
    for name, row in results["speed"].items():
        metric = results.get("metrics", {}).get(name, {}).get("accuracy", "")
        print(
            f"{name:24} {row['samples_per_cpu_second']:8.2f} samples/s of CPU"
            f" ({row['samples_per_cpu_second_ratio']:.2f}), {row['peak_bytes'] / 1e9:6.2f} GB"
            f" ({row['peak_bytes_ratio']:.2f}) {metric}"
        )
    return 0


def make_bert(bench: Bench, folder: Path) -> None:
    """Write a model of BERT-base's shape with random weights and the encoder's tokenizer."""
    program = [bench.prefix / "current/bin/python", "-c", RANDOM_BERT, bench.encoder, folder]
    subprocess.run(program, env=environment(bench.threads), check=True, capture_output=True)


def trained(
    bench: Bench, run_dir: Path, name: str, model: Path, site: Path | None,
    recipe: tuple[str, ...] = (), **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train a variant once; return the measurements."""
    overrides, engine = VARIANTS[name]
    bench.prepare(run_dir, ("mrpc", f"model={model}", "data={data}/mrpc", *recipe, *overrides))
    variables = environment(bench.threads, tcmalloc=True, site=site)
    return run_module("bench.engine_run", bench.prefix, run_dir, {**engine, **options}, variables)


def summary(turns: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return each variant's medians, and its ratios to the first variant in the same turn."""
    first = next(iter(turns.values()))
    found: dict[str, dict[str, Any]] = {}
    for name, runs in turns.items():
        pairs = list(zip(runs, first, strict=True))
        found[name] = {fact: statistics.median(run[fact] for run in runs) for fact in FACTS}
        for fact in FACTS:
            found[name][f"{fact}_ratio"] = statistics.median(
                run[fact] / one[fact] for run, one in pairs
            )
        found[name]["all"] = [{fact: run[fact] for fact in FACTS} for run in runs]
    return found


if __name__ == "__main__":
    sys.exit(main())
