"""Plan a training run, and compare the time and cost of an epoch on several clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftcluster.errors import FtclusterError, raise_together
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.plan.facts_file import facts_of
from ftcluster.operations.train.plan_result import PlanResult
from ftcluster.operations.train.prepare import RecipeRequest, shape_of
from ftcluster.progress.view import View
from ftcluster.report.cost import Shape, comparison
from ftcluster.report.epoch_time import past_runs


@dataclass(frozen=True)
class Comparison:
    """The time and cost of an epoch of a recipe on several clusters."""

    recipe: str
    shapes: tuple[Shape, ...]

    def document(self) -> dict[str, Any]:
        """Return the document that `plan --json` prints for several --facts."""
        shapes = [shape.document() for shape in self.shapes]
        return {"state": "compared", "recipe": self.recipe, "shapes": shapes}

    def lines(self) -> list[str]:
        """Return the comparison as text."""
        return [f"recipe {self.recipe}", "", *comparison(self.shapes)]


def plan(request: RecipeRequest, facts: str | None = None) -> PlanResult:
    """Plan a training run for the hosts in the file `facts`, or for the last cluster set up here.

    Raises:
        FtclusterError: the recipe, its folders or the file are not valid, or no plan is possible.
    """
    if facts:
        return PlanResult(request.prepared(facts_of(facts)))
    return PlanResult(request.prepared(cluster_of(request.connection, View())))


def compare(request: RecipeRequest, files: Sequence[str]) -> Comparison:
    """Return the time and cost of an epoch on the hosts of each file.

    Raises:
        InputError: a file cannot be read, or no plan is possible for its hosts; the message lists
            all such files.
    """
    runs, problems = [], []
    for file in files:
        try:
            runs.append((file, plan(request, file).run))
        except FtclusterError as error:
            text = str(error)
            problems.append(text if file in text else f"{file}: {text}")
    raise_together(problems, "not all of these clusters can be compared", "")
    recorded = past_runs()
    shapes = tuple(shape_of(run, recorded, file) for file, run in runs)
    return Comparison(runs[0][1].recipe.name, shapes)
