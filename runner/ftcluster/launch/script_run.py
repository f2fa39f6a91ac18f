"""Launch and follow the run of a user's script, and return its result."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from ftcluster.ansible.playbooks import Launched, RunEvents, RunScript
from ftcluster.errors import FtclusterError
from ftcluster.launch.environment import script_variables
from ftcluster.launch.follow import launch_and_follow
from ftcluster.launch.layer import LOCK, Layer
from ftcluster.launch.mpirun import render, run_dir
from ftcluster.launch.run import ClusterRun, failure, raise_if_stopped
from ftcluster.planning.plan import LaunchPlan
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.user_script.command import Script
from ftcluster.user_script.files import Copied
from ftcluster_common.protocol.job import ScriptJob
from ftcluster_common.protocol.launch import Launch


@dataclass(frozen=True)
class ScriptRun(ClusterRun):
    """A run of a user's script.

    Attributes:
        script: the script that every rank runs.
        copied: local files to copy to the hosts; None if the hosts have the script.
        local_rank: option of the script that gets the local rank of each rank; "" for none.
        layer: overlay with the packages of --requirements; None for none.
        hub_token: the ranks' token for the Hugging Face Hub; "" for none.
    """

    script: Script
    copied: Copied | None
    local_rank: str = ""
    layer: Layer | None = None
    hub_token: str = field(default="", repr=False)

    kind: ClassVar[str] = "run"

    @property
    def logs(self) -> str:
        """The path of the folder on the head with the output of each rank."""
        return f"{self.launch.run_dir}/logs"

    @property
    def job(self) -> dict[str, Any]:
        start = start_folder(self.plan, self.id, self.script)
        program = self.script.program
        return ScriptJob(self.id, self.plan.prefix, program, start, self.local_rank).to_dict()

    @property
    def look(self) -> tuple[str, ...]:
        """The path of the script, or -m and its module, that the hosts must have already.

        Empty if the script is copied to the hosts.
        """
        program = self.script.program
        return () if self.copied else program[: 2 if program[0] == "-m" else 1]

    def playbook(self, events: RunEvents, launch: Launched) -> RunScript:
        document = {
            "source": str(self.copied.folder) if self.copied else "",
            "files": self.copied.files if self.copied else (),
            "folder": script_folder(self.plan, self.copied),
            "look": self.look,
        }
        layer = {
            "path": layer_folder(self.plan, self.layer),
            "stack": self.layer.stack if self.layer else "",
            "wheels": str(self.layer.folder) if self.layer else "",
            "lock": str(self.layer.folder / LOCK) if self.layer else "",
        }
        return RunScript(events, launch, document, layer, self.hub_token)

    def record(self) -> dict[str, Any]:
        script = {
            "program": self.script.program,
            "folder": str(self.script.folder or ""),
            "logs": self.logs,
        }
        return {"script": script, "layer": self.layer.document() if self.layer else None}


def script_folder(plan: LaunchPlan, copied: Copied | None) -> str:
    """Return the path on the hosts of the copy of a script's folder; "" if it is not copied."""
    return f"{plan.prefix}/scripts/{copied.name}" if copied else ""


def layer_folder(plan: LaunchPlan, layer: Layer | None) -> str:
    """Return the path of the overlay's folder on the hosts; "" without an overlay."""
    return f"{plan.prefix}/layers/{layer.name}" if layer else ""


class ScriptFailed(FtclusterError):
    """The error for a script that failed on a rank; the command's exit code is the script's."""

    def __init__(self, error: FtclusterError, exit_code: int) -> None:
        super().__init__(error.message, error.hint)
        self.exit_code = exit_code


def render_script(
    plan: LaunchPlan,
    run: str,
    hub_token: bool = False,
    layer: Layer | None = None,
    fast: bool = False,
) -> Launch:
    """Return the launch of a script's run.

    Args:
        hub_token: True if the ranks get a token for the Hub.
        layer: overlay with the packages of --requirements; None for none.
        fast: True if the script uses ftcluster's kernels.
    """
    program = ("-m", "ftcluster_train.host.script", "run", run_dir(plan, run))
    launch = render(plan, run, program)
    packages = layer_folder(plan, layer)
    env = launch.env | script_variables(plan, launch.run_dir, hub_token, packages, fast)
    return replace(launch, env=env, script=True)


def start_folder(plan: LaunchPlan, run: str, script: Script) -> str:
    """Return the path of the ranks' working directory."""
    return script.start or f"{run_dir(plan, run)}/script"


def run_script(
    run: ScriptRun,
    view: View,
    connection_options: tuple[str, ...],
    show: Callable[[Literal["stdout", "stderr"], str], None],
    cancelled: Callable[[], bool],
    detach: bool = False,
) -> RunProgress:
    """Launch a script and follow it to its end.

    If this command detaches from the script, the result has the state "running".

    Args:
        connection_options: arguments of ansible-playbook for reaching the hosts.
        show: function that is called with pieces of rank 0's output: the stream and the text.
        cancelled: function that returns True once nobody reads rank 0's output any more, so that
            the run is stopped. It is called several times a second.
        detach: True to return once the script is launched.

    Raises:
        Detached: a signal has ended this command only; the script continues.
        ScriptFailed: the script failed on a rank; the error contains the exit code of that rank.
        FtclusterError: the script could not be run.
        Interrupted: the script was stopped, here or elsewhere; no rank is running any more.
        BrokenPipeError: nobody reads rank 0's output any more.
    """

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "output":
            show(event["stream"], event["text"])

    followed = launch_and_follow(run, view, connection_options, on_event, cancelled, detach)
    progress = followed.progress
    if followed.detached:
        return progress
    result = script_result(run, progress)
    if followed.outcome.state == "stopped" and cancelled():
        raise BrokenPipeError
    raise_if_stopped(followed, result)
    if progress.state != "done":
        error = failure(run, followed)
        if progress.errors and progress.errors[0]["rank"] is not None and progress.ended:
            error = ScriptFailed(error, progress.end["exit_code"])
        error.details = result
        raise error
    return progress


def script_result(run: ScriptRun, progress: RunProgress) -> dict[str, Any]:
    """Return the result of `run --json`.

    `exit_code` is None if no rank was started. `backend` is None if the script created no process
    group.
    """
    return {
        "run": run.id,
        "state": progress.state,
        "exit_code": progress.end.get("exit_code"),
        "world_size": run.plan.world_size,
        "backend": progress.backend or None,
        "seconds": progress.seconds,
        "logs": run.logs,
    }
