"""The Python interface of `import ftcluster`: the operations as functions with keywords.

Functions print nothing and raise FtclusterError; `view` shows their progress. The default cluster
is the one that was set up last from this machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ftcluster.cluster.saved import Cluster, recall
from ftcluster.errors import FtclusterError
from ftcluster.operations.connection import Connection, again, find
from ftcluster.operations.models import evaluate as evaluating
from ftcluster.operations.models import generate as generating
from ftcluster.operations.models import loaded as loading
from ftcluster.operations.models import predict as predicting
from ftcluster.operations.models.evaluate import EvaluateRequest, EvaluateResult
from ftcluster.operations.models.generate import GenerateRequest, Sampling
from ftcluster.operations.models.loaded import Data, data_path
from ftcluster.operations.models.predict import PredictRequest, PredictResult
from ftcluster.operations.plan import data as describing
from ftcluster.operations.plan import plan as planning
from ftcluster.operations.plan.data import DataRequest, DataResult
from ftcluster.operations.runs import runs as all_runs
from ftcluster.operations.runs.attach import AttachResult, attach
from ftcluster.operations.search import sweep as sweeping
from ftcluster.operations.search.sweep_request import SweepRequest
from ftcluster.operations.search.sweep_result import SweepResult
from ftcluster.operations.setup import check as checking
from ftcluster.operations.setup import setup as setting_up
from ftcluster.operations.setup.check import CheckResult
from ftcluster.operations.setup.setup import SetupRequest
from ftcluster.operations.train import run as running
from ftcluster.operations.train import train as training
from ftcluster.operations.train.plan_result import PlanResult
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest
from ftcluster.operations.train.run import RunRequest
from ftcluster.operations.train.train import TrainRequest
from ftcluster.progress.notebook import NotebookView, in_notebook
from ftcluster.progress.view import View, make_view
from ftcluster_common.models.trained_model import FILE
from ftcluster_common.protocol.run_state import RunState

__all__ = [
    "Cluster", "LaunchOptions", "Run", "check", "data", "evaluate", "find_run", "generate",
    "last_cluster", "load", "plan", "predict", "run", "runs", "setup", "sweep", "teardown",
    "terminal_view", "train",
]  # fmt: skip

Name = str | PathLike[str]  # a file or folder on this machine, or a name on the Hugging Face Hub
SILENT = View()
RESTARTS = LaunchOptions(max_restarts=3)


@dataclass(frozen=True)
class Run:
    """A run on the cluster, which continues independently of this process.

    Attributes:
        id: id of the run.
        cluster: cluster of the run.
        options: arguments of ansible-playbook.
    """

    id: str
    cluster: Cluster | None = None
    options: tuple[str, ...] = field(default=(), repr=False)

    @property
    def _connection(self) -> Connection:
        return Connection(options=self.options, cluster=self.cluster)

    def wait(self, view: View = SILENT) -> AttachResult:
        """Follow the run to its end; Ctrl-C ends only the call, not the run.

        Raises:
            FtclusterError: the run failed, or was stopped.
        """
        return attach(self._connection, self.id, view)

    def state(self) -> RunState:
        """Return the run's current state on the head.

        Raises:
            FtclusterError: the head does not respond, or has removed the run.
        """
        listed, _ = all_runs.list_runs(self._connection, SILENT, 1, (self.id,))
        current = next((state for state in listed if state.run == self.id), None)
        if current is None:
            raise FtclusterError(
                f"the head knows no run {self.id}", "list all runs with ftcluster.runs()"
            )
        return current

    def fetch(self, folder: Name = "") -> Path:
        """Copy the run's model to a new or empty folder here, and return the folder.

        The default folder is the run's id. For a script, copy the files that it wrote on the head
        into its start folder.

        Raises:
            FtclusterError: the run has neither, or the folder is not empty.
        """
        result = all_runs.fetch(self._connection, self.id, fspath(folder), SILENT).found
        return Path(result["model"] or result["folder"])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the run's model by name; waits for its end. Errors as in `wait`."""
        return self.wait().metrics

    @property
    def model(self) -> Path:
        """The folder of the run's model in the current folder; the first use copies the model.

        Raises:
            FtclusterError: the run has no model, or a folder with its id contains something else.
        """
        here = Path(self.id)
        return here.absolute() if (here / FILE).is_file() else self.fetch()

    def logs(self, rank: int | None = None) -> str:
        """Return the output of the run's ranks so far, each line with its rank; or of one rank.

        Raises:
            FtclusterError: there is no such rank, or the head does not respond.
        """
        lines: list[str] = []
        all_runs.logs(all_runs.LogsRequest(self._connection, self.id, rank), lines.append, SILENT)
        return "".join(lines)

    def stop(self, force: bool = False) -> None:
        """Stop the run on all hosts; a training saves a checkpoint first, except with `force`.

        Raises:
            FtclusterError: the run may still be running.
        """
        all_runs.stop(self._connection, [self.id], force, SILENT)


def setup(
    inventory: Name | Sequence[Name] = (),
    *,
    stack: str = "",
    bundle: Name = "",
    accept_new_host_keys: bool = False,
    options: Sequence[str] = (),
    view: View = SILENT,
) -> Cluster:
    """Turn hosts into a cluster, and save it as the one that was set up last.

    Args:
        inventory: inventory that Ansible reads, several of them, or "localhost" for this machine;
            by default the inventory of the last setup.
        stack: name of a stack, or "auto" for the first that the hosts support.
        bundle: file of `ftcluster bundle` to install from, without downloads.
        accept_new_host_keys: True to store keys of hosts that ssh does not know.
        options: arguments of ansible-playbook by their long names, such as ("--user", "ops").

        Raises:
        FtclusterError: a host failed or does not respond; names each with its reason.
    """
    inventories = [inventory] if isinstance(inventory, str | PathLike) else inventory
    connection = Connection(tuple(fspath(one) for one in inventories), tuple(options))
    request = SetupRequest(
        connection, stack, fspath(bundle), accept_new_host_keys=accept_new_host_keys
    )
    return setting_up.setup(request, view).cluster


def last_cluster() -> Cluster:
    """Return the cluster that was set up last from this machine.

    Raises:
        FtclusterError: there is no such cluster.
    """
    return recall()


def teardown(cluster: Cluster, *, options: Sequence[str] = (), view: View = SILENT) -> None:
    """Remove from the hosts what setup installed; runs with their models stay.

    Raises:
        FtclusterError: a host failed or does not respond; names each with its reason.
    """
    arguments = (*cluster.options, *options)
    setting_up.teardown(Connection(tuple(map(str, cluster.inventories)), arguments), view)


def check(
    cluster: Cluster | None = None, *, options: Sequence[str] = (), view: View = SILENT
) -> CheckResult:
    """Check whether a cluster is fit for training, and why not. Changes nothing.

    Raises:
        FtclusterError: Ansible could not start.
    """
    return checking.check(Connection(options=tuple(options), cluster=cluster), view)


def data(
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    hub_token: bool = False,
    here: bool = False,
    view: View = SILENT,
    **more: Any,
) -> DataResult:
    """Return the data that `train` would read with the same arguments, and its target tokens.

    Args:
        here: True to skip the head, without lengths and samples.
        more: see `train`.

    Raises:
        FtclusterError: the recipe or its data are not valid, or the head does not respond.
    """
    asked = _asked(recipe, settings, **more)
    return describing.describe(DataRequest(**asked, hub_token=hub_token, here=here), view)


def plan(
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    facts: Name | None = None,
    **more: Any,
) -> PlanResult:
    """Return the ranks that `train` would start with the same arguments, with reasons.

    Args:
        facts: file with other hosts, an output of `ftcluster plan --json`.

    Raises:
        FtclusterError: the recipe or its data are not valid, or no plan is possible.
    """
    request = RecipeRequest(**_asked(recipe, settings, **more))
    return planning.plan(request, fspath(facts) if facts else None)


def train(
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    resume: str = "",
    hub_token: bool = False,
    launch: LaunchOptions = RESTARTS,
    view: View = SILENT,
    **more: Any,
) -> Run:
    """Start a training, which continues independently of this process.

    Args:
        recipe: name listed by `ftcluster recipes`, or a YAML file.
        settings: fields of the recipe, such as {"learning_rate": 2e-5}.
        resume: run to continue, instead of a recipe.
        hub_token: True if the hosts may use this user's token for the Hugging Face Hub.
        more: `data` and `model`, a file, folder or Hub name (data can also be a DataFrame or a
            list of dicts); `name`, `nodes`, `spares` and `ranks_per_host`; `cluster`; `options`,
            arguments of ansible-playbook; `task` and `metrics`, Python files of your own, which
            are executed.

    Raises:
        FtclusterError: the recipe, its data or the plan are not valid, or the start failed.
    """
    request = TrainRequest(
        **_asked(recipe, settings, **more), resume=resume, detach=True, hub_token=hub_token,
        launch=launch,
    )  # fmt: skip
    done = again(lambda: training.train(request, view), view)
    return _started(done.progress.run, request.connection)


def sweep(
    recipe: Name,
    settings: Mapping[str, Any],
    *,
    random: int = 0,
    tpe: int = 0,
    seed: int = 0,
    metric: str = "",
    retry: bool = False,
    hub_token: bool = False,
    launch: LaunchOptions = RESTARTS,
    view: View = SILENT,
    **more: Any,
) -> SweepResult:
    """Train once for each combination of values, wait for all, and compare them.

    The same call again trains only missing combinations.

    Args:
        settings: fields of the recipe. A list holds the values to try; for a field that takes
            lists itself, use a list of lists. A text such as "1e-5..1e-4" is a range for `random`.
        random, seed: number of random combinations (0 for all combinations), and their seed.
        tpe: number of combinations that Optuna's sampler TPE chooses by earlier results instead.
        metric: metric to compare; by default metric_for_best_model, or else the loss.
        retry: True to repeat runs that failed or were stopped.
        more: see `train`; with `nodes`, as many runs run at once as the hosts allow.

    Raises:
        FtclusterError: a combination is not valid, or no head answers.
    """
    tried = [
        f"{name}={','.join(map(json.dumps, value)) if isinstance(value, list) else value}"
        for name, value in settings.items()
    ]
    asked = _asked(recipe, None, **more)
    asked["words"] = (*asked["words"], *tried)
    request = SweepRequest(
        **asked, random=random, tpe=tpe, seed=seed, metric=metric, retry=retry, hub_token=hub_token,
        launch=launch,
    )  # fmt: skip
    return again(lambda: sweeping.sweep(request, view, SILENT), view)


def evaluate(
    model: Name,
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    launch: LaunchOptions = RESTARTS,
    view: View = SILENT,
    **more: Any,
) -> EvaluateResult:
    """Evaluate a trained model on the recipe's validation sets, or on all rows of `data`.

    Args:
        recipe: recipe of the training; by default the one named in the model's folder.
        more: see `train`.

    Raises:
        FtclusterError: the model, recipe or data are not valid, or the run failed.
    """
    request = EvaluateRequest(**_asked(recipe, settings, model=model, **more), launch=launch)
    return again(lambda: evaluating.evaluate(request, view), view)


def generate(
    model: "Run | Name",
    prompts: str | Sequence[str],
    *,
    cluster: Cluster | None = None,
    options: Sequence[str] = (),
    hub_token: bool = False,
    view: View = SILENT,
    **sampling: Any,
) -> list[str]:
    """Return a language model's answer to each prompt, generated on the head of a cluster.

    Args:
        model: run with a trained model, its folder here, or a name on the Hub.
        sampling: fields of `ftcluster.operations.models.generate.Sampling`, such as `temperature`.

    Raises:
        FtclusterError: there is no such model, it is not a language model, or the run failed.
    """
    texts = (prompts,) if isinstance(prompts, str) else tuple(prompts)
    name = model.id if isinstance(model, Run) else fspath(model)
    cluster = cluster or (model.cluster if isinstance(model, Run) else None)
    connection = Connection(options=tuple(options), cluster=cluster)
    request = GenerateRequest(name, texts, Sampling(**sampling), hub_token, connection=connection)
    return again(lambda: generating.generate(request, view), view).answers


def load(model: "Run | Name", *, task: Name = "", **options: Any) -> Any:
    """Load a trained model here: a pipeline of transformers, or a sentence-transformers model.

    transformers has no pipeline for question answering, summaries or translations: for these,
    return the model and its tokenizer.

    Args:
        model: run, whose model is copied here (`Run.model`), or a model's folder.
        task: Python file of the task of your own that the model was trained for.
        options: options of the pipeline, SentenceTransformer, CrossEncoder or from_pretrained.

    Raises:
        FtclusterError: a package is missing in this Python, or there is no such model.
    """
    folder = model.model if isinstance(model, Run) else Path(model)
    return loading.load(folder, fspath(task), **options)


def terminal_view(verbose: bool = False) -> View:
    """Return a view for a call's progress: a live picture on a terminal or in a notebook's cell.

    Args:
        verbose: True to print plain lines instead, as without a terminal and notebook.
    """
    return NotebookView() if not verbose and in_notebook() else make_view(verbose)


def predict(
    model: Name,
    data: Data,
    output: Name,
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    launch: LaunchOptions = RESTARTS,
    view: View = SILENT,
    **more: Any,
) -> PredictResult:
    """Write a trained model's prediction for each row of data.

    Args:
        output: output file, *.jsonl, *.csv or *.tsv.
        recipe, more: see `evaluate`.

    Raises:
        FtclusterError: the model, recipe or data are not valid, or the run failed.
    """
    asked = _asked(recipe, settings, model=model, data=data, **more)
    request = PredictRequest(**asked, launch=launch, output=fspath(output))
    return again(lambda: predicting.predict(request, view), view)


def run(
    script: Sequence[str],
    *,
    cluster: Cluster | None = None,
    options: Sequence[str] = (),
    launch: LaunchOptions | None = None,
    view: View = SILENT,
    **more: Any,
) -> Run:
    """Start a user's own script on every rank; it continues independently of this process.

    Args:
        script: a Python file with its arguments, or -m and a module with its arguments.
        more: fields of `ftcluster.operations.train.run.RunRequest`, such as `nodes` and `fast`.

    Raises:
        FtclusterError: the script would fail on every rank, or could not be started.
    """
    connection = Connection(options=tuple(options), cluster=cluster)
    request = RunRequest(tuple(script), connection, detach=True, **more)
    request = replace(request, launch=launch) if launch else request
    done = again(lambda: running.run(request, lambda *_: None, view), view)
    return _started(done.run.id, connection)


def runs(cluster: Cluster | None = None, *, options: Sequence[str] = ()) -> tuple[RunState, ...]:
    """Return the runs of all users on a cluster, the newest first.

    Raises:
        FtclusterError: the head does not respond.
    """
    return all_runs.list_runs(Connection(options=tuple(options), cluster=cluster), SILENT)[0]


def find_run(name: str, cluster: Cluster | None = None, *, options: Sequence[str] = ()) -> Run:
    """Return a run that was started earlier, by its id or the beginning of its id.

    Raises:
        FtclusterError: there is no such run, or there are several.
    """
    connection = Connection(options=tuple(options), cluster=cluster)
    return _started(find(connection, name, SILENT)[1], connection)


def _started(run: str, connection: Connection) -> Run:
    return Run(run, connection.cluster, connection.options)


def _asked(
    recipe: Name,
    settings: Mapping[str, Any] | None,
    *,
    data: Data | None = None,
    model: Name | None = None,
    nodes: int | None = None,
    spares: int = 0,
    ranks_per_host: int | None = None,
    name: str | None = None,
    cluster: Cluster | None = None,
    options: Sequence[str] = (),
    task: Name = "",
    metrics: Name = "",
) -> dict[str, Any]:
    """Return the fields of a RecipeRequest."""
    words = [fspath(recipe)] if recipe else []
    words += [f"{name}={json.dumps(value)}" for name, value in (settings or {}).items()]
    return {
        "words": tuple(words),
        "data": None if data is None else data_path(data),
        "model": None if model is None else fspath(model),
        "nodes": nodes,
        "spares": spares,
        "ranks_per_host": ranks_per_host,
        "run_name": name,
        "connection": Connection(options=tuple(options), cluster=cluster),
        "task": fspath(task),
        "metrics": fspath(metrics),
    }
