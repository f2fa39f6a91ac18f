"""Stock example scripts of transformers alone and with `--fast`, side by side on this machine.

    .venv-dev/bin/python -m bench.fast --scripts DIR --data DIR --encoder DIR [CASE ...] [--turns N]
        [--seeds N] [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. --scripts has run_glue.py, run_qa.py
with its two modules and run_clm.py, of the version of transformers in the stack or the one before;
--data and --encoder are the same as for bench.engine.

The scripts run unchanged, with --bf16 if the CPU has instructions for it. Each run is a process of
bench.fast_run, runs are interleaved, and results are medians. `alone` is python SCRIPT. `allocator`
adds tcmalloc, which `ftcluster run` always uses, and `fast` adds tcmalloc and our kernels. `tuned`
and `tuned, fast` are the same as `allocator` and `fast`, but the script pads batches to their
longest sample and groups them by length if it has such options. CPU seconds are printed too,
because with one thread other programs on the machine change them less. The rate of the model's
matmuls is measured in each turn. --seeds fine-tunes the encoder by run_glue with and without our
kernels, and compares the metrics.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.engine import CASES
from bench.machines import precision
from bench.quality import quality_table
from bench.runs import ROOT, arguments, environment, machine, write
from ftcluster_common.protocol.launch import FAST_VARIABLE

STARTUP = ROOT / "train/ftcluster_train/startup"
WORDS = (
    "--do_train", "--use_cpu", "--report_to", "none", "--save_strategy", "no",
    "--logging_strategy", "no", "--disable_tqdm", "true",
)  # fmt: skip
BF16_WORDS = {"bf16": ("--bf16",), "fp32": ()}
LONGEST = ("--pad_to_max_length", "false", "--train_sampling_strategy", "group_by_length")
SHAPES = {"glue": "mrpc", "qa": "squad", "clm": "gpt2"}  # the cases of bench.engine


@dataclass(frozen=True)
class Case:
    """A script with its arguments, whose files are in the current folder.

    Attributes:
        tuned: further arguments of the script that make it faster.
    """

    script: str
    words: tuple[str, ...]
    batch: int
    steps: int
    tuned: tuple[str, ...] = ()

    def variants(self) -> dict[str, "Variant"]:
        """Return the variants by name."""
        plain = {"alone": Variant(), "allocator": Variant(True), "fast": Variant(True, True)}
        if not self.tuned:
            return plain
        tuned = Variant(True, words=self.tuned)
        return plain | {"tuned": tuned, "tuned, fast": replace(tuned, fast=True)}


@dataclass(frozen=True)
class Variant:
    """A way to run a script."""

    allocator: bool = False
    fast: bool = False
    words: tuple[str, ...] = ()


SCRIPTS = {
    "glue": Case(
        "run_glue.py",
        ("--train_file", "mrpc-train.json", "--validation_file", "mrpc-validation.json",
         "--max_seq_length", "128", "--learning_rate", "1e-4"),
        32, 6, LONGEST,
    ),
    "qa": Case(
        "run_qa.py",
        ("--train_file", "squad-train.json", "--validation_file", "squad-validation.json",
         "--max_seq_length", "384", "--doc_stride", "128", "--max_train_samples", "400"),
        16, 6, LONGEST,
    ),
    "clm": Case("run_clm.py", ("--train_file", "shakespeare.txt", "--block_size", "512"), 4, 6),
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Runs the scripts in `folder`."""

    folder: Path
    scripts: Path
    prefix: Path
    threads: int

    def process(self, *words: str, allocator: bool = False, fast: bool = False) -> str:
        """Return the output of a module of bench, run by the stack's Python."""
        variables = environment(self.threads, allocator, STARTUP)
        variables["HF_HOME"] = str(self.folder / "cache")
        if fast:
            variables[FAST_VARIABLE] = "1"
        done = subprocess.run(
            [self.prefix / "current/bin/python", "-m", *words],
            env=variables, cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        for line in done.stderr.splitlines():
            if line.startswith("fast: "):
                print(line, file=sys.stderr)
        return done.stdout

    def run(self, name: str, variant: str, *more: str, model: str = "") -> dict[str, Any]:
        """Run a case's script once; see bench.fast_run."""
        case = SCRIPTS[name]
        way = case.variants()[variant]
        with tempfile.TemporaryDirectory() as output:
            out = self.process(
                "bench.fast_run", "run", str(self.scripts / case.script),
                "--model_name_or_path", model or name, *case.words, *WORDS,
                *BF16_WORDS[precision()], "--per_device_train_batch_size", str(case.batch),
                *way.words, *more,
                "--output_dir", f"{output}/out",
                allocator=way.allocator, fast=way.fast,
            )  # fmt: skip
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def products(self, name: str) -> float:
        """Return the operations per second of the matmuls of a case's model."""
        shapes = CASES[SHAPES[name]].shapes
        options = {"shapes": shapes, "precision": precision()}
        out = self.process("bench.engine_run", ".", json.dumps(options))
        found: float = json.loads(out)["operations_per_second"]
        return found


def main() -> int:
    """Measure, print the tables and write the results; return the exit code."""
    parser = arguments(__doc__, SCRIPTS, threads=2)
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    encoder = options.encoder.absolute()
    of_machine = machine(options.prefix, options.threads)
    results: dict[str, Any] = {"machine": of_machine, "speed": {}, "quality": {}}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder), options.scripts.absolute(), options.prefix.absolute(), options.threads
        )
        data = options.data.absolute()
        bench.process("bench.fast_run", "prepare", folder, str(data), str(encoder))
        for name in options.cases or SCRIPTS if options.turns else ():
            results["speed"][name] = measure(bench, name, options.turns)
            print(table(name, results["speed"][name]), flush=True)
            write(options.results, results)
        quality: dict[str, dict[str, list[float]]] = {}
        for seed in range(1, options.seeds + 1):
            for title, variant in (("stock", "alone"), ("fast", "fast")):
                more = ("--do_eval", "--num_train_epochs", "3", "--seed", str(seed))
                more += ("--max_seq_length", "64")  # halves the time
                found = bench.run("glue", variant, *more, model=str(encoder))["results"]
                for metric in ("eval_accuracy", "eval_loss"):
                    quality.setdefault(title, {}).setdefault(metric, []).append(found[metric])
                print(f"{title}, seed {seed}: {found}", file=sys.stderr, flush=True)
            results["quality"]["glue"] = quality
            write(options.results, results)
        if quality:
            print(quality_table("glue", quality), flush=True)
    return 0


def measure(bench: Bench, name: str, turns: int) -> dict[str, Any]:
    """Run each variant `turns` times, interleaved; return the medians and all values."""
    found: dict[str, dict[str, list[float]]] = {
        variant: {"samples_per_second": [], "cpu_seconds_of_a_step": []}
        for variant in SCRIPTS[name].variants()
    }
    rates = []
    for _ in range(turns):
        rates.append(bench.products(name))
        for variant, numbers in found.items():
            steps = str(SCRIPTS[name].steps)
            one = bench.run(name, variant, "--max_steps", steps)
            samples = one["steps"] * SCRIPTS[name].batch
            numbers["samples_per_second"].append(samples / one["wall"])
            numbers["cpu_seconds_of_a_step"].append(one["cpu"] / one["steps"])
            print(f"{name}, {variant}: {samples / one['wall']:.2f} samples/s", file=sys.stderr)
    alone = {key: statistics.median(all_) for key, all_ in found["alone"].items()}
    variants = {}
    for variant, numbers in found.items():
        speed, cpu = (statistics.median(numbers[key]) for key in alone)
        variants[variant] = {
            "samples_per_second": speed,
            "ratio": speed / alone["samples_per_second"],
            "cpu_seconds_of_a_step": cpu,
            "cpu_ratio": alone["cpu_seconds_of_a_step"] / cpu,
            "all": numbers,
        }
    return {"variants": variants, "products_per_second": rates}


def table(name: str, found: dict[str, Any]) -> str:
    """Format the variants of a case as a Markdown table."""
    rates = " to ".join(f"{rate / 1e12:.2f}" for rate in sorted(found["products_per_second"])[::2])
    lines = [
        "",
        f"| {SCRIPTS[name].script} (products: {rates} TFLOP/s) | samples/s | ratio "
        "| CPU seconds of a step | ratio |",
        "|---|---|---|---|---|",
    ]
    for variant, numbers in found["variants"].items():
        lines.append(
            f"| {variant} | {numbers['samples_per_second']:.2f} | {numbers['ratio']:.2f} "
            f"| {numbers['cpu_seconds_of_a_step']:.2f} | {numbers['cpu_ratio']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
