"""The Python interface of `import ftcluster`: a function for each operation.

The functions print nothing and raise FtclusterError. Pass a `view` to show progress. By default,
the functions use the cluster that was set up last from this machine.
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
from ftcluster.operations.models.loaded import Data, Several, data_paths
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
DEFAULT_LAUNCH, RESTARTS = LaunchOptions(), LaunchOptions(max_restarts=3)


@dataclass(frozen=True)
class Run:
    """A run on the cluster; the run continues if this process ends.

    Attributes:
        id: id of the run.
        cluster: cluster of the run; None for the cluster that was set up last.
        options: arguments of ansible-playbook.
    """

    id: str
    cluster: Cluster | None = None
    options: tuple[str, ...] = field(default=(), repr=False)

    @property
    def _connection(self) -> Connection:
        return Connection(options=self.options, cluster=self.cluster)

    def wait(self, view: View = SILENT) -> AttachResult:
        """Follow the run to its end; Ctrl-C ends this call but not the run.

        Raises:
            FtclusterError: the run failed, or was stopped.
        """
        return attach(self._connection, self.id, view)

    def state(self) -> RunState:
        """Return the run's current state on the head.

        Raises:
            FtclusterError: the head does not respond, or has removed the run.
        """
        listed = all_runs.list_runs(self._connection, SILENT, 1, (self.id,)).runs
        current = next((state for state in listed if state.run == self.id), None)
        if current is None:
            raise FtclusterError(
                f"there is no run {self.id} on the head", "list all runs with ftcluster.runs()"
            )
        return current

    def fetch(self, folder: Name = "") -> Path:
        """Copy the run's model to a folder on this machine, and return the folder.

        If the run is a script, copy the files that the script wrote into its start folder on the
        head. In this case no model is copied.

        Args:
            folder: new or empty folder; by default a folder that is named after the run's id.

        Raises:
            FtclusterError: the run has neither model nor files, or the folder is not empty.
        """
        result = all_runs.fetch(self._connection, self.id, fspath(folder), SILENT).found
        return Path(result["model"] or result["folder"])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the run's model by name. Waits for the end of the run, see `wait`."""
        return self.wait().metrics

    @property
    def model(self) -> Path:
        """The local folder of the run's model. The first use copies the model from the head.

        Raises:
            FtclusterError: the run has no model, or the folder contains other files.
        """
        here = Path(self.id)
        return here.absolute() if (here / FILE).is_file() else self.fetch()

    def logs(self, rank: int | None = None) -> str:
        """Return the output of the run's ranks so far; each line begins with its rank.

        Args:
            rank: rank whose output is returned; None for all ranks.

        Raises:
            FtclusterError: there is no such rank, or the head does not respond.
        """
        lines: list[str] = []
        all_runs.logs(all_runs.LogsRequest(self._connection, self.id, rank), lines.append, SILENT)
        return "".join(lines)

    def stop(self, force: bool = False) -> None:
        """Stop the run on all hosts.

        Args:
            force: True to stop without saving a checkpoint; otherwise a training run saves a
                checkpoint first.

        Raises:
            FtclusterError: the run may still be active on a host.
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
    """Turn hosts into a cluster, and save it as the last cluster that was set up.

    Args:
        inventory: path of an Ansible inventory, several paths, or "localhost" for this machine; by
            default the cluster that was set up last, unless Ansible's configuration names an
            inventory.
        stack: name of a stack, or "auto" for the first stack that all hosts support.
        bundle: file written by `ftcluster bundle`, to install from without downloads.
        accept_new_host_keys: True to accept and store the SSH keys of new hosts.
        options: arguments of ansible-playbook by their long names, such as ("--user", "ops").

    Raises:
        FtclusterError: a host failed or does not respond; the message names each such host with the
            reason.
    """
    inventories = [inventory] if isinstance(inventory, str | PathLike) else inventory
    connection = Connection(tuple(fspath(path) for path in inventories), tuple(options))
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
    """Remove the software that `setup` installed on the hosts; keep the runs and their models.

    Raises:
        FtclusterError: a host failed or does not respond; the message names each such host with the
            reason.
    """
    arguments = (*cluster.options, *options)
    setting_up.teardown(Connection(tuple(map(str, cluster.inventories)), arguments), view)


def check(
    cluster: Cluster | None = None, *, options: Sequence[str] = (), view: View = SILENT
) -> CheckResult:
    """Check whether a cluster is ready for training. Return the problems; change nothing.

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
    """Return the data that `train` would read with the same arguments, and the target tokens.

    Args:
        here: True to read the data only on this machine, without the head. The result then
            contains no lengths and no samples.
        more: see `train`.

    Raises:
        FtclusterError: the recipe or its data are not valid, or the head does not respond.
    """
    fields = _request_fields(recipe, settings, **more)
    return describing.describe(DataRequest(**fields, hub_token=hub_token, here=here), view)


def plan(
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    facts: Name | None = None,
    **more: Any,
) -> PlanResult:
    """Return the ranks that `train` would start with the same arguments, and the reasons.

    Args:
        facts: output of `ftcluster plan --json`, to plan for its hosts instead of the cluster's.

    Raises:
        FtclusterError: the recipe or its data are not valid, or no plan is possible.
    """
    request = RecipeRequest(**_request_fields(recipe, settings, **more))
    return planning.plan(request, fspath(facts) if facts else None)


def train(
    recipe: Name = "",
    settings: Mapping[str, Any] | None = None,
    *,
    resume: str = "",
    hub_token: bool = False,
    launch: LaunchOptions = DEFAULT_LAUNCH,
    view: View = SILENT,
    **more: Any,
) -> Run:
    """Start a training run; the run continues if this process ends.

    Args:
        recipe: name listed by `ftcluster recipes`, or a YAML file.
        settings: fields of the recipe, such as {"learning_rate": 2e-5}.
        resume: run to continue, instead of a recipe.
        hub_token: True if the hosts may use this user's token for the Hugging Face Hub.
        more: `data` and `model` (a file, folder or Hub name; data can also be a DataFrame, a list
            of dicts, or a list of data sets, each a path, a DataFrame or a mapping such as
            {"path": "a.csv", "weight": 2}); `name` of the run; `hosts` (names of the hosts to use);
            `nodes`, `spares` and `ranks_per_host` (counts); `cluster`; `options` (arguments of
            ansible-playbook); `task` and `metrics` (your own Python files, which are executed).

    Raises:
        FtclusterError: the recipe, its data or the plan are not valid, or the start failed.
    """
    request = TrainRequest(
        **_request_fields(recipe, settings, **more), resume=resume, detach=True,
        hub_token=hub_token, launch=launch,
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
    """Train once for each combination of values, wait for all runs, and compare them.

    If the call is repeated, only combinations without a result are trained.

    Args:
        settings: fields of the recipe. A list contains the values to try. If the value of a field
            is itself a list, use a list of lists. A string such as "1e-5..1e-4" is a range, which
            only `random` and `tpe` support.
        random: number of random combinations; 0 to train all combinations.
        tpe: number of combinations chosen by Optuna's sampler TPE from earlier results; 0 for none.
        seed: seed for the choice of combinations.
        metric: metric to compare; by default metric_for_best_model, or else the loss.
        retry: True to repeat runs that failed or were stopped.
        more: see `train`. With `nodes` (hosts per run), several runs share the cluster's hosts.

    Raises:
        FtclusterError: a combination is not valid, or the head does not respond.
    """
    tried = [
        f"{name}={','.join(map(json.dumps, value)) if isinstance(value, list) else value}"
        for name, value in settings.items()
    ]
    fields = _request_fields(recipe, None, **more)
    fields["words"] = (*fields["words"], *tried)
    request = SweepRequest(
        **fields, random=random, tpe=tpe, seed=seed, metric=metric, retry=retry,
        hub_token=hub_token, launch=launch,
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
        recipe: recipe that the model was trained with; by default the recipe that the model's
            folder records.
        more: see `train`.

    Raises:
        FtclusterError: the model, recipe or data are not valid, or the run failed.
    """
    fields = _request_fields(recipe, settings, model=model, **more)
    request = EvaluateRequest(**fields, launch=launch)
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
    """Generate a language model's answer to each prompt, on the head of a cluster.

    Args:
        model: run with a trained model, a model's local folder, or a model's name on the Hub.
        sampling: fields of `ftcluster.operations.models.generate.Sampling`, such as `temperature`.

    Raises:
        FtclusterError: the model does not exist or is not a language model, or the run failed.
    """
    texts = (prompts,) if isinstance(prompts, str) else tuple(prompts)
    name = model.id if isinstance(model, Run) else fspath(model)
    cluster = cluster or (model.cluster if isinstance(model, Run) else None)
    connection = Connection(options=tuple(options), cluster=cluster)
    request = GenerateRequest(name, texts, Sampling(**sampling), hub_token, connection=connection)
    return again(lambda: generating.generate(request, view), view).answers


def load(model: "Run | Name", *, task: Name = "", **options: Any) -> Any:
    """Load a trained model as a transformers pipeline or a sentence-transformers model.

    transformers has no pipeline for question answering, summaries and translations. For these
    tasks, return the model and its tokenizer.

    Args:
        model: a model's local folder; or a run, whose model is copied (see `Run.model`).
        task: your own Python file with the task, if the model was trained with `task`.
        options: options of the pipeline, SentenceTransformer, CrossEncoder or from_pretrained.

    Raises:
        FtclusterError: a package is missing in this Python, or there is no such model.
    """
    folder = model.model if isinstance(model, Run) else Path(model)
    return loading.load(folder, fspath(task), **options)


def terminal_view(verbose: bool = False) -> View:
    """Return a view that shows progress as a live picture on a terminal or in a notebook.

    Args:
        verbose: True to print plain lines instead of a picture.
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
    """Write a trained model's prediction for each row of data to a file.

    Args:
        output: output file; its ending selects the format: .jsonl, .csv or .tsv.
        recipe, more: see `evaluate`.

    Raises:
        FtclusterError: the model, recipe or data are not valid, or the run failed.
    """
    fields = _request_fields(recipe, settings, model=model, data=data, **more)
    request = PredictRequest(**fields, launch=launch, output=fspath(output))
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
    """Start a user's own script on every rank; the run continues if this process ends.

    Args:
        script: a Python file with its arguments, or -m and a module with its arguments.
        more: fields of `ftcluster.operations.train.run.RunRequest`, such as `nodes` and `fast`.

    Raises:
        FtclusterError: the script is certain to fail, or could not be started.
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
    return all_runs.list_runs(Connection(options=tuple(options), cluster=cluster), SILENT).runs


def find_run(name: str, cluster: Cluster | None = None, *, options: Sequence[str] = ()) -> Run:
    """Find a run that was started earlier, by its id or the beginning of its id.

    Raises:
        FtclusterError: no run or several runs match.
    """
    connection = Connection(options=tuple(options), cluster=cluster)
    return _started(find(connection, name, SILENT)[1], connection)


def _started(run: str, connection: Connection) -> Run:
    return Run(run, connection.cluster, connection.options)


def _request_fields(
    recipe: Name,
    settings: Mapping[str, Any] | None,
    *,
    data: Data | Several | None = None,
    model: Name | None = None,
    hosts: Sequence[str] = (),
    nodes: int | None = None,
    spares: int | None = None,
    ranks_per_host: int | None = None,
    name: str | None = None,
    cluster: Cluster | None = None,
    options: Sequence[str] = (),
    task: Name = "",
    metrics: Name = "",
) -> dict[str, Any]:
    """Convert a function's arguments to fields of a RecipeRequest."""
    words = [fspath(recipe)] if recipe else []
    words += [f"{name}={json.dumps(value)}" for name, value in (settings or {}).items()]
    return {
        "words": tuple(words),
        "data": None if data is None else data_paths(data),
        "model": None if model is None else fspath(model),
        "hosts": tuple(hosts),
        "nodes": nodes,
        "spares": spares,
        "ranks_per_host": ranks_per_host,
        "run_name": name,
        "connection": Connection(options=tuple(options), cluster=cluster),
        "task": fspath(task),
        "metrics": fspath(metrics),
    }
