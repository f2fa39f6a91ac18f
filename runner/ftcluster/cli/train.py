"""`ftcluster train [RECIPE] [key=value ...]`: the training stage."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.cli.ansible_options import CONNECTION, add_options, asked, passed_on
from ftcluster.cluster import recall
from ftcluster.errors import InputError, UsageError
from ftcluster.facts import ClusterFacts
from ftcluster.inputs import check_data_folder, check_model_folder, folder_name
from ftcluster.jobs import Run, new_run_id, train
from ftcluster.plan import first_hosts, plan
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import make_view
from ftcluster.progress.words import duration, metrics
from ftcluster.recipe import Recipe, load_recipe
from ftcluster.render import as_shell, render
from ftcluster.stacks import load_stacks

DEFAULT_RECIPE = "quickstart"


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "train",
        help="train a model on the cluster",
        description="Trains what a recipe says on the cluster that was set up last.",
        usage="ftcluster train [RECIPE] [key=value ...] [options]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE or key=value",
        help=f"a known recipe or a YAML file (default: {DEFAULT_RECIPE}); any field of the recipe, "
        "as training.seed=7",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="a folder with train.jsonl and validation.jsonl, or a Hub name",
    )
    parser.add_argument("--model", metavar="DIR", help="a model folder, or a Hub name")
    parser.add_argument("--nodes", type=_positive, metavar="N", help="the first N hosts only")
    parser.add_argument("--ranks-per-host", type=_positive, metavar="N")
    parser.add_argument("--dry-run", action="store_true", help="only say what would run, and why")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="plain lines, no live view")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not '{text}'")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    recipes = [word for word in options.words if "=" not in word]
    overrides = [word for word in options.words if "=" in word]
    if len(recipes) > 1:
        raise UsageError(f"one recipe at a time, not {', '.join(recipes)}")
    recipe = recipes[0] if recipes else DEFAULT_RECIPE
    prepared = prepare_run(
        recipe, overrides, options.data, options.model, options.nodes, options.ranks_per_host
    )
    if options.dry_run:
        _show_plan(prepared, options.json)
        return 0
    with asked(vars(options)) as passwords:
        reach = (*prepared.cluster.options, *passed_on(vars(options)), *passwords)
        progress = train(prepared, make_view(options.verbose), reach)
    if options.json:
        print(json.dumps(result_document(progress)))
    else:
        print(summary(progress, prepared))
    return 0


def prepare_run(
    recipe_name: str,
    overrides: list[str],
    data: str | None = None,
    model: str | None = None,
    nodes: int | None = None,
    ranks_per_host: int | None = None,
) -> Run:
    """Everything up to the launch, which changes nothing anywhere.

    Raises:
        FtclusterError: recipe, inputs, cluster or plan are not as they must be.
    """
    flags = []
    if data is not None:  # a configuration in the recipe is one of the recipe's own data set
        flags += [f"data={json.dumps(data)}", "data_config=null"]
    if model is not None:
        flags += [f"model={json.dumps(model)}"]
    recipe = with_absolute_folders(load_recipe(recipe_name, [*flags, *overrides]))
    check_inputs(recipe)
    cluster = recall()
    facts = first_hosts(cluster.facts, nodes) if nodes else cluster.facts
    recipe, folders = on_the_hosts(recipe, facts)
    decided = plan(facts, recipe, load_stacks(), ranks_per_host)
    run_id = new_run_id(recipe)
    return Run(run_id, cluster, recipe, decided, render(decided, run_id), folders)


def with_absolute_folders(recipe: Recipe) -> Recipe:
    """The recipe with data and model as absolute paths where they are folders of this machine."""
    return replace(recipe, data=_absolute(recipe.data), model=_absolute(recipe.model))


def _absolute(value: str) -> str:
    return str(Path(value).absolute()) if Path(value).is_dir() else value


def check_inputs(recipe: Recipe) -> None:
    """Check folders before anything is launched; names are left to the hosts.

    Raises:
        InputError: all problems of both.
    """
    problems: list[InputError] = []
    try:
        if _means_a_folder(recipe.data):
            check_data_folder(Path(recipe.data), recipe.text_columns, recipe.label_column)
    except InputError as error:
        problems.append(error)
    try:
        if _means_a_folder(recipe.model):
            check_model_folder(Path(recipe.model))
    except InputError as error:
        problems.append(error)
    if problems:
        raise InputError("\n".join(map(str, problems)))


def _means_a_folder(value: str) -> bool:
    return value.startswith((".", "/")) or value.endswith("/") or Path(value).is_dir()


def on_the_hosts(recipe: Recipe, facts: ClusterFacts) -> tuple[Recipe, tuple[tuple[str, str], ...]]:
    """The recipe with folders of this machine as they are named on the hosts, and what to copy."""
    if len(facts.hosts) == 1 and facts.head.connection == "local":
        return recipe, ()
    copies = {
        value: f"{facts.head.prefix}/{kind}/{folder_name(Path(value))}"
        for kind, value in (("data", recipe.data), ("models", recipe.model))
        if Path(value).is_dir()
    }
    there = replace(
        recipe,
        data=copies.get(recipe.data, recipe.data),
        model=copies.get(recipe.model, recipe.model),
    )
    return there, tuple(copies.items())


def _show_plan(run: Run, as_json: bool) -> None:
    if as_json:
        document = {
            "run": run.id,
            "state": "planned",
            "world_size": run.plan.world_size,
            "decisions": [vars(decision) for decision in run.plan.decisions],
            "launch": run.launch.to_dict(),
        }
        print(json.dumps(document))
        return
    for decision in run.plan.decisions:
        print(f"# {decision.what}: {decision.value} ({decision.why})")
    print(as_shell(run.launch, run.plan))


def result_document(progress: RunProgress) -> dict[str, Any]:
    """The result of `train --json`."""
    result = progress.result
    return {
        "run": progress.run,
        "state": progress.state,
        "model": result["model"],
        "metrics": result["metrics"],
        "samples_per_second": result["samples_per_second"],
        "world_size": result["world_size"],
        "seconds": progress.seconds,
        "train_seconds": result["train_seconds"],
        "steps": progress.step["step"],
        "precision": progress.start["precision"],
        "ipex": progress.start["ipex"],
    }


def summary(progress: RunProgress, run: Run) -> str:
    """The result for a person: metrics, speed and where the model is."""
    result = progress.result
    head = run.cluster.facts.head
    count = len(run.plan.hosts)
    hosts = f" on {count} hosts" if count > 1 else ""
    where = "" if head.connection == "local" else f"{head.name}:"
    return "\n".join(
        (
            metrics(result["metrics"]),
            f"{result['samples_per_second']:.1f} samples per second on "
            f"{result['world_size']} ranks{hosts}, {duration(progress.seconds)} in all",
            f"model: {where}{result['model']}",
        )
    )
