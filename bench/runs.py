"""Arguments and processes that the training benchmarks share."""

import argparse
import json
import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machines import cpu, precision
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.job import Job

ROOT = Path(__file__).parent.parent
KERNELS = ROOT / "train/ftcluster_kernels"
TCMALLOC = ("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "/usr/lib64/libtcmalloc.so.4")
# shapes of the matmuls by which machines are compared: rows, inner size and columns
SHAPES = ((1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768))


def arguments(
    description: str | None, cases: Collection[str], threads: int
) -> argparse.ArgumentParser:
    """Add the arguments that these benchmarks share.

    Raises:
        SystemExit: this checkout's loops in C were not built, or before their last change.
    """

    def case(name: str) -> str:
        if name not in cases:
            raise argparse.ArgumentTypeError(f"unknown case {name}; choose from {', '.join(cases)}")
        return name

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cases", nargs="*", type=case, metavar="CASE", help=", ".join(cases))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--prefix", type=Path, default=Path("/opt/ftcluster"))
    parser.add_argument("--results", type=Path)
    if why := unbuilt():
        raise SystemExit(
            f"{KERNELS} has {why}, so the engine would be slower than in a wheel; "
            "build the wheel in this checkout first: scripts/environment"
        )
    return parser


def unbuilt() -> str:
    """Return why this checkout's loops in C cannot be measured; "" if they can."""
    library = KERNELS / "libavx2.so"
    if not library.exists():
        return "no loops in C"
    changed = max(path.stat().st_mtime for path in (KERNELS / "native").iterdir())
    return "older loops in C than its sources" if library.stat().st_mtime < changed else ""


def write(path: Path | None, results: dict[str, Any]) -> None:
    """Write the results so far."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def environment(threads: int, tcmalloc: bool = False, site: Path | None = None) -> dict[str, str]:
    """Return a training process's environment: this checkout's engine, and packages in `site`."""
    path = (ROOT, ROOT / "train", ROOT / "common", *([site] if site else []))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        **(rank_variables() if tcmalloc else {}),
    }


def rank_variables() -> dict[str, str]:
    """Return the variables for memory that planned ranks have.

    Raises:
        SystemExit: tcmalloc is not installed.
    """
    found = next((path for path in TCMALLOC if Path(path).exists()), None)
    if not found:
        raise SystemExit(f"none of {', '.join(TCMALLOC)} is there; install tcmalloc (gperftools)")
    return {"THP_MEM_ALLOC_ENABLE": "1", "LD_PRELOAD": found, "TCMALLOC_RELEASE_RATE": "0"}


def run_module(
    module: str, prefix: Path, run_dir: Path, options: dict[str, Any], variables: dict[str, str]
) -> dict[str, Any]:
    """Run a module with the Python of the current stack; return its last line as JSON."""
    done = subprocess.run(
        [prefix / "current/bin/python", "-m", module, str(run_dir), json.dumps(options)],
        env=variables,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True)
class Bench:
    """A runner of trainings."""

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

    def run(
        self, run_dir: Path, *, threads: int = 0, tcmalloc: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Run one training; see bench.engine_run."""
        variables = environment(threads or self.threads, tcmalloc)
        return run_module("bench.engine_run", self.prefix, run_dir, options, variables)


def machine(prefix: Path, threads: int, site: Path | None = None) -> dict[str, Any]:
    """Return CPU, load and matmul speed of this machine, and versions of compared packages."""
    options = {"shapes": SHAPES, "precision": precision(), "versions": True}
    variables = environment(threads, site=site)
    measured = run_module("bench.engine_run", prefix, Path(), options, variables)
    return {
        **cpu(),
        "threads": threads,
        "precision": precision(),
        "products_per_second": measured["operations_per_second"],
        "versions": measured["versions"],
    }
