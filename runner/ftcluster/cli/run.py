"""`ftcluster run [--nodes N] [--fast] ... -- SCRIPT ARGS ...`: the user's own script."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO

from packaging.version import Version
from rich.text import Text

from ftcluster.ansible.options import CONNECTION, add_options, ask_passwords, passed_on
from ftcluster.cli.arguments import (
    add_commands,
    add_detach,
    add_dry_run,
    add_launch,
    add_output,
    add_restarts,
    add_sharing,
    at_least,
    launch_options,
    print_detached,
)
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import recall
from ftcluster.errors import UsageError
from ftcluster.launch.ask import find_script, read_stack
from ftcluster.launch.follow import new_run_id
from ftcluster.launch.hub_token import add_option, find_token
from ftcluster.launch.layer import Layer, make_layer
from ftcluster.launch.place import Place
from ftcluster.launch.preview import COMMANDS_HINT, as_commands, host_document, reasons
from ftcluster.launch.script_run import (
    ScriptRun,
    layer_folder,
    render_script,
    run_script,
    script_folder,
    script_result,
    start_folder,
)
from ftcluster.planning.backends import stack_of
from ftcluster.planning.drained import with_drained
from ftcluster.planning.plan import first_hosts
from ftcluster.planning.spares import next_hosts, plan_with_spares
from ftcluster.progress.format import duration
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View, make_view
from ftcluster.stacks.catalog import Stack, load_stacks
from ftcluster.text.plural import counted
from ftcluster.text.streams import is_unread
from ftcluster.text.terminal import print_lines
from ftcluster.user_script.command import USAGE, Script, doubtful_paths, read_words
from ftcluster.user_script.compatibility import Incompatibility, incompatibilities
from ftcluster.user_script.files import choose_files
from ftcluster.user_script.requirements import read_requirements
from ftcluster.user_script.source import read_source
from ftcluster_common.launch import FAST_VARIABLE

FAST_TORCH = "2.5"  # the oldest, as in ftcluster_train.fast
FAST = "--fast: dropout, attention, tanh GELU, cross entropy and AdamW are those of ftcluster"
HANG_SECONDS = 600  # a script may wait for something for long


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run your own script on every rank",
        description="Runs a script that uses torch.distributed, Accelerate or Trainer, unchanged, "
        "on every rank of the cluster that was set up last. Its folder is copied to the hosts, the "
        "output of rank 0 is shown, and its exit code is that of the command.",
        usage=USAGE,
    )
    add_launch(parser)
    parser.add_argument(
        "--on-hosts",
        action="store_true",
        help="SCRIPT is an absolute path that exists on every host; nothing is copied",
    )
    parser.add_argument(
        "--force", action="store_true", help="run it even if it needs other versions"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="train with the kernels of `train`: dropout, attention, GELU, cross entropy, AdamW; "
        "what does not fit is left to torch, and said",
    )
    parser.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="packages that the script needs beside the stack's, in pip's format; each host gets "
        "them once",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="take the packages of --requirements from this folder, without a package index",
    )
    add_option(parser)
    add_restarts(parser, default=0)  # a script may not resume
    parser.add_argument(
        "--hang-seconds",
        type=at_least(0),
        default=HANG_SECONDS,
        metavar="N",
        help="end the script when no rank has used its CPU, a disk or the network for N seconds; "
        f"0: never (default: {HANG_SECONDS})",
    )
    add_sharing(parser)
    add_detach(parser)
    add_dry_run(parser)
    add_commands(parser)
    add_output(parser, verbose="")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ARGS",
        help="a Python file with its arguments, or -m MODULE with its arguments",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    here = Path.cwd()
    script = read_words(words, options.on_hosts, here)
    cluster = recall()
    facts = first_hosts(cluster.usable, options.nodes)
    spares = next_hosts(cluster.usable, options.nodes, options.spares)
    if options.fast:
        check_fast(stack_of(facts, load_stacks()))
    notes = [
        *check_script(script, facts, options.force),
        *doubtful_paths(script, here, _here_only(facts)),
    ]
    copied = choose_files(script.folder, Path.home()) if script.folder else None
    decided = plan_with_spares(facts, spares, None, load_stacks(), options.ranks_per_host)
    decided = with_drained(decided, cluster)
    run_id = new_run_id(script.name)
    token = find_token() if options.hf_token else ""
    view = make_view(verbose=True)  # a live view would garble the output of rank 0
    show = Show(sys.stderr if options.json else sys.stdout, sys.stderr)
    try:
        with ask_passwords(vars(options)) as passwords:
            reach = (*cluster.options, *passed_on(vars(options)), *passwords)
            hosts = tuple(host.name for host in decided.prepared)
            place = Place(cluster.inventories, hosts, decided.rank_user, decided.prefix, reach)
            layer = layer_of(options, place, view)
            launch = render_script(decided, run_id, options.hf_token, layer, options.fast)
            launch = replace(launch, hang_seconds=options.hang_seconds, **launch_options(options))
            prepared = ScriptRun(run_id, cluster, decided, launch, script, copied, layer, token)
            if options.dry_run:
                notes += look_for_script(prepared, place)
                show_plan(prepared, notes, options)
                return 0
            for note in notes:
                view.say(f"note: {note}")
            progress = run_script(prepared, view, reach, show, lambda: show.closed, options.detach)
    finally:
        if show.in_line and sys.stderr.isatty():
            print(file=sys.stderr)  # the next message begins a line
    if progress.state == "running":
        print_detached(options, prepared.id)
    else:
        say_result(prepared, progress, view, options.json)
    return 0


def check_script(script: Script, facts: ClusterFacts, force: bool) -> list[str]:
    """What the user should know about a script before it runs on these hosts.

    Raises:
        UsageError: it would fail on every rank; names every reason.
    """
    source = read_source(script.source, script.folder) if script.source and script.folder else None
    stacks = load_stacks()
    stack = stack_of(facts, stacks)
    problems = incompatibilities(source, script.arguments, stack, stacks)
    if source and source.syntax_error:
        problems.insert(0, Incompatibility(source.syntax_error, "correct it"))
    certain = [str(problem) for problem in problems if problem.certain]
    if certain and not force:
        raise UsageError(
            f"the script would fail on every rank, {counted(len(certain), 'problem')}\n  "
            + "\n  ".join(certain),
            "to run it anyway: --force",
        )
    return [str(problem) for problem in problems]


def check_fast(stack: Stack) -> None:
    """Make sure that a stack has what our kernels need.

    Raises:
        UsageError: its torch is too old.
    """
    torch = stack.version("torch")
    if Version(torch) < Version(FAST_TORCH):
        raise UsageError(
            f"--fast needs torch {FAST_TORCH} or newer; the stack {stack.name} has {torch}",
            "run it without --fast, or set up another stack; for a list: ftcluster stacks",
        )


def layer_of(options: argparse.Namespace, place: Place, view: View) -> Layer | None:
    """The packages of --requirements that the hosts' stack does not have, or None.

    Raises:
        UsageError: the options or the file are wrong.
        FtclusterError: the hosts do not answer, or the packages cannot be downloaded.
    """
    if not options.requirements:
        if options.wheels:
            raise UsageError("--wheels is for the packages of --requirements FILE")
        return None
    if options.wheels and not options.wheels.is_dir():
        raise UsageError(f"--wheels: {options.wheels} is not a folder")
    requirements = read_requirements(options.requirements)
    view.say(f"choosing the packages of {options.requirements} ...")
    return make_layer(requirements, options.wheels, read_stack(place))


def look_for_script(run: ScriptRun, place: Place) -> list[str]:
    """Check that the hosts have a script that is not copied; returns what cannot be known.

    Raises:
        FtclusterError: a host does not have it.
    """
    if not run.look or (run.look[0] == "-m" and run.layer and run.layer.has_module(run.look[1])):
        return []
    silent = find_script(place, run.look)
    return [f"whether {', '.join(silent)} has {run.look[-1]} is not known"] if silent else []


def _here_only(facts: ClusterFacts) -> bool:
    return len(facts.hosts) == 1 and facts.head.connection == "local"


class Show:
    """Writes the output of rank 0 as it comes.

    Attributes:
        closed: whether the reader is gone, as with `| head`.
        in_line: whether the last line is incomplete.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self.closed = False
        self.in_line = False
        self._streams = {"stdout": stdout, "stderr": stderr}

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Write text to one of the streams."""
        if self.closed:
            return
        target = self._streams[stream]
        try:
            target.write(text.encode(target.encoding, "replace").decode(target.encoding))
            target.flush()
            self.in_line = not text.endswith("\n")
            self.closed = is_unread(target)
        except BrokenPipeError:
            self.closed = True


def show_plan(run: ScriptRun, notes: Sequence[str], options: argparse.Namespace) -> None:
    """Print what would run."""
    script, copied = run.script, run.copied
    if options.json:
        document = {
            "run": run.id,
            "state": "planned",
            "world_size": run.plan.world_size,
            "spares": [host_document(host) for host in run.plan.spares],
            "decisions": [vars(decision) for decision in run.plan.decisions],
            "notes": notes,
            "script": {
                **run.job["script"],
                "folder": str(copied.folder) if copied else None,
                "files": copied.files if copied else [],
                "copied_to": script_folder(run.plan, copied),
            },
            "layer": run.layer.document() if run.layer else None,
            "launch": run.launch.shown(),
        }
        print(json.dumps(document))
        return
    lines: list[Text | str] = [line for note in notes for line in f"note: {note}".splitlines()]
    if copied:
        left_out = f", without {', '.join(copied.left_out)}" if copied.left_out else ""
        lines.append(
            f"copied to the hosts: {copied.folder} ({len(copied.files)} files, "
            f"{copied.size_bytes / 1e6:.1f} MB{left_out}) to {script_folder(run.plan, copied)}, "
            f"and there to {start_folder(run.plan, run.id, script)}"
        )
    if run.layer:
        packages = ", ".join(f"{name} {version}" for name, version in run.layer.packages.items())
        lines.append(f"packages in {layer_folder(run.plan, run.layer)} on the hosts: {packages}")
    if FAST_VARIABLE in run.launch.env:
        lines.append(FAST)
    lines += [*reasons(run.plan), "", COMMANDS_HINT]
    if options.commands:
        print(as_commands(lines, run.launch, run.plan, run.job))
    else:
        print_lines(lines)


def say_result(run: ScriptRun, progress: RunProgress, view: View, as_json: bool) -> None:
    """Print the result of a script that succeeded."""
    if as_json:
        print(json.dumps(script_result(run, progress)))
        return
    head = run.cluster.facts.head
    where = "" if head.connection == "local" else f"{head.name}:"
    ranks = counted(run.plan.world_size, "rank")
    view.say(
        f"done: run {run.id} on {ranks}, {duration(progress.seconds)}; "
        f"output of all ranks: {where}{run.logs}"
    )
