"""The format of job.json in a run's folder: the work of every rank."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ftcluster_common.data.data_sets import DataSet
from ftcluster_common.given_files import read_form
from ftcluster_common.protocol.formats import JOB, opened, stamped
from ftcluster_common.recipe import NEW_TOKENS, SPLIT_FIELDS, Recipe, Training
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.user_code import NO_CODE, UserCode, code_of

Purpose = Literal["train", "evaluate", "predict", "generate"]
EVALUATE: Purpose = "evaluate"
PREDICT: Purpose = "predict"
GENERATE: Purpose = "generate"


@dataclass(frozen=True)
class Job:
    """The work of a run: training, evaluation, prediction or text generation.

    Attributes:
        run_dir: the run's folder on this host.
        prefix: the cluster's folder on this host.
        precision: bf16 or fp32, as the plan decided.
        ipex: True if the plan has IPEX optimize the model.
        resume: ids of the runs that this run continues, the newest first.
        must_resume: True if the run must not start without a saved state of one of these runs.
        snapshot_seconds: interval in seconds between snapshots of the training state; 0 means no
            snapshots.
        log_samples: True if each rank logs the samples that it reads in each step.
        nodes: number of hosts that get ranks; all further hosts are spares.
        shard_optimizer: True if the plan shards the optimizer's state over the ranks.
        shared_folder: True if all hosts share the prefix on a network file system.
        hardware: description of the hosts for the model card.
        generation: settings of text generation: `prompts`, a list of strings; `system`,
            `max_new_tokens`, `temperature`, `top_p` and `seed`; `more`, True if further prompts
            arrive during the run. Empty for other purposes.
        price_per_hour: price of all hosts per hour in `currency`; None if unknown.
        code: the user's Python files that the hosts execute.
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
        """The folders of this run and of the runs that it continues, the newest first."""
        return (self.run_dir, *(self.prefix / "runs" / run for run in self.resume))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of job.json, which `read_job` reads."""
        data = {**asdict(self), "prefix": str(self.prefix)}
        del data["run_dir"]
        if not isinstance(self.recipe.data, tuple):
            del data["recipe"]["data_mixing"]  # unknown to older hosts, and without effect
        for name in (*SPLIT_FIELDS, *NEW_TOKENS, "adapter_base"):
            if data["recipe"][name] in (None, ()):
                del data["recipe"][name]  # unknown to older hosts
        if self.code == NO_CODE:
            del data["code"]
        options = data["recipe"]["options"]
        for name in self.recipe.spec.later_fields:
            if options.get(name) == getattr(self.recipe.spec.fields, name, None):
                options.pop(name, None)
        return stamped(JOB, data)


def read_job(run_dir: Path, load: Callable[[UserCode], None] = lambda _: None) -> Job:
    """Read `run_dir`/job.json of a run that does not execute a user's script.

    Args:
        load: function that is called with the users' files before the recipe is read, because a
            file may define the recipe's task.

    Raises:
        GivenFileError: the file is missing, damaged, or has an unsupported format.
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
    """Return a recipe from its JSON."""
    recipe = dict(data)
    recipe["training"] = Training(**_with_tuples(recipe["training"]))
    recipe |= {name: tuple(recipe[name]) for name in NEW_TOKENS if name in recipe}
    recipe["options"] = TASKS[recipe["task"]].fields(**_with_tuples(recipe["options"]))
    if not isinstance(recipe["data"], str):
        recipe["data"] = tuple(map(_data_set_of, recipe["data"]))
    return Recipe(**recipe)


def _data_set_of(data: Mapping[str, Any]) -> DataSet:
    """Return a data set from its JSON."""
    return DataSet(**{**data, "fields": _with_tuples(data["fields"])})


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary with tuples in place of the lists among its values."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }


@dataclass(frozen=True)
class ScriptJob:
    """A run of a user's script.

    Attributes:
        prefix: the cluster's folder on the hosts.
        program: arguments of Python: the script, or -m and a module, and its arguments.
        start: working directory of the script on the hosts.
        local_rank: option that passes the local rank to the script, such as --local-rank; "" if
            there is none.
    """

    run: str
    prefix: str
    program: tuple[str, ...]
    start: str
    local_rank: str = ""

    def arguments(self, local_rank: str) -> list[str]:
        """Return Python's arguments for a rank, in the order of torch.distributed.launch.

        >>> ScriptJob("", "", ("-m", "train", "--x"), "", "--local-rank").arguments("1")
        ['-m', 'train', '--local-rank=1', '--x']
        """
        behind = 2 if self.program[0] == "-m" else 1
        option = [f"{self.local_rank}={local_rank}"] if self.local_rank else []
        return [*self.program[:behind], *option, *self.program[behind:]]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of job.json, which `read_script_job` reads."""
        script = {
            "program": list(self.program), "start": self.start, "local_rank": self.local_rank,
        }  # fmt: skip
        return stamped(JOB, {"run": self.run, "prefix": self.prefix, "script": script})


def read_script_job(run_dir: Path) -> ScriptJob:
    """Read `run_dir`/job.json of a script.

    Raises:
        GivenFileError: the file is missing, damaged, or has an unsupported format.
    """

    def job(document: Any) -> ScriptJob:
        data = opened(JOB, document)
        script = data["script"]
        local_rank = str(script.get("local_rank", ""))
        program = tuple(script["program"])
        return ScriptJob(data["run"], data["prefix"], program, script["start"], local_rank)

    return read_form(run_dir / "job.json", job)
