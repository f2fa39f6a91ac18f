"""List the runs on a cluster, copy their logs and models, and remove ended runs."""

import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.answers import (
    CACHES_FOUND,
    DATA_READ,
    JOBS_FOUND,
    RUNS_LISTED,
    Answer,
    Answered,
    checked,
    clean_removed,
    run_id,
    take,
)
from ftcluster.ansible.failures import failed_without_task
from ftcluster.ansible.playbook import TaskEvent
from ftcluster.ansible.playbooks import Ask, Caches, Clean, Data, Fetch, Jobs, Logs, Runs
from ftcluster.ansible.signals import Interrupts
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.launch.kept_options import DEFAULTS, KeptOptions, kept_options_of
from ftcluster.launch.record import recorded_digests, recorded_run_hosts
from ftcluster.launch.run_hosts import UNREACHABLE, RunHosts, failure_hint, head_lost_hint, play_on
from ftcluster.recipe.recipe import checked_recipe
from ftcluster.text.host_names import with_host
from ftcluster.text.printable import printable
from ftcluster.user_script.own_code import reported, use_code
from ftcluster_common.protocol.run_state import RunState
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import NO_CODE, UserCode, code_of, declared_metrics

SHORT_SECONDS = 120
MOST_RUNS = 100_000  # maximum number of runs to accept from a head, which may be hostile
LIST = "to list the runs: ftcluster ps"
OTHER_PACKAGE = "if the hosts have a different version of ftcluster, run ftcluster setup"
MOST_ALIKE = 20  # maximum number of matching runs to list for an ambiguous beginning of an id
CLEAN_RUNS = 1000  # number of runs to remove with one playbook, limited by the command line
LONG_SECONDS = 24 * 3600  # time limit for copying over a slow connection, or following a log


def list_runs(
    run_hosts: RunHosts, beginnings: Sequence[str] = (), most: int = 0
) -> tuple[list[RunState], int]:
    """Return the runs that the head lists, newest first, and the number of omitted runs.

    Args:
        beginnings: beginnings of the ids to list; if empty, all runs.
        most: maximum number of runs to return; 0 for all. Running runs are returned first, then the
            newest.

    Raises:
        FtclusterError: the head does not respond, or its response is not valid.
    """
    runs: dict[str, RunState] = {}
    skip, remaining = 0, 1
    while remaining and not (most and runs):
        listed, remaining = _page(run_hosts, Runs(run_hosts.at(), list(beginnings), skip, most))
        skip += len(listed)
        runs |= {run.run: run for run in listed}
        if skip > MOST_RUNS:
            raise FtclusterError(f"{run_hosts.head} lists more than {MOST_RUNS:,} runs", LIST)
    return sorted(runs.values(), key=lambda run: -run.started), remaining


def list_everywhere(
    run_hosts: RunHosts, beginnings: Sequence[str] = (), most: int = 0
) -> tuple[list[RunState], int, tuple[str, ...]]:
    """Return the runs of all heads: a run may have any host of the cluster as its head.

    Args:
        beginnings, most: see `list_runs`.

    Returns:
        The runs, newest first; the number of omitted runs; and the hosts that do not respond.

    Raises:
        FtclusterError: the cluster's head does not respond, or a response is not valid.
    """
    others = run_hosts.hosts[1:]
    if not others:
        return *list_runs(run_hosts, beginnings, most), ()
    page = Runs(run_hosts.at(), list(beginnings), 0, most)
    pages = play(page, run_hosts, SHORT_SECONDS, RUNS_LISTED, optional=others)
    if run_hosts.head not in pages:
        raise FtclusterError(f"{run_hosts.head} did not list its runs", "run ftcluster setup")
    listed: dict[str, tuple[RunState, ...]] = {}
    omitted = 0
    for host, (runs, more) in pages.items():
        if more and not most:  # the host's response contains only a part of its list
            listed[host] = tuple(list_runs(run_hosts.headed_by(host), beginnings)[0])
        else:
            listed[host] = runs
            # other hosts list parts of the same runs
            omitted += more if host == run_hosts.head else 0
    merged = merged_runs(listed, run_hosts.head)
    kept = sorted(merged, key=lambda run: (run.state == "running", run.started), reverse=True)
    kept = kept[: most or None]
    silent = tuple(host for host in others if host not in pages)
    newest = sorted(kept, key=lambda run: run.started, reverse=True)
    return newest, omitted + len(merged) - len(kept), silent


def merged_runs(listed: Mapping[str, Sequence[RunState]], head: str) -> list[RunState]:
    """Merge the lists of all hosts, so that each run appears once.

    Only the head of a run stores the launch, which names the run's hosts. The other hosts can only
    report whether processes of the run are active or copies for it arrive. Until the launch, the
    run is running while any host reports this.

    Args:
        listed: runs by the name of the host that lists them.
        head: name of the cluster's head. It also lists runs that were never launched there.
    """
    runs: dict[str, RunState] = {}
    for host in sorted(listed, key=lambda name: name != head):
        for run in listed[host]:
            before = runs.get(run.run)
            is_running = run.state == "running"
            shown = run.hosts or host == head or is_running
            if shown if before is None else not before.hosts and (run.hosts or is_running):
                runs[run.run] = run
    return list(runs.values())


def _page(run_hosts: RunHosts, page: Runs) -> tuple[tuple[RunState, ...], int]:
    """Return one page of the runs, and the number of remaining runs.

    This raises the same errors as `list_runs`.
    """
    if run_hosts.is_here:  # without Ansible, which would take most of the time
        return _page_here(page)
    alone = replace(run_hosts, hosts=run_hosts.hosts[:1])
    answered = play(page, alone, SHORT_SECONDS, RUNS_LISTED)
    if run_hosts.head not in answered:
        raise FtclusterError(f"{run_hosts.head} did not list its runs", "run ftcluster setup")
    return answered[run_hosts.head]


def _page_here(page: Runs) -> tuple[tuple[RunState, ...], int]:
    at = page.at
    command = (
        f"{at.train_stack}/bin/python", "-B", "-m", "ftcluster_train.host.runs", "list",
        at.train_runs, str(page.runs_skip), str(page.runs_most), *page.runs_beginnings,
    )  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SHORT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise FtclusterError(f"{at.train_head}: {reason}", OTHER_PACKAGE)
        return checked(RUNS_LISTED, printable(done.stdout), at.train_head)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise FtclusterError(f"{at.train_head}: {error}", "run ftcluster setup") from None


def find_run(run_hosts: RunHosts, run: str) -> RunState:
    """Return the run whose id is or begins with `run`.

    Raises:
        FtclusterError: there is no such run, or several ids begin with `run`.
    """
    return named_run(run, list_runs(run_hosts, (run,), MOST_ALIKE)[0], run_hosts.head)


def named_run(name: str, listed: Sequence[RunState], where: str) -> RunState:
    """Return the run whose id is or begins with `name`.

    Args:
        listed: runs to choose from.
        where: hosts that list these runs, for the error.

    Raises:
        FtclusterError: there is no such run, or several ids begin with `name`.
    """
    runs = {run.run: run for run in listed}
    matching = [name] if name in runs else [run for run in runs if run.startswith(name)]
    return runs[_only(name, matching, where)]


def _only(beginning: str, matching: Sequence[str], where: str) -> str:
    if len(matching) > 1:
        raise FtclusterError(f"several runs begin with '{beginning}': {', '.join(matching)}")
    if not matching:
        raise FtclusterError(f"there is no run '{beginning}' on {where}", LIST)
    return matching[0]


@dataclass(frozen=True)
class FoundJob:
    """A training run that was found on the hosts.

    Attributes:
        run: id of the run.
        recipe: the recipe, with the paths of its folders on the hosts.
        hosts: names of the hosts that respond. Hosts that the run was prepared on come first, then
            the other hosts. If the run's head responds, the former are in the order of its ranks;
            otherwise they are in the cluster's order.
        nodes: number of hosts with ranks; at most the number of hosts that respond and were
            prepared for the run.
        resume: ids of the runs that this run itself continued.
        ipex: True if IPEX optimized the model.
        saved: True if at least one host has a checkpoint or a snapshot.
        code: the user's Python files that the run executes.
        options: options of the run's launch.
        others: hosts that respond, but have no files of the run.
    """

    run: str
    recipe: Recipe
    hosts: tuple[str, ...]
    nodes: int
    resume: tuple[str, ...] = ()
    ipex: bool = False
    saved: bool = True
    code: UserCode = NO_CODE
    options: KeptOptions = DEFAULTS
    others: tuple[str, ...] = ()


def find_job(run_hosts: RunHosts, run: str, users_code: UserCode = NO_CODE) -> FoundJob:
    """Find a training run by its id, or by the beginning of its id.

    All hosts are searched, because the head may be lost. The user's Python files that the run
    executes come from a host. These files are accepted if this control node started the run with
    the same files, or if the user names the same files.

    Args:
        run: the run's id, or the beginning of the id.
        users_code: Python files that the user names.

    Raises:
        FtclusterError: no host responds, there is no such run, the run is not a training, or this
            control node has no record of the run's Python files.
    """
    jobs = play(Jobs(run_hosts.at(run)), run_hosts, SHORT_SECONDS, JOBS_FOUND, unreachable=True)
    hosts = tuple(host for host in run_hosts.hosts if host in jobs)
    if not hosts:
        raise FtclusterError("none of the cluster's hosts answers", UNREACHABLE)
    everywhere = {name: job for host in hosts for name, job in jobs[host].items()}
    name = _only(run, sorted(everywhere), ", ".join(hosts))
    order = _order_of(jobs, name)
    hosts = tuple(
        sorted(hosts, key=lambda host: (name not in jobs[host], order.get(host, len(order))))
    )
    others = tuple(host for host in hosts if name not in jobs[host])
    prepared, job = len(hosts) - len(others), everywhere[name]
    saved = any(jobs[host].get(name, {}).get("saved", True) for host in hosts if name in jobs[host])
    if job.get("purpose", "train") != "train":
        raise FtclusterError(f"run {name} did not train a model, so it cannot be resumed", LIST)
    try:
        code = code_of(job.get("code"))
        _check_code(name, code, users_code)
        with reported():
            use_code(code, Path(code.task.name if code.task else name))
            recipe = checked_recipe(job["recipe"], declared_metrics(code.metrics))
        return FoundJob(
            name, recipe, hosts, min(prepared, _count(job["nodes"])),
            tuple(map(run_id, job["resume"])), job["ipex"] is True, saved, code,
            _options(name, job), others,
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FtclusterError(
            f"{name} on {hosts[0]} is not a resumable training run: {ascii(str(error))[:200]}",
            LIST,
        ) from error


def _order_of(jobs: Mapping[str, Mapping[str, dict[str, Any]]], run: str) -> dict[str, int]:
    """Return the position of each host in a run's launch, as the run's head reports it.

    The result is empty if the head has an earlier version of ftcluster, which does not report this.
    """
    for host, jobs_there in jobs.items():
        names = jobs_there.get(run, {}).get("hosts")
        if isinstance(names, list) and names[:1] == [host]:
            return {name: place for place, name in enumerate(names) if isinstance(name, str)}
    return {}


def _check_code(run: str, code: UserCode, users_code: UserCode) -> None:
    """Check that each Python file of a run is recorded on this control node or named by the user.

    Raises:
        FtclusterError: a file differs, or this control node has no record of the file.
    """
    recorded = recorded_digests(run)
    kinds = (
        ("--task", code.task, users_code.task),
        ("--metrics", code.metrics, users_code.metrics),
    )
    for flag, file, named in kinds:
        if named and (file is None or file.sha256 != named.sha256):
            uses = f"{file.name} (SHA-256 {file.sha256[:12]})" if file else "none"
            raise FtclusterError(
                f"{flag}: run {run} uses {uses}, but {named.name} has SHA-256 {named.sha256[:12]}",
                f"omit {flag}, because a run continues with its own files; to use other files, "
                "start a new training run",
            )
        if file and not named and file.sha256 not in recorded:
            raise FtclusterError(
                f"run {run} executes {file.name} (SHA-256 {file.sha256[:12]}), which this control "
                "node has no record of",
                f"if you trust the file, name it: {flag} {file.name}",
            )


def _options(run: str, job: Mapping[str, Any]) -> KeptOptions:
    """Return the options of a run's launch.

    Hosts with an older version of ftcluster do not return options. Then the run's hosts come from
    this control node's record.
    """
    if "options" in job:
        return kept_options_of(job["options"])
    recorded = recorded_run_hosts(run)
    return KeptOptions(hosts=recorded.hosts if recorded else ())


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"nodes is {value!r}")
    return value


def copy_logs(
    run_hosts: RunHosts,
    run: str,
    copies: Mapping[str, Path],
    follow: bool = False,
    on_tick: Callable[[], None] = lambda: None,
) -> None:
    """Copy logs of a run to local files.

    Args:
        copies: local files to append to, by the log's path in the run's folder.
        follow: True to continue copying until the run's end; allowed for a single log only.
        on_tick: function that is called several times a second.

    Raises:
        FtclusterError: the head does not respond.
        Interrupted: the user stopped the command.
    """
    playbook = Logs(run_hosts.at(run), {name: str(copies[name]) for name in copies}, follow)
    play(playbook, run_hosts, LONG_SECONDS, on_tick=on_tick)


def fetch_model(run_hosts: RunHosts, run: str, path: str, destination: Path) -> None:
    """Copy a folder of a run to a new or empty local folder.

    The local folder gets its name only once it is complete.

    Raises:
        FtclusterError: the folder cannot be copied; the message gives the reason.
        Interrupted: the user stopped the command.
    """
    play(Fetch(run_hosts.at(run), path, str(destination.absolute())), run_hosts, LONG_SECONDS)


def fetch_outputs(run_hosts: RunHosts, run: str, destination: Path) -> None:
    """Copy the files that a script has written into its run's folder on the head.

    Raises:
        FtclusterError: the script has written no files there, or the files cannot be copied.
        Interrupted: the user stopped the command.
    """
    at = run_hosts.at(run)
    folder, started = f"{at.train_run_dir}/script", f"{at.train_run_dir}/started"
    play(Fetch(at, folder, str(destination.absolute()), started), run_hosts, LONG_SECONDS)


def read_data(
    run_hosts: RunHosts, job: Mapping[str, Any], folders: Sequence[tuple[str, str]], hub_token: str
) -> dict[str, Any]:
    """Read a training's data on the head, and return the head's `report` and `notices`.

    Args:
        job: content of job.json.
        folders: local folders to copy, and their paths on the head.
        hub_token: token for the Hugging Face Hub; "" for none.

    Raises:
        FtclusterError: the head does not respond, or the model or the data cannot be used.
        Interrupted: the user stopped the command.
    """
    copied = [{"source": source, "path": path} for source, path in folders]
    head = replace(run_hosts, hosts=run_hosts.hosts[:1])
    playbook = Data(head.at(), copied, hub_token, dict(job))
    answered = play(playbook, head, LONG_SECONDS, DATA_READ)
    if head.head not in answered:
        raise FtclusterError(f"{head.head} did not report on the data", "run ftcluster setup")
    return answered[head.head]


def clean_runs(
    run_hosts: RunHosts, runs: tuple[str, ...], on_removed: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Remove the folders of ended runs from all hosts. Return the ids of the removed runs.

    Args:
        on_removed: function that is called with the id of each run once the run is removed. A later
            removal may still fail.

    Raises:
        FtclusterError: a host does not respond.
        Interrupted: the user stopped the command.
    """
    removed: list[str] = []
    for first in range(0, len(runs), CLEAN_RUNS):
        part = runs[first : first + CLEAN_RUNS]
        playbook = Clean(run_hosts.at(), list(part))
        answered = play(playbook, run_hosts, LONG_SECONDS, clean_removed(part))  # disks may be slow
        for run in dict.fromkeys(run for host in answered.values() for run in host):
            on_removed(run)
            removed.append(run)
    return removed


def clear_caches(
    run_hosts: RunHosts, running: Sequence[str], clear: bool
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the sizes of the caches on each host. If `clear` is True, empty the caches.

    Args:
        running: ids of the active runs; files that they use are not removed.
        clear: True to remove all files that no active run uses.

    Returns:
        For each host, by name of the cache: the total size in bytes, and the size in bytes of the
        files that no active run uses.

    Raises:
        FtclusterError: a host does not respond.
    """
    return play(Caches(run_hosts.at(), clear, list(running)), run_hosts, LONG_SECONDS, CACHES_FOUND)


def play(
    playbook: Ask | Caches | Clean | Data | Fetch | Jobs | Logs | Runs,
    run_hosts: RunHosts,
    time_limit_seconds: float,
    answer: Answer[Answered] | None = None,
    on_tick: Callable[[], None] = lambda: None,
    unreachable: bool = False,
    optional: Collection[str] = (),
) -> dict[str, Answered]:
    """Run a playbook about runs, and return each host's response by host name.

    Args:
        time_limit_seconds: time limit of the playbook.
        answer: expected type of the responses; None if hosts return nothing.
        on_tick: function that is called several times a second.
        unreachable: True if it is not an error that hosts do not respond.
        optional: hosts that may fail or not respond.

    Raises:
        FtclusterError: a host failed or does not respond, or a response is not valid.
        Interrupted: the user stopped the command.
    """
    answered: dict[str, Answered] = {}

    def on_event(event: TaskEvent) -> None:
        if answer and event.host in run_hosts.hosts and (values := take(answer, event)):
            (answered[event.host],) = values

    with Interrupts() as interrupts:
        outcome = play_on(
            run_hosts,
            playbook,
            on_event,
            on_tick=on_tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=time_limit_seconds,
        )
        on_tick()
    if outcome.state == "stopped":
        raise Interrupted("stopped")
    failed = [
        failure
        for failure in outcome.failures
        if failure.host not in optional and (failure.kind == "failed" or not unreachable)
    ]
    if failed:
        off = {event.host for event in failed if event.kind == "unreachable"}
        lines = [
            f"{event.host} does not answer: {event.reason}"
            if event.host in off
            else with_host(event.host, event.reason)
            for event in failed
        ]
        hint = UNREACHABLE if off else failure_hint(failed)
        if run_hosts.head in off and playbook.at.train_run:
            hint = head_lost_hint(playbook.at.train_run)
        raise FtclusterError("\n  ".join(lines), hint)
    excused = outcome.state == "failed" and any(f.host in optional for f in outcome.failures)
    if outcome.state == "timeout":
        raise FtclusterError(
            f"{playbook.name}: no result within {time_limit_seconds:.0f} s from "
            f"{', '.join(run_hosts.hosts)}",
            UNREACHABLE,
        )
    if outcome.state != "done" and not excused:
        raise failed_without_task(playbook.name, outcome.output)
    return answered
