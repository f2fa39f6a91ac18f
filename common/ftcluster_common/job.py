"""job.json in a run's folder: what every rank does. Standard library only."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcluster_common.recipe import TASKS, Recipe, Training


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        run: its id.
        run_dir: its folder on this host.
        prefix: the cluster's folder on this host.
        recipe: what to train.
        precision: bf16 or fp32, as the plan decided.
        ipex: whether IPEX optimizes the model, as the plan decided.
    """

    run: str
    run_dir: Path
    prefix: Path
    recipe: Recipe
    precision: str
    ipex: bool

    def to_dict(self) -> dict[str, Any]:
        """The content of job.json, which `read_job` reads."""
        return {
            "run": self.run,
            "prefix": str(self.prefix),
            "precision": self.precision,
            "ipex": self.ipex,
            "recipe": asdict(self.recipe),
        }


def read_job(run_dir: Path) -> Job:
    """Read `run_dir`/job.json of a training."""
    data: dict[str, Any] = json.loads((run_dir / "job.json").read_text(encoding="utf-8"))
    recipe = dict(data["recipe"])
    recipe["training"] = Training(**_with_tuples(recipe["training"]))
    recipe["options"] = TASKS[recipe["task"]](**_with_tuples(recipe["options"]))
    return Job(
        run=data["run"],
        run_dir=run_dir,
        prefix=Path(data["prefix"]),
        recipe=Recipe(**recipe),
        precision=data["precision"],
        ipex=data["ipex"],
    )


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }


@dataclass(frozen=True)
class ScriptJob:
    """A run of a user's script.

    Attributes:
        run: its id.
        prefix: the cluster's folder on the hosts.
        program: the arguments of Python.
        start: the folder that it starts in.
    """

    run: str
    prefix: str
    program: tuple[str, ...]
    start: str

    def to_dict(self) -> dict[str, Any]:
        """The content of job.json, which `read_script_job` reads."""
        script = {"program": list(self.program), "start": self.start}
        return {"run": self.run, "prefix": self.prefix, "script": script}


def read_script_job(run_dir: Path) -> ScriptJob:
    """Read `run_dir`/job.json of a script."""
    data: dict[str, Any] = json.loads((run_dir / "job.json").read_text(encoding="utf-8"))
    script = data["script"]
    return ScriptJob(data["run"], data["prefix"], tuple(script["program"]), script["start"])
