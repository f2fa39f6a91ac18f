"""The engine against transformers' Trainer, side by side on this machine.

    .venv-dev/bin/python -m bench.engine --data DIR --encoder DIR [CASE ...] [--turns N] [--steps N]
        [--variants NAME ...] [--precision fp32] [--ablation] [--profile] [--threads N]
        [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR has the folders mrpc, squad and shakespeare; ner predicts which words of mrpc's
sentences have capital letters, and mlm trains on shakespeare. --encoder is a small BERT with its
tokenizer, such as all-MiniLM-L6-v2.

All variants train the same model from the same weights on the same samples with two threads. Each
run is a process, runs are interleaved, and results are medians. `stock` is Trainer with the
defaults of run_glue, run_ner, run_qa, run_mlm and run_clm, which pad to the maximum. `tuned` is
Trainer with its best options: batches padded to their longest sample and grouped by length, and
tcmalloc. Both use fused AdamW, and bf16 if the CPU has instructions for it. `ours` runs with
tcmalloc, as planned runs do. If batches differ in length, each speed is converted to an epoch's
mean batch (`length_share`). --variants leaves out the others. --ablation also measures ours without
each optimization and with each alone, and `tuned` in fp32. --profile also measures the time by
category (bench.step_profile) and its serial share. `--turns 1 --steps 6` takes minutes.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machines import precision
from bench.runs import Bench, arguments, machine, write

RATIOS = {"ratio": "stock", "ratio_to_tuned": "tuned"}
VARIANTS = ("stock", "tuned", "ours")
WITHOUT = "ours, attention_dropout=false"
OPTIMIZATIONS = (
    "dropout", "attention", "activations", "cross_entropy", "bf16_weights", "group_by_length",
    "tcmalloc",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A training to measure.

    Attributes:
        recipe: name and overrides of the recipe; {data} and {encoder} are folders.
        stock_steps: steps of the stock training; fewer, because they take longer.
        shapes: rows, inner size and columns of the model's matrix multiplications, for the limit.
    """

    recipe: tuple[str, ...]
    steps: int
    stock_steps: int
    shapes: tuple[tuple[int, int, int], ...]


BERT = ("model=config:bert", "from_scratch=true", "tokenizer={encoder}")
LARGE = (
    "{{hidden_size: 1024, num_hidden_layers: 24, num_attention_heads: 16, intermediate_size: 4096}}"
)
DISTILBERT = ("model=config:distilbert", "from_scratch=true", "tokenizer={encoder}")
CASES = {
    "mrpc": Case(
        ("mrpc", *DISTILBERT, "data={data}/mrpc", "batch_size=32"),
        13, 6, ((1728, 768, 768), (1728, 768, 3072), (1728, 3072, 768)),
    ),
    # the models of recipes for which others have published times
    "mrpc-bert": Case(
        ("mrpc", *BERT, "data={data}/mrpc", "batch_size=32"),
        9, 5, ((1728, 768, 768), (1728, 768, 3072), (1728, 3072, 768)),
    ),
    "squad-bert-large": Case(
        ("squad", *BERT, f"config_overrides={LARGE}", "data={data}/squad", "batch_size=12"),
        5, 4, ((2052, 1024, 1024), (2052, 1024, 4096), (2052, 4096, 1024)),
    ),
    "squad": Case(
        ("squad", *DISTILBERT, "data={data}/squad", "batch_size=16"),
        11, 5, ((2736, 768, 768), (2736, 768, 3072), (2736, 3072, 768)),
    ),
    "ner": Case(
        ("ner", *DISTILBERT, "data={tagged}", "data_config=null", "batch_size=32"),
        13, 6, ((1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768)),
    ),
    "mlm": Case(
        ("mlm", *DISTILBERT, "data={data}/shakespeare", "data_config=null", "batch_size=8"),
        9, 5, ((2048, 768, 768), (2048, 768, 3072), (2048, 3072, 768), (307, 768, 30522)),
    ),
    "gpt2": Case(
        ("gpt2", "tokenizer=null", "data={data}/shakespeare", "batch_size=4", "block_size=512",
         "training.gradient_accumulation_steps=1", "config_overrides={{vocab_size: 50257}}"),
        6, 5, ((2048, 768, 768), (2048, 768, 3072), (2048, 768, 50257)),
    ),
    # T5-small generates the question from a context
    "seq2seq": Case(
        ("seq2seq", "model=config:t5", "from_scratch=true", "tokenizer={encoder}",
         "data={data}/squad", "source_column=context", "target_column=question", "batch_size=16",
         "max_source_length=256", "max_target_length=32", "predict_with_generate=false",
         "config_overrides={{decoder_start_token_id: 0}}"),
        11, 6, ((2400, 512, 512), (2400, 512, 2048), (2400, 2048, 512)),
    ),
}  # fmt: skip


def main() -> int:
    """Measure, print the tables and write the results; return the exit code."""
    parser = arguments(__doc__, CASES, threads=2)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, help="maximum number of steps in each run; at least 4")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=precision())
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    bench = Bench(
        options.prefix, options.data.absolute(), options.encoder.absolute(), options.threads
    )
    with tempfile.TemporaryDirectory() as folder:
        of_machine = {**machine(options.prefix, options.threads), "precision": options.precision}
        results: dict[str, Any] = {"machine": of_machine, "speed": {}}
        tagged = write_tagged(options.data / "mrpc/train.jsonl", Path(folder) / "tagged")
        for name in options.cases or CASES:
            case = CASES[name]
            recipe = tuple(word.replace("{tagged}", str(tagged)) for word in case.recipe)
            run_dir = bench.prepare(Path(folder) / name, recipe)
            chosen = {
                variant: {"precision": options.precision, **of}
                for variant, of in variants(
                    case, options.steps, options.ablation, options.profile
                ).items()
                if variant not in VARIANTS or variant in options.variants
            }
            found = measure(bench, run_dir, case, chosen, options.turns)
            if options.profile:
                add_profiles(bench, run_dir, chosen, found)
            results["speed"][name] = found
            print(table(name, found), flush=True)
            write(options.results, results)
    return 0


def write_tagged(pairs: Path, folder: Path) -> Path:
    """Write sentences as words for training, with tags for words with a capital letter."""
    folder.mkdir()
    with pairs.open(encoding="utf-8") as lines, (folder / "train.jsonl").open("w") as file:
        for line in lines:
            words = json.loads(line)["sentence1"].split()
            tags = ["B-NAME" if word[:1].isupper() else "O" for word in words]
            file.write(json.dumps({"tokens": words, "tags": tags}) + "\n")
    return folder


def variants(
    case: Case, most_steps: int | None, ablation: bool, profile: bool
) -> dict[str, dict[str, Any]]:
    """Return the variants by name: arguments of `Bench.run`."""

    def of_engine(*leave_out: str) -> dict[str, Any]:
        names = [name for name in leave_out if name != "tcmalloc"]
        tcmalloc = "tcmalloc" not in leave_out
        return {"engine": "ours", "steps": steps, "leave_out": names, "tcmalloc": tcmalloc}

    steps, stock_steps = (
        min(count, most_steps or count) for count in (case.steps, case.stock_steps)
    )
    tuned = {"engine": "stock", "steps": steps, "tuned": True, "tcmalloc": True}
    found: dict[str, dict[str, Any]] = {
        "stock": {"engine": "stock", "steps": stock_steps},
        "tuned": tuned,
        "ours": of_engine(),
    }
    if profile:
        for name in VARIANTS:
            found[f"{name}, one thread"] = {**found[name], "threads": 1}
    if ablation:
        found["tuned, fp32"] = {**tuned, "precision": "fp32"}
        found[WITHOUT] = {**of_engine(), "attention_dropout": False}
        for one in OPTIMIZATIONS:
            found[f"without {one}"] = of_engine(one)
        for one in OPTIMIZATIONS:
            found[f"{one} alone"] = of_engine(*(name for name in OPTIMIZATIONS if name != one))
        found["none of them"] = of_engine(*OPTIMIZATIONS)
    return found


def measure(
    bench: Bench,
    run_dir: Path,
    case: Case,
    chosen: dict[str, dict[str, Any]],
    turns: int,
) -> dict[str, dict[str, Any]]:
    """Run each variant `turns` times, interleaved; return the medians by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(turns):
        for name, options in chosen.items():
            found.setdefault(name, []).append(bench.run(run_dir, limit=case.shapes, **options))
            speed = found[name][-1]["samples_per_second"]
            print(f"{name}: {speed:.2f} samples/s", file=sys.stderr)
    speeds = {name: [one["samples_per_second"] for one in runs] for name, runs in found.items()}
    medians = {name: statistics.median(of) for name, of in speeds.items()}
    result: dict[str, dict[str, Any]] = {
        name: {
            "samples_per_second": medians[name],
            "all": speeds[name],
            "length_share": runs[0]["length_share"],
            **{
                ratio: medians[name] / medians[other] if other in medians else None
                for ratio, other in RATIOS.items()
            },
            "share_of_limit": statistics.median(
                run["samples_per_second"] * run["flop_per_sample"] / run["limit"] for run in runs
            ),
        }
        for name, runs in found.items()
    }
    limits = [run["limit"] for runs in found.values() for run in runs]
    result["limit"] = {"operations_per_second": statistics.median(limits)}
    return result


def add_profiles(
    bench: Bench, run_dir: Path, chosen: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]
) -> None:
    """Add the parts of a step's time to the results."""
    for name in [name for name in VARIANTS if name in chosen]:
        alone = found[f"{name}, one thread"]["samples_per_second"]
        # Amdahl's law: two threads take (1 + serial) / 2 of one thread's time
        found[name]["serial_share"] = 2 * alone / found[name]["samples_per_second"] - 1
        found[name]["profile"] = bench.run(run_dir, **chosen[name], profile=True)["profile"]


def table(case: str, found: dict[str, dict[str, Any]]) -> str:
    """Format the variants of a case as a Markdown table."""
    lines = [
        "",
        f"| {case} | samples/s | ratio to tuned | ratio to stock | share of the matmul limit |",
        "|---|---|---|---|---|",
    ]
    for name, numbers in found.items():
        if "ratio" in numbers:
            tuned, stock = (
                f"{numbers[ratio]:.2f}" if numbers[ratio] else ""
                for ratio in ("ratio_to_tuned", "ratio")
            )
            lines.append(
                f"| {name} | {numbers['samples_per_second']:.2f} | {tuned} | {stock} "
                f"| {numbers['share_of_limit']:.0%} |"
            )
    for name, numbers in found.items():
        if "serial_share" in numbers:
            lines.append(f"\nserial share of a step, {name}: {numbers['serial_share']:.0%}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
