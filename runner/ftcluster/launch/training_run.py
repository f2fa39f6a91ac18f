"""A training by a recipe: what is launched for it, and what came of it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.cluster.saved import Cluster
from ftcluster.errors import Interrupted
from ftcluster.launch.follow import carry_out, events_file, failure
from ftcluster.launch.mpirun import run_dir
from ftcluster.planning.plan import LaunchPlan
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster_common.job import Job
from ftcluster_common.launch import Launch
from ftcluster_common.recipe import Recipe


@dataclass(frozen=True)
class Run:
    """One training as it is launched.

    Attributes:
        id: its name.
        cluster: where it runs.
        recipe: what it trains.
        plan: who runs where.
        launch: the command.
        folders: folders of this machine and where they are copied to on the hosts.
        hub_token: what each host fetches model and data with, or "".
    """

    id: str
    cluster: Cluster
    recipe: Recipe
    plan: LaunchPlan
    launch: Launch
    folders: tuple[tuple[str, str], ...] = ()
    hub_token: str = field(default="", repr=False)

    playbook = "train"

    @property
    def events(self) -> Path:
        """The control node's copy of events.jsonl."""
        return events_file(self.id)

    @property
    def job(self) -> dict[str, Any]:
        """What job.json on the hosts holds."""
        plan, prefix = self.plan, Path(self.plan.prefix)
        folder = Path(run_dir(plan, self.id))
        return Job(self.id, folder, prefix, self.recipe, plan.precision, plan.ipex).to_dict()

    def variables(self) -> dict[str, Any]:
        """See Job."""
        return {
            "train_folders": [{"source": source, "path": path} for source, path in self.folders],
            "train_launch": self.launch.to_dict(),
            "train_job": self.job,
            "train_hub_token": self.hub_token,
        }

    def record(self) -> dict[str, Any]:
        """See Job."""
        return {"recipe": asdict(self.recipe)}


def train(run: Run, view: View, reach: tuple[str, ...] = ()) -> RunProgress:
    """Launch a training and follow it to its end.

    Args:
        run: what is launched.
        view: where the progress is shown.
        reach: arguments of ansible-playbook that say how to reach the hosts.

    Raises:
        FtclusterError: it failed; says what the ranks or hosts said.
        Interrupted: the user stopped it; nothing of it is left running.
    """
    followed = carry_out(run, view, reach)
    progress = followed.progress
    if followed.outcome.state == "stopped":
        raise Interrupted(
            f"stopped: run {run.id} at step {progress.step.get('step', 0)}; "
            "no rank is left running, no model was saved",
            details=_known(run, progress),
        )
    if progress.state != "done":
        error = failure(run, followed)
        error.details = _known(run, progress)
        raise error
    return progress


def _known(run: Run, progress: RunProgress) -> dict[str, Any]:
    """What is known of a run that did not end well."""
    evaluations = progress.evaluations
    return {
        "run": run.id,
        "model": None,
        "metrics": evaluations[-1]["metrics"] if evaluations else {},
        "samples_per_second": progress.step.get("samples_per_second"),
        "world_size": run.plan.world_size,
        "seconds": progress.seconds,
        "steps": progress.step.get("step", 0),
    }
