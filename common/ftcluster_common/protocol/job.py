"""job.json in a run's folder: what every rank does. Standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ftcluster_common.given_files import read_form
from ftcluster_common.protocol.formats import JOB, opened, stamped
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.user_code import NO_CODE, UserCode, code_of

Purpose = Literal["train", "evaluate", "predict", "generate"]
EVALUATE: Purpose = "evaluate"
PREDICT: Purpose = "predict"
GENERATE: Purpose = "generate"


@dataclass(frozen=True)
class Job:
    """A training; or an evaluation of a model, its predictions, or what it writes.

    Attributes:
        run_dir: its folder on this host.
        prefix: the cluster's folder on this host.
        precision: bf16 or fp32, as the plan decided.
        ipex: whether IPEX optimizes the model, as the plan decided.
        resume: the runs whose states it continues from: the one before it, the one before that.
        must_resume: whether it does not start where none of them has left a state.
        snapshot_seconds: between two snapshots of the training's state; 0: none.
        log_samples: whether each rank logs the samples of each step.
        nodes: number of hosts with ranks; further ones are spares.
        shard_optimizer: whether each rank has a part of the optimizer's state, as the plan decided.
        shared_folder: whether all hosts have the same prefix, on a network's file system.
        hardware: the hosts as text, for the model's card.
        generation: `prompts`, a list of texts; `system`, `max_new_tokens`, `temperature`, `top_p`
            and `seed`; `more`: whether further prompts come while it runs. Only where texts are
            generated.
        price_per_hour: of all hosts, in `currency`; None where it is not known.
        code: the files of the user's own that the hosts execute.
    """

    run: str
    run_dir: Path
    prefix: Path
    recipe: Recipe
    precision: str
    ipex: bool
    resume: tuple[str, ...] = ()
    must_resume: bool = True
    snapshot_seconds: float = 30.0
    log_samples: bool = False
    nodes: int = 1
    shard_optimizer: bool = False
    purpose: Purpose = "train"
    shared_folder: bool = False
    hardware: tuple[str, ...] = ()
    price_per_hour: float | None = None
    currency: str = ""
    generation: Mapping[str, Any] = field(default_factory=dict)
    code: UserCode = NO_CODE

    @property
    def run_dirs(self) -> tuple[Path, ...]:
        """The folders of this run and of those that it continues from, the newest first."""
        return (self.run_dir, *(self.prefix / "runs" / run for run in self.resume))

    def to_dict(self) -> dict[str, Any]:
        """The content of job.json, which `read_job` reads."""
        data = {**asdict(self), "prefix": str(self.prefix)}
        del data["run_dir"]
        if self.code == NO_CODE:
            del data["code"]
        return stamped(JOB, data)


def read_job(run_dir: Path, load: Callable[[UserCode], None] = lambda _: None) -> Job:
    """Read `run_dir`/job.json of a training.

    Args:
        load: is called with the user's own files before the recipe is read, whose task one of them
            may define.

    Raises:
        GivenFileError: it is missing, damaged, or of a format that is not read.
    """

    def job(document: Any) -> Job:
        data = opened(JOB, document)
        code = code_of(data.get("code"))
        load(code)
        data |= {"prefix": Path(data["prefix"]), "recipe": recipe_of(data["recipe"])}
        data |= {"code": code}
        return Job(run_dir=run_dir, **_with_tuples(data))

    return read_form(run_dir / "job.json", job)


def recipe_of(data: Mapping[str, Any]) -> Recipe:
    """A recipe from its JSON."""
    recipe = dict(data)
    recipe["training"] = Training(**_with_tuples(recipe["training"]))
    recipe["options"] = TASKS[recipe["task"]].fields(**_with_tuples(recipe["options"]))
    return Recipe(**recipe)


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }


@dataclass(frozen=True)
class ScriptJob:
    """A run of a user's script.

    Attributes:
        prefix: the cluster's folder on the hosts.
        program: the arguments of Python.
        start: the folder that it starts in.
        local_rank: the option that each rank is given with its local rank, or "".
    """

    run: str
    prefix: str
    program: tuple[str, ...]
    start: str
    local_rank: str = ""

    def arguments(self, local_rank: str) -> list[str]:
        """Those of Python for a rank, as torch.distributed.launch gives them.

        >>> ScriptJob("", "", ("-m", "train", "--x"), "", "--local-rank").arguments("1")
        ['-m', 'train', '--local-rank=1', '--x']
        """
        behind = 2 if self.program[0] == "-m" else 1
        given = [f"{self.local_rank}={local_rank}"] if self.local_rank else []
        return [*self.program[:behind], *given, *self.program[behind:]]

    def to_dict(self) -> dict[str, Any]:
        """The content of job.json, which `read_script_job` reads."""
        script = {
            "program": list(self.program), "start": self.start, "local_rank": self.local_rank,
        }  # fmt: skip
        return stamped(JOB, {"run": self.run, "prefix": self.prefix, "script": script})


def read_script_job(run_dir: Path) -> ScriptJob:
    """Read `run_dir`/job.json of a script.

    Raises:
        GivenFileError: it is missing, damaged, or of a format that is not read.
    """

    def job(document: Any) -> ScriptJob:
        data = opened(JOB, document)
        script = data["script"]
        local_rank = str(script.get("local_rank", ""))
        program = tuple(script["program"])
        return ScriptJob(data["run"], data["prefix"], program, script["start"], local_rank)

    return read_form(run_dir / "job.json", job)
