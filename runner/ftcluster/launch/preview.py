"""Show a plan as text and as JSON. Pure functions only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.launch.mpirun import as_shell
from ftcluster.planning.plan import HostPlan, LaunchPlan
from ftcluster.recipe.data_columns import columns_line
from ftcluster.text.comments import comments
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.models.model_package import PACKAGE
from ftcluster_common.protocol.job import GENERATE, Purpose
from ftcluster_common.protocol.launch import Launch
from ftcluster_common.recipe import BY_TYPE, GENERATED, Recipe

HEAD = ("host", "rank", "CPUs", "threads", "memory", "samples")
SHOWN = ("name", "task", "model", "data", "batch_size")  # recipe fields to show in `--json`
SHOWN_TRAINING = ("learning_rate", "num_train_epochs", "max_steps", "seed")
HUB = "Hugging Face Hub"
COMMANDS_HINT = "to show the shell commands: --commands"


def headline(
    recipe: Recipe,
    plan: LaunchPlan,
    purpose: Purpose,
    folders: Sequence[tuple[str, str]],
    columns: Sequence[Columns],
) -> list[str]:
    """Return lines that describe the model, data, columns, settings and hosts of a run.

    Args:
        folders: local files and folders, and their paths on the hosts.
        columns: columns of each data set by their use; empty for a data set that hosts read.
    """
    training = recipe.training
    model = origin(recipe.model, folders)
    data = " and ".join(_data_set(part, folders) for part in recipe.by_set())
    names = [f"{data_set.name}: " if data_set.name else "" for data_set in recipe.data_sets]
    length = f"samples of up to {recipe.max_length} tokens"
    if purpose == "train":
        much = counted_epochs(training.num_train_epochs)
        if training.max_steps > 0:
            much = counted(training.max_steps, "step")
        how = (
            f"{much}, learning rate {training.learning_rate:g} ({training.lr_scheduler_type}), "
            f"batch of {recipe.batch_size} {length}, {plan.precision}"
        )
    else:
        how = f"{length}, {plan.precision}"
    hosts = short_names([host.name for host in plan.hosts])
    where = f"{counted(len(plan.hosts), 'host')} ({hosts})"
    scratch = ", from random weights" if recipe.from_scratch else ""
    about = f"{purpose} {model}{scratch}, on {data}"
    return [
        f"{purpose} {model}{scratch}" if purpose == GENERATE else about,
        *(
            f"{name}{columns_line(of_set)}"
            for name, of_set in zip(names, columns, strict=False)
            if of_set
        ),
        how,
        f"{counted(plan.world_size, 'rank')} on {where}, backend {plan.backend}",
    ]


def _data_set(recipe: Recipe, folders: Sequence[tuple[str, str]]) -> str:
    """Return the name and the configuration of the only data set of a recipe."""
    data = origin(recipe.source, folders)
    if not recipe.data_config:
        return data
    return data.replace(recipe.source, f"{recipe.source}, {recipe.data_config}", 1)


def counted_epochs(epochs: float) -> str:
    """Format a number of epochs, which may be a fraction.

    >>> counted_epochs(1.0), counted_epochs(2.5)
    ('1 epoch', '2.5 epochs')
    """
    return f"{epochs:g} epoch{'s' * (epochs != 1)}"


def origin(value: str, folders: Sequence[tuple[str, str]] = ()) -> str:
    """Return the name of a model or of data as the user wrote it, with its origin.

    A path on the hosts is replaced by the absolute path of the local file or folder.

    >>> origin("nyu-mll/glue"), origin("/opt/d/a.csv", [("/home/me/a.csv", "/opt/d")])
    ('nyu-mll/glue (Hugging Face Hub)', '/home/me/a.csv')
    """
    for source, path in folders:
        if value == path or value.startswith(f"{path}/"):
            return source
    if value.startswith(BY_TYPE):
        return value.removeprefix(BY_TYPE)
    if value.startswith(GENERATED):
        return value
    if value.startswith(PACKAGE):
        return f"{value.removeprefix(PACKAGE).split()[0]} (Python package)"
    return value if value.startswith("/") else f"{value} ({HUB})"


def table(plan: LaunchPlan) -> list[str]:
    """Return a table with a line for each rank. Equal hosts share their lines."""
    alike: dict[tuple[Any, ...], list[HostPlan]] = {}
    for host in plan.hosts:
        alike.setdefault((host.placement, host.preload, host.interface), []).append(host)
    return aligned([HEAD, *(row for hosts in alike.values() for row in _rows(hosts))])


def _rows(hosts: Sequence[HostPlan]) -> Iterator[tuple[str, ...]]:
    first = hosts[0]
    name = short_names([host.name for host in hosts])
    for index, rank in enumerate(first.placement):
        yield (
            "" if index else name,
            str(index),
            f"{rank.cpus} oneCCL {rank.workers}" if rank.workers else rank.cpus,
            str(rank.threads),
            f"node {','.join(map(str, rank.memory))}" if rank.memory else "any",
            str(rank.samples or "?"),
        )


def reasons(plan: LaunchPlan) -> list[Text]:
    """Return a line for each decision of the plan, with its reason."""
    return [reason(decision.subject, decision.value, decision.why) for decision in plan.decisions]


def reason(subject: str, value: str, why: str) -> Text:
    """Format the subject, the value and the reason of a decision as one line."""
    return Text.assemble((subject, "bold"), f": {value} ", (f"({why})", "dim"))


def as_lines(
    head: Sequence[str],
    plan: LaunchPlan,
    folders: Sequence[tuple[str, str]] = (),
    more: Iterable[tuple[str, str, str]] = (),
) -> list[Text | str]:
    """Return the plan as lines of text, without the commands.

    Args:
        head: first lines, from `headline`.
        folders: local files and folders, and their paths on the hosts.
        more: subject, value and reason of each decision that is not part of the plan.
    """
    columns, *ranks = table(plan)
    copies = [
        f"copied before the start: {source} to {path} on every host" for source, path in folders
    ]
    first = Text(head[0], "bold green")
    return [
        first, *head[1:], "", Text(columns, "bold"), *ranks, "", *reasons(plan),
        *(reason(*decision) for decision in more), *copies, "",
        COMMANDS_HINT,
    ]  # fmt: skip


def as_commands(
    lines: Sequence[Text | str], launch: Launch, plan: LaunchPlan, job: Mapping[str, Any]
) -> str:
    """Return the plan as text for a shell: the plan's lines as comments, and the commands."""
    head = comments(line for line in lines if line != COMMANDS_HINT)
    return "\n".join([*head, as_shell(launch, plan, job)])


def host_document(host: HostPlan) -> dict[str, Any]:
    """Return a host for `--json`."""
    return {
        "name": host.name,
        "address": host.address,
        "interface": host.interface,
        "preload": list(host.preload),
        "ranks": [vars(rank) for rank in host.placement],
    }


def data_of(recipe: Recipe) -> str | list[str]:
    """Return the path of the data set of a recipe, or the paths of several."""
    paths = [data_set.path for data_set in recipe.data_sets]
    return paths if isinstance(recipe.data, tuple) else paths[0]


def sets_of(recipe: Recipe, columns: Sequence[Columns]) -> dict[str, Any]:
    """Return the field `data_sets` of a document; empty if the recipe has one data set."""
    if not isinstance(recipe.data, tuple):
        return {}
    by_set = columns or [{}] * len(recipe.data)
    return {
        "data_sets": [
            {
                "name": data_set.name,
                "path": data_set.path,
                "weight": data_set.weight,
                "columns": _lists(of_set),
            }
            for data_set, of_set in zip(recipe.data, by_set, strict=True)
        ],
        "data_mixing": recipe.data_mixing,
    }


def _lists(columns: Columns) -> dict[str, list[str]] | None:
    """Return columns by their use as JSON; None if there are none."""
    return {use: list(names) for use, names in columns.items()} or None


def as_document(
    run: str,
    recipe: Recipe,
    columns: Sequence[Columns],
    plan: LaunchPlan,
    launch: Launch,
    facts: ClusterFacts,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the plan for `--json`. `ftcluster plan --facts` can read the field `facts`.

    Args:
        columns: columns of each data set by their use. The document's field `columns` contains the
            columns of the first data set, or null if they are unknown.
        more: further fields of the document.
    """
    return {
        "run": run,
        "state": "planned",
        "recipe": {
            **{name: getattr(recipe, name) for name in SHOWN},
            "data": data_of(recipe),
            **{name: getattr(recipe.training, name) for name in SHOWN_TRAINING},
        },
        "columns": _lists(columns[0]) if columns else None,
        **sets_of(recipe, columns),
        "world_size": plan.world_size,
        "backend": plan.backend,
        "precision": plan.precision,
        "hosts": [host_document(host) for host in plan.hosts],
        "spares": [host_document(host) for host in plan.spares],
        "decisions": [vars(decision) for decision in plan.decisions],
        **more,
        "launch": launch.shown(),
        "facts": facts.to_dict(),
    }
