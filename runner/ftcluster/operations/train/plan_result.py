"""The plan of a launch as a JSON document, as text and as shell commands."""

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.launch.preview import as_commands, as_document, as_lines
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.train.prepare import headline_of, shape_of
from ftcluster.planning.memory import ROW_BYTES
from ftcluster.report.epoch_time import past_runs

DATA = (
    "memory of the data",
    f"{ROW_BYTES} bytes per row in each rank",
    "lengths and order; the tokens stay on the hosts' disks",
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
        facts = ClusterFacts(hosts)
        return as_document(run.id, run.recipe, run.columns, run.plan, run.launch, facts, more)

    def lines(self) -> list[Text | str]:
        """Return the plan as text, without the commands."""
        run = self.run
        about = [DATA, *shape_of(run, past_runs()).reasons()] if run.purpose == "train" else []
        as_of = run.cluster.as_of
        more = [*about, *([("cluster", f"as of {as_of}", AS_OF)] if as_of else [])]
        return as_lines(headline_of(run), run.plan, run.folders, more)

    def commands(self) -> str:
        """Return the plan as shell commands. The plan's text becomes comments."""
        return as_commands(self.lines(), self.run.launch, self.run.plan, self.run.job)
