"""Compares transformers' run_glue on two ranks of this machine over each backend.

    .venv-dev/bin/python -m bench.script_backends --scripts DIR --data DIR --encoder DIR [--turns N]
        [--steps N] [--prefix DIR] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. --scripts has run_glue.py; --data and
--encoder are the same as for bench.engine. The script is unchanged, with `--ddp_backend` for each
backend: DistilBERT-base with random weights on MRPC, padded to 128 tokens, Trainer's own
    DistributedDataParallel with buckets of 25 MB. A run is all of its steps; runs are interleaved.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.fast import BF16_WORDS, SCRIPTS, WORDS
from bench.machines import precision
from bench.runs import ROOT, environment, machine, write

BACKENDS = ("gloo", "impi")
RANKS = 2
# replaces the library, which would ask the Hub for a metric that the training does not need
EVALUATE = "def load(*_, **__):\n    return None\n"


def one_run(folder: Path, backend: str, steps: int) -> dict[str, float]:
    """Return the samples per second of a run, and the seconds of a step.

    Raises:
        SystemExit: the run failed, or had another backend.
    """
    case = SCRIPTS["glue"]
    words = [str(folder / word) if word.endswith(".json") else word for word in case.words]
    done = subprocess.run(
        [
            ROOT / ".venv/bin/ftcluster", "run", "--json", "--ranks-per-host",
            str(RANKS), "--", folder / "script" / case.script, "--model_name_or_path",
            folder / "glue", *words, *WORDS, *BF16_WORDS[precision()], "--max_steps", str(steps),
            "--per_device_train_batch_size", str(case.batch // RANKS), "--ddp_backend", backend,
            "--output_dir", "out",
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    if result.get("backend") != backend:
        raise SystemExit(f"{backend}: {result}")
    out = Path(result["logs"]).with_name("script") / "out/train_results.json"
    found = json.loads(out.read_text(encoding="utf-8"))
    return {
        "samples_per_second": found["train_samples_per_second"],
        "seconds_of_a_step": found["train_runtime"] / steps,
    }


def main() -> int:
    """Measure, print a table and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--scripts", "--data", "--encoder"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--prefix", type=Path, default=Path("/opt/ftcluster"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "machine": machine(options.prefix, 1), "ranks": RANKS, "steps": options.steps,
        "precision": precision(), "runs": {backend: [] for backend in BACKENDS},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            [
                options.prefix / "current/bin/python", "-m", "bench.fast_run", "prepare", folder,
                options.data.absolute(), options.encoder.absolute(),
            ],
            env=environment(1), cwd=ROOT, check=True,
        )  # fmt: skip
        (folder / "script").mkdir()
        shutil.copy(options.scripts / SCRIPTS["glue"].script, folder / "script")
        (folder / "script/evaluate.py").write_text(EVALUATE, encoding="utf-8")
        folder.chmod(0o755)
        for _ in range(options.turns):
            for backend in BACKENDS:
                one = one_run(folder, backend, options.steps)
                results["runs"][backend].append(one)
                print(f"{backend}: {one['samples_per_second']:.2f} samples/s", file=sys.stderr)
                write(options.results, results)
    for backend, runs in results["runs"].items():
        rates = [run["samples_per_second"] for run in runs]
        seconds = statistics.median(run["seconds_of_a_step"] for run in runs)
        print(
            f"{backend}: {statistics.median(rates):.2f} samples/s ({min(rates):.2f} to "
            f"{max(rates):.2f} in {len(rates)} runs), {1000 * seconds:.0f} ms a step"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
