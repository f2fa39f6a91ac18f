"""The time of a training step by category, for each training of the speed tables.

    .venv-dev/bin/python -m bench.profile [CASE ...] --data DIR --encoder DIR [--precision fp32]
        [--threads N] [--prefix DIR] [--results FILE]

from the repository's root, with the Python of the stack under --prefix and the code of this
checkout. DIR and --encoder as in bench.engine. Each training is a process with tcmalloc, as planned
runs have it: steps without a profiler in turns with steps under torch's profiler, whose events
bench.step_profile divides into categories. Results of cases and precisions that --results already
has are replaced. In the table, shares are of the profiled step. Python is the time of the main
thread outside of operators; it includes the profiler's own time. The results also have the time of
a step without the profiler (`plain_seconds`), converted by tokens to the profiled step's batch.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import embed
from bench.engine import CASES, write_tagged
from bench.machines import resumed
from bench.runs import Bench, arguments, environment, machine, precision, run_module, write

SFT = {"sft": None, "sft-lora": 16}  # ranks of the adapters
BATCH, SFT_BATCH = 32, 8
SHAPE = "smollm2-135m"
NAMES = (*CASES, *SFT, "embed", "rerank")
DEFAULT = tuple(name for name in NAMES if "bert" not in name)  # the large ones take long


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = arguments(__doc__, NAMES, threads=2)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=precision())
    options = parser.parse_args()
    bench = Bench(
        options.prefix, options.data.absolute(), options.encoder.absolute(), options.threads
    )
    of_machine = machine(options.prefix, options.threads)
    del of_machine["precision"]  # the results have both
    results = resumed(options.results, of_machine)
    results.setdefault("profiles", {})
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases or DEFAULT:
            run = training(bench, name, Path(folder) / name)
            found = run(precision=options.precision, profile=True)
            found = found.get("profile", found)
            results["profiles"].setdefault(options.precision, {})[name] = found
            print(f"{name}, {options.precision}: {found}", file=sys.stderr, flush=True)
            write(options.results, results)
    print(table(results["profiles"]))
    return 0


def training(bench: Bench, name: str, folder: Path) -> Callable[..., dict[str, Any]]:
    """Prepare a training in a new folder; return a function that runs it with options."""
    variables = environment(bench.threads, tcmalloc=True)
    if name in SFT:
        folder.mkdir()
        common = {"shape": SHAPE, "lora_r": SFT[name], "batch": SFT_BATCH, "rate": 2e-4}
        made = {"engine": "make", "squad": str(bench.data / "squad"), "shape": SHAPE}
        run_module("bench.sft_run", bench.prefix, folder, made, variables)
        return lambda **options: run_module(
            "bench.sft_run", bench.prefix, folder, {**common, "engine": "ours", **options},
            variables,
        )  # fmt: skip
    if name in embed.RECIPES:
        recipe = *embed.RECIPES[name], f"batch_size={BATCH}"
        if name == "rerank":
            folder.mkdir()
            pairs = embed.labelled_pairs(bench.data / "squad", folder / "pairs")
            recipe = *recipe, f"data={pairs}"
        run_dir = bench.prepare(folder / "run", recipe)
        return lambda **options: run_module(
            "bench.embed_run", bench.prefix, run_dir, {"engine": "ours", **options}, variables
        )
    folder.mkdir()
    tagged = write_tagged(bench.data / "mrpc/train.jsonl", folder / "tagged")
    recipe = tuple(word.replace("{tagged}", str(tagged)) for word in CASES[name].recipe)
    run_dir = bench.prepare(folder / "run", recipe)
    return partial(bench.run, run_dir, engine="ours", tcmalloc=True)


def table(profiles: dict[str, dict[str, Any]]) -> str:
    """Format the shares of all profiles as a Markdown table; categories without time are absent."""
    rows = {
        f"{name}, {precision}": found
        for precision, by_name in profiles.items()
        for name, found in by_name.items()
    }
    categories = next(iter(rows.values()))["parts"]
    shown = [
        part for part in categories if any(share(found, part) >= 0.0005 for found in rows.values())
    ]
    lines = [
        f"| training | step, ms | {' | '.join(shown)} |",
        "|---" * (len(shown) + 2) + "|",
    ]
    for name, found in rows.items():
        cells = " | ".join(f"{share(found, part):.1%}" for part in shown)
        lines.append(f"| {name} | {found['seconds'] * 1e3:.0f} | {cells} |")
    return "\n".join(lines)


def share(found: dict[str, Any], part: str) -> float:
    """Return the share of a category in the profiled step."""
    return float(found["parts"][part] / found["seconds"])


if __name__ == "__main__":
    sys.exit(main())
