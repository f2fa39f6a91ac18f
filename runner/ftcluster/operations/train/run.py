"""Run a user's own script on every rank of a cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version
from rich.text import Text

from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.errors import UsageError
from ftcluster.launch.ask import find_script, read_stack
from ftcluster.launch.follow import new_run_id
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.layer import Layer, make_layer
from ftcluster.launch.preview import COMMANDS_HINT, as_commands, host_document, reasons
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.script_run import (
    ScriptRun,
    layer_folder,
    render_script,
    run_script,
    script_folder,
    script_result,
    start_folder,
)
from ftcluster.operations.connection import Connection, cluster_of
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.planning.backends import stack_of
from ftcluster.planning.plan import first_hosts
from ftcluster.planning.spares import next_hosts, plan_with_spares
from ftcluster.progress.format import duration
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.stacks.catalog import Stack, load_stacks
from ftcluster.text.plural import counted
from ftcluster.user_script.command import USAGE, Script, doubtful_paths, read_words
from ftcluster.user_script.compatibility import (
    Incompatibility,
    incompatibilities,
    other_backends,
)
from ftcluster.user_script.files import choose_files
from ftcluster.user_script.requirements import read_requirements
from ftcluster.user_script.source import LOCAL_RANK, Source, read_source
from ftcluster_common.protocol.launch import FAST_VARIABLE

__all__ = ["USAGE"]
FAST_TORCH = "2.5"  # the oldest supported version, as in ftcluster_train.fast
FAST = "--fast: dropout, attention, tanh GELU, cross entropy and AdamW use ftcluster's kernels"
HANG_SECONDS = 600  # a script may be silent for a long time

ShowOutput = Callable[[Literal["stdout", "stderr"], str], None]


@dataclass(frozen=True)
class RunRequest:
    """A script to run, and the options of its run.

    Attributes:
        words: a Python file with its arguments, or -m and a module with its arguments.
        connection: the cluster, and the arguments for reaching its hosts.
        hosts: names of the hosts to use; if empty, all hosts of the cluster that are not drained.
        nodes: number of hosts that get ranks, including the head; None for all hosts.
        spares: number of additional hosts that may replace a lost host; None for no spares.
        ranks_per_host: number of ranks on each host; None if the plan decides.
        run_name: beginning of the run's id; None for the script's name.
        on_hosts: True if every host has the script at the same absolute path. Otherwise the
            script's folder is copied to the hosts.
        force: True to run the script even if it requires versions that the stack does not have.
        fast: True if the script uses ftcluster's kernels, as training with a recipe does.
        requirements: path of a requirements file with packages that the script needs in addition to
            the stack; None for none.
        wheels: path of a folder with wheels of these packages; None to download the wheels.
        hub_token: True if the hosts may use the user's token for the Hugging Face Hub.
        detach: True if the command returns once the run is launched.
    """

    words: tuple[str, ...]
    connection: Connection = field(default_factory=Connection)
    nodes: int | None = None
    spares: int | None = None
    ranks_per_host: int | None = None
    run_name: str | None = None
    on_hosts: bool = False
    force: bool = False
    fast: bool = False
    requirements: Path | None = None
    wheels: Path | None = None
    hub_token: bool = False
    detach: bool = False
    hosts: tuple[str, ...] = ()
    launch: LaunchOptions = field(default_factory=lambda: LaunchOptions(hang_seconds=HANG_SECONDS))

    def __post_init__(self) -> None:
        """Check that `words` name a script.

        Raises:
            UsageError: `words` name no script.
        """
        self.script()

    def script(self) -> Script:
        """Return the script that every rank runs."""
        return read_words(list(self.words), self.on_hosts, Path.cwd())


@dataclass(frozen=True)
class ScriptPlan:
    """A planned run of a script, with the reasons for each decision.

    Attributes:
        notes: facts about the script that the user should know.
    """

    run: ScriptRun
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the document that `run --dry-run --json` prints."""
        run, copied = self.run, self.run.copied
        return {
            "run": run.id,
            "state": "planned",
            "world_size": run.plan.world_size,
            "spares": [host_document(host) for host in run.plan.spares],
            "decisions": [vars(decision) for decision in run.plan.decisions],
            "notes": list(self.notes),
            "script": {
                **run.job["script"],
                "folder": str(copied.folder) if copied else None,
                "files": copied.files if copied else [],
                "copied_to": script_folder(run.plan, copied),
            },
            "layer": run.layer.document() if run.layer else None,
            "launch": run.launch.shown(),
        }

    def lines(self) -> list[Text | str]:
        """Return the plan as text, without the commands."""
        run, script, copied = self.run, self.run.script, self.run.copied
        lines: list[Text | str] = [
            line for note in self.notes for line in f"note: {note}".splitlines()
        ]
        if copied:
            skipped = f", without {', '.join(copied.left_out)}" if copied.left_out else ""
            lines.append(
                f"copied to the hosts: {copied.folder} ({len(copied.files)} files, "
                f"{copied.size_bytes / 1e6:.1f} MB{skipped}) to {script_folder(run.plan, copied)}; "
                f"each run gets its own copy: {start_folder(run.plan, run.id, script)}"
            )
        if run.layer:
            packages = ", ".join(
                f"{name} {version}" for name, version in run.layer.packages.items()
            )
            lines.append(
                f"packages in {layer_folder(run.plan, run.layer)} on the hosts: {packages}"
            )
        if FAST_VARIABLE in run.launch.env:
            lines.append(FAST)
        lines += [*reasons(run.plan), "", COMMANDS_HINT]
        return lines

    def commands(self) -> str:
        """Return the plan as shell commands. The plan's text becomes comments."""
        return as_commands(self.lines(), self.run.launch, self.run.plan, self.run.job)


@dataclass(frozen=True)
class RunResult:
    """The result of a script that has succeeded, or of a detached run that continues."""

    run: ScriptRun
    progress: RunProgress

    def document(self) -> dict[str, Any]:
        """Return the document that `run --json` prints."""
        if self.progress.state == "running":
            return {"run": self.run.id, "state": self.progress.state}
        return script_result(self.run, self.progress)

    def lines(self) -> list[str]:
        """Return the duration and the path of the output; for a detached run, its id."""
        run = self.run
        if self.progress.state == "running":
            return [run.id]
        head = run.cluster.facts.head
        where = "" if head.connection == "local" else f"{head.name}:"
        backend = f", backend {self.progress.backend}" if self.progress.backend else ""
        return [
            f"done: run {run.id} on {counted(run.plan.world_size, 'rank')}{backend}, "
            f"{duration(self.progress.seconds)}; output of all ranks: {where}{run.logs}"
        ]


def dry_run(request: RunRequest, view: View) -> ScriptPlan:
    """Return the run that `run` would launch. This raises the same errors as `run`."""
    prepared, run_hosts, notes = _prepared(request, view)
    return ScriptPlan(prepared, (*notes, *_look_for_script(prepared, run_hosts)))


def run(
    request: RunRequest, show: ShowOutput, view: View, cancelled: Callable[[], bool] = lambda: False
) -> RunResult:
    """Run a script to its end; return right after the launch if `request.detach` is set.

    Args:
        show: function that is called with each piece of rank 0's output: the stream and the text.
        cancelled: function that returns True once nobody reads the output any more. It is called
            several times a second.

    Raises:
        ClusterChanged: the cluster has changed since the run was planned. `again`
            retries the operation.
        Detached: a signal has ended this process only; the script continues.
        Interrupted: the script was stopped.
        BrokenPipeError: nobody reads rank 0's output any more.
        FtclusterError: the request is not valid, or the script failed.
    """
    prepared, _, notes = _prepared(request, view)
    for note in notes:
        view.say(f"note: {note}")
    connection_options = request.connection.to(prepared.cluster)
    ensure_head_access(prepared, connection_options, view)
    progress = run_script(prepared, view, connection_options, show, cancelled, request.detach)
    return RunResult(prepared, progress)


def _prepared(request: RunRequest, view: View) -> tuple[ScriptRun, RunHosts, list[str]]:
    """Return the run to launch, its hosts, and notes for the user."""
    current_folder, script, stacks = Path.cwd(), request.script(), load_stacks()
    cluster = with_hosts(cluster_of(request.connection, view), request.hosts)
    facts = first_hosts(cluster.usable, request.nodes, cluster.absent)
    spares = next_hosts(cluster.usable, request.nodes, request.spares or 0, cluster.absent)
    source = read_source(script.source, script.folder) if script.source and script.folder else None
    stack = stack_of(facts, stacks)
    if request.fast:
        _check_fast(stack)
    here_only = len(facts.hosts) == 1 and facts.head.connection == "local"
    notes = [
        *_check_script(source, script, stack, stacks, request),
        *doubtful_paths(script, current_folder, here_only),
    ]
    copied = choose_files(script.folder, Path.home()) if script.folder else None
    decided = plan_with_spares(
        facts, spares, None, stacks, request.ranks_per_host, drained=cluster.drained
    )
    notes += other_backends(source, script.arguments, stack, decided.backend)
    run_id = new_run_id(request.run_name or script.name)
    token = find_token() if request.hub_token else ""
    hosts = tuple(host.name for host in decided.prepared)
    connection_options = request.connection.to(cluster)
    run_hosts = RunHosts(
        cluster.inventories, hosts, decided.rank_user, decided.prefix, connection_options
    )
    layer = _layer_of(request, run_hosts, view)
    notes += layer.notes if layer else ()
    launch = render_script(decided, run_id, request.hub_token, layer, request.fast)
    local_rank = source.local_rank if source else ""
    if any(word.partition("=")[0] in LOCAL_RANK for word in script.arguments):
        local_rank = ""
    prepared = ScriptRun(run_id, cluster, decided, launch, script, copied, local_rank, layer, token)
    return request.launch.applied_to(prepared), run_hosts, notes


def _check_script(
    source: Source | None,
    script: Script,
    stack: Stack,
    stacks: Mapping[str, Stack],
    request: RunRequest,
) -> list[str]:
    """Check a script against the hosts' stack, and return notes about possible problems.

    Raises:
        UsageError: the script would fail on every rank; lists every reason.
    """
    brings = request.requirements is not None
    problems = incompatibilities(source, script.arguments, stack, stacks, brings)
    if source and source.syntax_error:
        problems.insert(0, Incompatibility(source.syntax_error, "correct the script"))
    certain = [str(problem) for problem in problems if problem.certain]
    if certain and not request.force:
        raise UsageError(
            f"the script would fail on every rank: {counted(len(certain), 'problem')}\n  "
            + "\n  ".join(certain),
            "to run it anyway: --force",
        )
    return [str(problem) for problem in problems]


def _check_fast(stack: Stack) -> None:
    """Check that a stack has the torch version that the kernels need.

    Raises:
        UsageError: the stack's torch is too old.
    """
    torch = stack.version("torch")
    if Version(torch) < Version(FAST_TORCH):
        raise UsageError(
            f"--fast needs torch {FAST_TORCH} or newer, but stack {stack.name} has torch {torch}",
            "run the script without --fast, or set up another stack; to list the stacks: "
            "ftcluster stacks",
        )


def _layer_of(request: RunRequest, run_hosts: RunHosts, view: View) -> Layer | None:
    """Return an overlay with the packages of --requirements that the stack lacks.

    Return None if --requirements is not set.

    Raises:
        UsageError: the options or the requirements file are not valid.
        FtclusterError: the hosts do not respond, or the packages cannot be downloaded.
    """
    if not request.requirements:
        if request.wheels:
            raise UsageError("--wheels DIR is only allowed together with --requirements FILE")
        return None
    if request.wheels and not request.wheels.is_dir():
        raise UsageError(f"--wheels: {request.wheels} is not a folder")
    requirements = read_requirements(request.requirements)
    view.say(f"choosing the packages of {request.requirements} ...")
    return make_layer(requirements, request.wheels, read_stack(run_hosts))


def _look_for_script(run: ScriptRun, run_hosts: RunHosts) -> list[str]:
    """Check that the hosts have the script, if it is not copied to them.

    Return a note about hosts that did not respond.

    Raises:
        FtclusterError: a host does not have the script.
    """
    if not run.look or (run.look[0] == "-m" and run.layer and run.layer.has_module(run.look[1])):
        return []
    silent = find_script(run_hosts, run.look)
    if not silent:
        return []
    return [f"no response from {', '.join(silent)}, so {run.look[-1]} may be missing there"]
