"""The engine against transformers' Trainer, side by side on this machine.

    .venv-dev/bin/python -m bench.engine --data DIR --encoder DIR [CASE ...] [--turns N]
        [--ablation] [--profile] [--seeds N] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. DIR has the folders mrpc, squad and
shakespeare; --encoder is a small BERT with its tokenizer, such as all-MiniLM-L6-v2.

Both train the same model from the same weights on the same tokens with two threads; each run is a
process, runs are interleaved, numbers are medians. `stock` is Trainer with the defaults of
run_glue, run_qa and run_clm: padded to the maximum, fused AdamW. Both are in bf16 where the CPU has
instructions for it, else in fp32. `ours` runs with tcmalloc, as planned runs do. --ablation also
measures ours without each optimization and with each alone, --profile the time by kind of work and
its serial share; --seeds also fine-tunes the encoder with both and compares the metrics. --turns 0
leaves out the rest; two of these runs fit on two cores with --threads 1.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.job import Job

ROOT = Path(__file__).parent.parent
TCMALLOC = ("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "/usr/lib64/libtcmalloc.so.4")
WITHOUT = "ours, attention_dropout=false"
BF16 = ("amx_bf16", "avx512_bf16")  # CPU flags
INSTRUCTIONS = (*BF16, "avx512f", "avx2")
PROFILED_STEPS = 8  # the warm-up's and bench.engine_run's PROFILED, and one
OPTIMIZATIONS = (
    "dropout", "attention", "activations", "cross_entropy", "bf16_weights", "group_by_length",
    "tcmalloc",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A training to measure.

    Attributes:
        recipe: its name and overrides; {data} and {encoder} are folders.
        stock_steps: of stock; fewer, because its steps take longer.
        shapes: rows, inner size and columns of the model's matrix products, for the limit.
    """

    recipe: tuple[str, ...]
    steps: int
    stock_steps: int
    shapes: tuple[tuple[int, int, int], ...]


DISTILBERT = ("model=config:distilbert", "from_scratch=true", "tokenizer={encoder}")
CASES = {
    "mrpc": Case(
        ("mrpc", *DISTILBERT, "data={data}/mrpc", "batch_size=32"),
        13, 6, ((1728, 768, 768), (1728, 768, 3072), (1728, 3072, 768)),
    ),
    "squad": Case(
        ("squad", *DISTILBERT, "data={data}/squad", "batch_size=16"),
        11, 5, ((2736, 768, 768), (2736, 768, 3072), (2736, 3072, 768)),
    ),
    "gpt2": Case(
        ("gpt2", "tokenizer=null", "data={data}/shakespeare", "batch_size=4", "block_size=512",
         "training.gradient_accumulation_steps=1", "config_overrides={{vocab_size: 50257}}"),
        6, 5, ((2048, 768, 768), (2048, 768, 3072), (2048, 768, 50257)),
    ),
}  # fmt: skip
# A part of SQuAD that takes hours on two cores: 2,000 questions, features of 192 tokens.
TUNED = {
    "mrpc": ("mrpc", "model={encoder}", "data={data}/mrpc"),
    "squad": ("squad", "model={encoder}", "data={data}/squad", "batch_size=16", "max_length=192",
              "doc_stride=64", "training.learning_rate=3e-4"),
    # as for MRPC, which is as small as the part of QQP that is taken here
    "qqp": ("qqp", "model={encoder}", "data={data}/qqp", "batch_size=32",
            "training.learning_rate=1e-4"),
}  # fmt: skip
TUNED_ROWS = {"mrpc": 3668, "squad": 2000, "qqp": 6000}


def main() -> int:
    """Measure, print the tables and write the results; returns the exit code."""
    parser = arguments(__doc__, CASES, threads=2)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    bench = Bench(
        options.prefix, options.data.absolute(), options.encoder.absolute(), options.threads
    )
    with tempfile.TemporaryDirectory() as folder:
        results: dict[str, Any] = {"machine": machine(), "speed": {}, "quality": {}}
        for name in options.cases or CASES if options.turns else ():
            run_dir = bench.prepare(Path(folder) / name, CASES[name].recipe)
            results["speed"][name] = measure(
                bench, run_dir, CASES[name], options.turns, options.ablation, options.profile
            )
            print(table(name, results["speed"][name]), flush=True)
            write(options.results, results)
        chosen = [name for name in TUNED if name in (options.cases or CASES)]
        for name in chosen if options.seeds else ():
            shorter = replace(bench, data=first_rows(bench.data / name, Path(folder) / "data"))
            run_dir = shorter.prepare(Path(folder) / f"{name}-tuned", TUNED[name])
            for found in compare(shorter, run_dir, options.seeds):
                results["quality"][name] = found
                write(options.results, results)
            print(quality_table(name, results["quality"][name]), flush=True)
    return 0


def arguments(
    description: str | None, cases: Collection[str], threads: int
) -> argparse.ArgumentParser:
    """What the benchmarks of trainings have in common on their command lines."""

    def case(name: str) -> str:
        if name not in cases:
            raise argparse.ArgumentTypeError(f"no case {name}; there are {', '.join(cases)}")
        return name

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cases", nargs="*", type=case, metavar="CASE", help=", ".join(cases))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--prefix", type=Path, default=Path("/opt/ftcluster"))
    parser.add_argument("--results", type=Path)
    return parser


def first_rows(source: Path, folder: Path) -> Path:
    """Copy a case's data into `folder`, with the TUNED_ROWS first rows of its training split."""
    copy = folder / source.name
    shutil.copytree(source, copy)
    rows = (source / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "train.jsonl").write_text("".join(rows[: TUNED_ROWS[source.name]]), encoding="utf-8")
    return folder


def write(path: Path | None, results: dict[str, Any]) -> None:
    """Write what was measured so far."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Bench:
    """Runs trainings."""

    prefix: Path
    data: Path
    encoder: Path
    threads: int

    def prepare(self, run_dir: Path, recipe: tuple[str, ...]) -> Path:
        """Write a run's job.json into a new folder."""
        name, *overrides = (
            word.format(data=self.data, encoder=self.encoder) if "=" in word else word
            for word in recipe
        )
        job = Job(
            "bench", run_dir, self.prefix, load_recipe(name, overrides), precision(), ipex=False,
            snapshot_seconds=0,
        )  # fmt: skip
        run_dir.mkdir(parents=True)
        (run_dir / "job.json").write_text(json.dumps(job.to_dict()), encoding="utf-8")
        return run_dir

    def run(self, run_dir: Path, **options: Any) -> dict[str, Any]:
        """One training; see bench.engine_run."""
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": str(options.pop("threads", self.threads)),
        }
        if options.get("engine") == "ours":
            environment |= rank_variables("tcmalloc" not in options["leave_out"])
        options["leave_out"] = [n for n in options.get("leave_out", ()) if n != "tcmalloc"]
        return run_module("bench.engine_run", self.prefix, run_dir, options, environment)


def rank_variables(tcmalloc: bool = True) -> dict[str, str]:
    """Variables for memory that planned ranks have; without tcmalloc where it is not installed."""
    found = next((path for path in TCMALLOC if Path(path).exists()), None)
    of_tcmalloc = {"LD_PRELOAD": found, "TCMALLOC_RELEASE_RATE": "0"}
    return {"THP_MEM_ALLOC_ENABLE": "1"} | (of_tcmalloc if found and tcmalloc else {})


def run_module(
    module: str,
    prefix: Path,
    run_dir: Path,
    options: dict[str, Any],
    environment: dict[str, str],
) -> dict[str, Any]:
    """Run a module with the Python of the current stack; the last line that it prints, as JSON."""
    done = subprocess.run(
        [prefix / "current/bin/python", "-m", module, str(run_dir), json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    bench: Bench, run_dir: Path, case: Case, turns: int, ablation: bool, profile: bool
) -> dict[str, dict[str, Any]]:
    """Run each variant `turns` times, interleaved; the medians by name."""
    ours = {"engine": "ours", "leave_out": [], "attention_dropout": True, "steps": case.steps}
    variants: dict[str, dict[str, Any]] = {
        "stock": {"engine": "stock", "steps": case.stock_steps},
        "ours": ours,
        WITHOUT: {**ours, "attention_dropout": False},
    }
    if profile:
        variants["stock, one thread"] = {**variants["stock"], "threads": 1}
        variants["ours, one thread"] = {**ours, "threads": 1}
    if ablation:
        for one in OPTIMIZATIONS:
            variants[f"without {one}"] = {**ours, "leave_out": [one]}
        for one in OPTIMIZATIONS:
            others = [name for name in OPTIMIZATIONS if name != one]
            variants[f"{one} alone"] = {**ours, "leave_out": others}
        variants["none of them"] = {**ours, "leave_out": [*OPTIMIZATIONS]}
    found: dict[str, list[float]] = {}
    limits, flop = [], 0.0
    for _ in range(turns):
        for name, options in variants.items():
            words = bench.run(run_dir, **options)
            flop = words["flop_per_sample"]
            found.setdefault(name, []).append(words["samples_per_second"])
            print(f"{name}: {found[name][-1]:.2f} samples/s", file=sys.stderr)
        words = bench.run(run_dir, shapes=case.shapes, precision=precision())
        limits.append(words["operations_per_second"])
    limit, stock = statistics.median(limits), statistics.median(found["stock"])
    result: dict[str, dict[str, Any]] = {
        name: {
            "samples_per_second": statistics.median(speeds),
            "all": speeds,
            "ratio": statistics.median(speeds) / stock,
            "share_of_limit": statistics.median(speeds) * flop / limit,
        }
        for name, speeds in found.items()
    }
    for name in ("stock", "ours") if profile else ():
        alone = result[f"{name}, one thread"]["samples_per_second"]
        # Amdahl: two threads take (1 + serial) / 2 of the time of one
        result[name]["serial_share"] = 2 * alone / result[name]["samples_per_second"] - 1
        result[name]["profile"] = bench.run(
            run_dir, **{**variants[name], "steps": PROFILED_STEPS}, profile=True
        )["profile"]
    result["limit"] = {"operations_per_second": limit}
    return result


def compare(bench: Bench, run_dir: Path, seeds: int) -> Iterator[dict[str, dict[str, list[float]]]]:
    """The metrics of each variant, one value per seed; yields them after each seed."""
    variants: dict[str, dict[str, Any]] = {
        "stock": {"engine": "stock", "pad": "longest"},
        "ours": {"engine": "ours", "leave_out": [], "attention_dropout": True},
        WITHOUT: {"engine": "ours", "leave_out": [], "attention_dropout": False},
    }
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(1, seeds + 1):
        for name, options in variants.items():
            metrics = bench.run(run_dir, **options, seed=seed, evaluate=True)["metrics"]
            for metric, value in metrics.items():
                found.setdefault(name, {}).setdefault(metric, []).append(value)
            print(f"{name}, seed {seed}: {metrics}", file=sys.stderr, flush=True)
        yield found


def quality_table(case: str, found: dict[str, dict[str, list[float]]]) -> str:
    """Mean and standard deviation of each metric as a Markdown table."""
    metrics = list(found["stock"])
    lines = ["", f"| {case} | {' | '.join(metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    for name, values in found.items():
        cells = (
            f"{statistics.mean(values[m]):.3f} ± {statistics.stdev(values[m]):.3f}"
            if len(values[m]) > 1
            else f"{values[m][0]:.3f}"
            for m in metrics
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(case: str, found: dict[str, dict[str, Any]]) -> str:
    """The variants of a case as a Markdown table."""
    lines = [
        "",
        f"| {case} | samples/s | ratio to stock | share of the products' limit |",
        "|---|---|---|---|",
    ]
    for name, numbers in found.items():
        if "ratio" in numbers:
            lines.append(
                f"| {name} | {numbers['samples_per_second']:.2f} | {numbers['ratio']:.2f} "
                f"| {numbers['share_of_limit']:.0%} |"
            )
    for name, numbers in found.items():
        if "serial_share" in numbers:
            lines.append(f"\nserial share of a step, {name}: {numbers['serial_share']:.0%}")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """CPU and load of this machine."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(.*?)\s*: (.*)$", info, re.MULTILINE))
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cpu": fields.get("model name", ""),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [f for f in INSTRUCTIONS if f in fields.get("flags", "")],
        "load": os.getloadavg()[0],
    }


def precision() -> str:
    """What a training on this machine computes in, where nothing else is asked for."""
    return "bf16" if {*BF16} & {*machine()["instructions"]} else "fp32"


if __name__ == "__main__":
    sys.exit(main())
