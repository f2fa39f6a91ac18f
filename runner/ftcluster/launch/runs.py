"""List the runs on a cluster, copy their logs and models, and remove ended runs."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
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
from ftcluster.ansible.playbook import TaskEvent
from ftcluster.ansible.playbooks import Ask, Caches, Clean, Data, Fetch, Jobs, Logs, Runs
from ftcluster.ansible.signals import Interrupts
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.launch.record import recorded_digests
from ftcluster.launch.run_hosts import UNREACHABLE, RunHosts, head_lost_hint, play_on, sudo_hint
from ftcluster.recipe.recipe import checked_recipe
from ftcluster.text.printable import printable
from ftcluster.user_script.own_code import reported, use_code
from ftcluster_common.protocol.run_state import RunState
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import NO_CODE, UserCode, code_of, declared_metrics

SHORT_SECONDS = 120
MOST_RUNS = 100_000  # a head that lists more is hostile
LIST = "list them: ftcluster ps"
OTHER_PACKAGE = "if the hosts' package is of another version: run ftcluster setup"
MOST_ALIKE = 20  # runs whose ids begin alike: more are too ambiguous to list
CLEAN_RUNS = 1000  # number of ids that one command line can hold
LONG_SECONDS = 24 * 3600  # for a model over a slow connection, or a log being followed


def list_runs(
    run_hosts: RunHosts, beginnings: Sequence[str] = (), most: int = 0
) -> tuple[list[RunState], int]:
    """Return the runs that the head knows, newest first, and the number of older runs omitted.

    Args:
        beginnings: beginnings of the ids to list; if empty, all runs.
        most: maximum number of runs; 0 for all. Running ones come before newer ones.

    Raises:
        FtclusterError: the head does not respond, or its response is not valid.
    """
    runs: dict[str, RunState] = {}
    skip, left = 0, 1
    while left and not (most and runs):
        listed, left = _page(run_hosts, Runs(run_hosts.at(), list(beginnings), skip, most))
        skip += len(listed)
        runs |= {one.run: one for one in listed}
        if skip > MOST_RUNS:
            raise FtclusterError(f"{run_hosts.head} lists more than {MOST_RUNS:,} runs", LIST)
    return sorted(runs.values(), key=lambda run: -run.started), left


def _page(run_hosts: RunHosts, page: Runs) -> tuple[tuple[RunState, ...], int]:
    """Return a page of the runs, and how many remain; raises the errors of `list_runs`."""
    if run_hosts.is_here:  # starting Ansible would take three times as long as the rest
        return _page_here(page)
    answered = play(page, run_hosts, SHORT_SECONDS, RUNS_LISTED)
    if run_hosts.head not in answered:
        raise FtclusterError(f"{run_hosts.head} gave no list of its runs", "run ftcluster setup")
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
            said = done.stderr.strip().rpartition("\n")[2]
            raise FtclusterError(f"{at.train_head}: {said}", OTHER_PACKAGE)
        return checked(RUNS_LISTED, printable(done.stdout), at.train_head)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise FtclusterError(f"{at.train_head}: {error}", "run ftcluster setup") from None


def find_run(run_hosts: RunHosts, run: str) -> RunState:
    """Return a run by its id, or by a beginning that only one id has.

    Raises:
        FtclusterError: there is no such run, or there are several.
    """
    runs = {one.run: one for one in list_runs(run_hosts, (run,), MOST_ALIKE)[0]}
    matching = [run] if run in runs else [name for name in runs if name.startswith(run)]
    return runs[_only(run, matching, run_hosts.head)]


def _only(beginning: str, matching: Sequence[str], where: str) -> str:
    if len(matching) > 1:
        raise FtclusterError(f"several runs begin with '{beginning}': {', '.join(matching)}")
    if not matching:
        raise FtclusterError(f"there is no run '{beginning}' on {where}", LIST)
    return matching[0]


@dataclass(frozen=True)
class FoundJob:
    """A training as the hosts know it.

    Attributes:
        run: id of the training.
        recipe: the recipe, with folders on the hosts.
        hosts: names of the hosts that respond: first the hosts that it was prepared on, otherwise
            in the cluster's order.
        nodes: number of these hosts that had ranks, or could have had ranks.
        resume: ids of the runs that it has continued itself.
        ipex: True if IPEX optimized its model.
        saved: True if one of the hosts has a checkpoint or a snapshot.
        code: the user's own files that it executes.
    """

    run: str
    recipe: Recipe
    hosts: tuple[str, ...]
    nodes: int
    resume: tuple[str, ...] = ()
    ipex: bool = False
    saved: bool = True
    code: UserCode = NO_CODE


def find_job(run_hosts: RunHosts, run: str, given: UserCode = NO_CODE) -> FoundJob:
    """Find a training by its id or the beginning of it, on any host: the head may be lost.

    The user's own files that it executes come from a host. They are accepted if this control node
    started the run with the same files, or if the user names them.

    Args:
        given: files that the user names.

    Raises:
        FtclusterError: no host responds, there is no such run, it is a script's run, or its files
            are not known here.
    """
    jobs = play(Jobs(run_hosts.at(run)), run_hosts, SHORT_SECONDS, JOBS_FOUND, unreachable=True)
    hosts = tuple(host for host in run_hosts.hosts if host in jobs)
    if not hosts:
        raise FtclusterError("none of the cluster's hosts answers", UNREACHABLE)
    everywhere = {name: job for host in hosts for name, job in jobs[host].items()}
    name = _only(run, sorted(everywhere), ", ".join(hosts))
    hosts = tuple(sorted(hosts, key=lambda host: name not in jobs[host]))
    prepared, job = sum(name in jobs[host] for host in hosts), everywhere[name]
    saved = any(jobs[host].get(name, {}).get("saved", True) for host in hosts if name in jobs[host])
    if job.get("purpose", "train") != "train":
        raise FtclusterError(f"{name} has trained nothing that can be resumed", LIST)
    try:
        code = code_of(job.get("code"))
        _check_code(name, code, given)
        with reported():
            use_code(code, Path(code.task.name if code.task else name))
            recipe = checked_recipe(job["recipe"], declared_metrics(code.metrics))
        return FoundJob(
            name, recipe, hosts, min(prepared, _count(job["nodes"])),
            tuple(map(run_id, job["resume"])), job["ipex"] is True, saved, code,
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FtclusterError(
            f"{name} on {hosts[0]} is not a resumable training: {ascii(str(error))[:200]}",
            LIST,
        ) from error


def _check_code(run: str, code: UserCode, given: UserCode) -> None:
    """Refuse files that neither this control node has recorded for a run nor the user names.

    Raises:
        FtclusterError: a file differs, or is not known here.
    """
    recorded = recorded_digests(run)
    kinds = (("--task", code.task, given.task), ("--metrics", code.metrics, given.metrics))
    for flag, file, named in kinds:
        if named and (file is None or file.sha256 != named.sha256):
            uses = f"{file.name} (SHA-256 {file.sha256[:12]})" if file else "none"
            raise FtclusterError(
                f"{flag}: run {run} uses {uses}, and {named.name} has SHA-256 {named.sha256[:12]}",
                f"leave out {flag}: a run continues with its own files; train again with others",
            )
        if file and not named and file.sha256 not in recorded:
            raise FtclusterError(
                f"run {run} executes {file.name} (SHA-256 {file.sha256[:12]}), which this control "
                "node has no record of",
                f"name the file, if you trust it: {flag} {file.name}",
            )


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
        copies: the local file to append to, by the log's name in the run's folder.
        follow: True to copy until the run's end; only for a single log.

    Raises:
        FtclusterError: the head does not respond.
        Interrupted: the user stopped it.
    """
    playbook = Logs(run_hosts.at(run), {name: str(copies[name]) for name in copies}, follow)
    play(playbook, run_hosts, LONG_SECONDS, on_tick=on_tick)


def fetch_model(run_hosts: RunHosts, run: str, path: str, destination: Path) -> None:
    """Copy a folder of a run to a new or empty local folder, which appears only once complete.

    Raises:
        FtclusterError: the folder cannot be copied; says why.
        Interrupted: the user stopped it.
    """
    play(Fetch(run_hosts.at(run), path, str(destination.absolute())), run_hosts, LONG_SECONDS)


def fetch_outputs(run_hosts: RunHosts, run: str, destination: Path) -> None:
    """Copy the files that a script has written into its run's folder on the head.

    Raises:
        FtclusterError: the script has written nothing there, or the files cannot be copied.
        Interrupted: the user stopped it.
    """
    at = run_hosts.at(run)
    folder, started = f"{at.train_run_dir}/script", f"{at.train_run_dir}/started"
    play(Fetch(at, folder, str(destination.absolute()), started), run_hosts, LONG_SECONDS)


def read_data(
    run_hosts: RunHosts, job: Mapping[str, Any], folders: Sequence[tuple[str, str]], hub_token: str
) -> dict[str, Any]:
    """Return the head's report on a training's data: `report` and `notices`.

    Args:
        job: content of job.json.
        folders: local folders, and their paths on the head.

    Raises:
        FtclusterError: the head does not respond, or model or data cannot be used; says why.
        Interrupted: the user stopped it.
    """
    copied = [{"source": source, "path": path} for source, path in folders]
    head = replace(run_hosts, hosts=run_hosts.hosts[:1])
    playbook = Data(head.at(), copied, hub_token, dict(job))
    found = play(playbook, head, LONG_SECONDS, DATA_READ)
    if head.head not in found:
        raise FtclusterError(f"{head.head} did not report on the data", "run ftcluster setup")
    return found[head.head]


def clean_runs(
    run_hosts: RunHosts, runs: tuple[str, ...], on_removed: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Remove the folders of ended runs from all hosts; return the ids of the removed runs.

    Args:
        on_removed: gets each id as soon as it is removed; a later part may fail.

    Raises:
        FtclusterError: a host does not respond.
        Interrupted: the user stopped it.
    """
    removed: list[str] = []
    for first in range(0, len(runs), CLEAN_RUNS):
        some = runs[first : first + CLEAN_RUNS]
        playbook = Clean(run_hosts.at(), list(some))
        found = play(playbook, run_hosts, LONG_SECONDS, clean_removed(some))  # slow disks
        for run in found.get(run_hosts.head, []):
            on_removed(run)
            removed.append(run)
    return removed


def clear_caches(
    run_hosts: RunHosts, running: Sequence[str], clear: bool
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return by host and cache: its bytes, and the bytes that no run uses, which `clear` removes.

    Args:
        running: ids of the runs whose files are in use.

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
) -> dict[str, Answered]:
    """Run a playbook of runs; return each host's response.

    Args:
        answer: the expected kind of response.
        unreachable: True if hosts need not respond.

    Raises:
        FtclusterError: a host failed, does not respond, or its response is refused.
        Interrupted: the user stopped it.
    """
    answered: dict[str, Answered] = {}

    def on_event(event: TaskEvent) -> None:
        if answer and event.host in run_hosts.hosts and (found := take(answer, event)):
            (answered[event.host],) = found

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
        failure for failure in outcome.failures if failure.kind == "failed" or not unreachable
    ]
    if failed:
        off = {event.host for event in failed if event.kind == "unreachable"}
        words = [
            f"{event.host}{' does not answer' if event.host in off else ''}: {event.message}"
            for event in failed
        ]
        hint = UNREACHABLE if off else sudo_hint(event.message for event in failed)
        if run_hosts.head in off and playbook.at.train_run:
            hint = head_lost_hint(playbook.at.train_run)
        raise FtclusterError("\n  ".join(words), hint)
    if outcome.state != "done":
        raise FtclusterError(
            f"{playbook.name} {outcome.state}, output of ansible:\n{outcome.output.strip()}"
        )
    return answered
