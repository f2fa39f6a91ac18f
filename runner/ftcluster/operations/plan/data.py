"""Show how training would read its data: columns, sizes and samples. Trains nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster.cluster.saved import Cluster, NoCluster
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.preview import data_of
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.runs import read_data
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.train.prepare import RecipeRequest
from ftcluster.operations.train.recipe_words import on_the_hosts, training_recipe
from ftcluster.progress.data import data_lines, set_line
from ftcluster.progress.view import View
from ftcluster.recipe.data_columns import columns_line, file_notes, find_columns
from ftcluster.recipe.data_counts import count_rows
from ftcluster.recipe.inputs import check_inputs, hub_notes
from ftcluster.user_script.own_code import reported
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.data_sets import is_train, split_name
from ftcluster_common.protocol.formats import FORMAT
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import UserCode

SAMPLES = 3
NO_HEAD = (
    "lengths and samples need a cluster; to use this machine as its host: ftcluster setup localhost"
)


@dataclass(frozen=True)
class DataRequest(RecipeRequest):
    """The data to describe, and the recipe that would train on them.

    Attributes:
        hub_token: True if the head may use the user's token for the Hugging Face Hub.
        here: True if only this machine reads the data; the result then contains no lengths and no
            samples.
    """

    hub_token: bool = False
    here: bool = False


@dataclass(frozen=True)
class DataResult:
    """The data as training would read them.

    Attributes:
        host: name of the host that tokenized the data; "" if no host did.
        columns: column names by use, including unused columns. With several data sets, these are
            the columns of the first data set.
        sets: description of each split, made by `ftcluster_train.engine.data_report` on the host,
            or by `recipe.data_counts` without a host. With several data sets, a split's name ends
            with the name of its data set, and each training split has an entry `columns`.
        samples: samples as the model receives them; empty without a host.
        notes: facts that the user should know.
    """

    recipe: Recipe
    host: str
    columns: dict[str, list[str]]
    sets: list[dict[str, Any]]
    samples: list[list[dict[str, Any]]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the document that `data --json` prints."""
        return {
            "recipe": self.recipe.name,
            "task": self.recipe.task,
            "model": self.recipe.model,
            "data": data_of(self.recipe),
            "host": self.host or None,
            "columns": self.columns,
            "sets": self.sets,
            "samples": self.samples,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the result as text. Notes come first, because samples can fill the screen."""
        columns = {use: tuple(names) for use, names in self.columns.items()}
        notes = [f"note: {note}" for note in self.notes]
        once = columns and not isinstance(self.recipe.data, tuple)  # else the sets list columns
        first = [*notes, *([columns_line(columns)] if once else [])]
        head = [line.replace("\n", "\n  ") for line in first]
        if not self.host:
            return [*head, *map(set_line, self.sets), NO_HEAD]
        return [*head, *data_lines({"sets": self.sets, "samples": self.samples}, SAMPLES)]


def describe(request: DataRequest, view: View) -> DataResult:
    """Return a description of the data that the requested training would read. Trains nothing.

    This machine checks the data first. Then the head reads and tokenizes the data, as it would for
    the training, and caches the tokens for that training.

    Raises:
        FtclusterError: the recipe or its data are not valid, or the head does not respond.
    """
    code = request.user_code()
    with reported():
        return _described(request, code, view)


def _described(request: DataRequest, code: UserCode, view: View) -> DataResult:
    recipe = training_recipe(request.words, request.data, request.model, code=code)
    check_inputs(recipe)
    cluster = None if request.here else _cluster(request, view)
    if cluster:
        return _of_head(request, recipe, code, cluster, view)
    columns = [find_columns(part) for part in recipe.by_set()]
    sets, notes = _counted(recipe, columns)
    first = {use: list(names) for use, names in columns[0].items()}
    about = (*hub_notes(recipe), *file_notes(recipe), *notes)
    return DataResult(recipe, "", first, sets, notes=about)


def _counted(recipe: Recipe, columns: Sequence[Columns]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the counts of each split of each data set, and notes."""
    counts: list[dict[str, Any]] = []
    notes: list[str] = []
    for data_set, part, of_set in zip(recipe.data_sets, recipe.by_set(), columns, strict=True):
        sets, about = count_rows(part, of_set)
        if not sets and Path(part.source).exists():
            about = [
                f"no row of {part.source} was read, because only hosts read Parquet, Arrow and "
                "text files"
            ]
        for split in sets if data_set.name else ():
            if is_train(split["set"]):
                split["columns"] = {use: list(names) for use, names in of_set.items()}
            split["set"] = split_name(split["set"], data_set.name)
        counts += sets
        notes += [f"{data_set.name}: {note}" if data_set.name else note for note in about]
    return counts, notes


def _cluster(request: DataRequest, view: View) -> Cluster | None:
    try:
        return cluster_of(request.connection, view)
    except NoCluster:
        return None


def _of_head(
    request: DataRequest, recipe: Recipe, code: UserCode, cluster: Cluster, view: View
) -> DataResult:
    facts, prefix = cluster.facts, Path(cluster.facts.head.prefix)
    on_head, folders = on_the_hosts(recipe, replace(facts, hosts=facts.hosts[:1]))
    job = Job("data", prefix, prefix, on_head, "fp32", ipex=False, code=code)
    run_hosts = replace(run_hosts_of(cluster), options=request.connection.to(cluster))
    view.say(f"reading data on {run_hosts.head} ...")
    token = find_token() if request.hub_token else ""
    # hosts with a version of format 0 refuse a document with a format number
    document = {name: value for name, value in job.to_dict().items() if name != FORMAT}
    answer = read_data(run_hosts, document, folders, token)
    notes = (*file_notes(recipe), *answer["notices"])
    return DataResult(recipe, run_hosts.head, notes=notes, **answer["report"])
