"""The plan of a launch as a JSON document, as text and as shell commands."""

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.launch.preview import as_commands, as_document, as_lines
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.train.prepare import headline_of, shape_of
from ftcluster.planning.memory import FP32, ROW_BYTES, TEXT_BYTES
from ftcluster.report.epoch_time import past_runs
from ftcluster_common.protocol.job import EVALUATE, PREDICT
from ftcluster_common.protocol.kernel_limits import SEARCH_DEPTH, SEARCH_ELEMENTS

DATA = (
    "memory of the data",
    f"{ROW_BYTES} bytes per row in each rank",
    "lengths and order; the tokens stay on the hosts' disks",
)
SEARCH = (
    "memory of a search",
    f"{TEXT_BYTES} bytes per text in each rank",
    f"vectors of at most {FP32 * SEARCH_ELEMENTS >> 20} MiB at a time; each query needs its vector "
    f"and {8 * SEARCH_DEPTH} bytes for the texts that it finds",
)
AS_OF = "this control node's copy; each launch reads the current record on the head"


@dataclass(frozen=True)
class PlanResult:
    """A planned run, with the reasons for each decision.

    Attributes:
        run: the run with its plan and launch.
    """

    run: TrainingRun

    def document(self) -> dict[str, Any]:
        """Return the document that `plan --json` prints."""
        run = self.run
        names = {host.name for host in run.plan.prepared}
        hosts = tuple(host for host in run.cluster.facts.hosts if host.name in names)
        more: dict[str, Any] = {}
        if run.purpose == "train":
            more = {**shape_of(run, past_runs()).epoch(), "row_bytes": ROW_BYTES}
        if self._searches:
            more |= {"text_bytes": TEXT_BYTES}
        facts = ClusterFacts(hosts)
        return as_document(run.id, run.recipe, run.columns, run.plan, run.launch, facts, more)

    def lines(self) -> list[Text | str]:
        """Return the plan as text, without the commands."""
        run = self.run
        about = [DATA, *shape_of(run, past_runs()).reasons()] if run.purpose == "train" else []
        as_of = run.cluster.as_of
        search = [SEARCH] if self._searches else []
        more = [*search, *about, *([("cluster", f"as of {as_of}", AS_OF)] if as_of else [])]
        return as_lines(headline_of(run), run.plan, run.folders, more)

    @property
    def _searches(self) -> bool:
        """True if the run evaluates a model by a search."""
        recipe = self.run.recipe
        evaluates = self.run.purpose == EVALUATE or recipe.training.eval_strategy != "no"
        return evaluates and self.run.purpose != PREDICT and recipe.spec.searches(recipe.options)

    def commands(self) -> str:
        """Return the plan as shell commands. The plan's text becomes comments."""
        return as_commands(self.lines(), self.run.launch, self.run.plan, self.run.job)
