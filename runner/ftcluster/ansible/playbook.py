"""Running the collection's playbooks: a small adapter over ansible-runner.

Events come out as plain `TaskEvent`s; nothing of a run stays on disk, because ansible-runner's
artifacts hold the environment and whatever the tasks returned.
"""

import configparser
import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ansible_runner
import yaml

from ftcluster.ansible.inventory import program
from ftcluster.errors import FtclusterError
from ftcluster.paths import memory_dir
from ftcluster.text.printable import printable

Kind = Literal["task", "started", "ok", "changed", "skipped", "failed", "unreachable"]
GRACE_SECONDS = 5.0  # for processes that were asked to end
POLL_SECONDS = 0.1
FORKS = 32  # hosts at a time
# how long sudo may take to ask or begin; a host that writes a stack to a slow disk is late
TIMEOUT_SECONDS = 30
# Without -C, Ansible's default: wheels are compressed already. The last two end a connection to a
# host that lost its power within 15 s; Ansible otherwise waits for more than 10 minutes.
SSH_ARGS = (
    "-o ControlMaster=auto -o ControlPersist=60s -o ConnectTimeout=10 "
    "-o ServerAliveInterval=5 -o ServerAliveCountMax=2"
)
IN_FILE = {
    "ANSIBLE_PIPELINING": ("ssh_connection", "pipelining"),
    "ANSIBLE_FORKS": ("defaults", "forks"),
    "ANSIBLE_INJECT_FACT_VARS": ("defaults", "inject_facts_as_vars"),
    "ANSIBLE_TIMEOUT": ("defaults", "timeout"),
    "ANSIBLE_SSH_ARGS": ("ssh_connection", "ssh_args"),
}


@dataclass(frozen=True)
class TaskEvent:
    """One thing that happened in a playbook.

    Attributes:
        kind: what happened.
        stage: the play's name in lower case: preflight, system, ...
        task: the task's name.
        host: the host it happened on; empty for tasks.
        message: what a failed task or a debug task says.
        action: the module, fully qualified.
        result: the module's result, empty but for `ok` and `changed`.
    """

    kind: Kind
    stage: str
    task: str = ""
    host: str = ""
    message: str = ""
    action: str = ""
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a playbook ended.

    Attributes:
        state: done, failed, stopped (cancelled by the user) or timeout.
        output: Ansible's own last words, for a failure that no task event explains.
    """

    state: Literal["done", "failed", "stopped", "timeout"]
    output: str


def run_playbook(
    playbook: str,
    inventories: Sequence[Path],
    extra_vars: Mapping[str, Any],
    on_event: Callable[[TaskEvent], None],
    *,
    options: Sequence[str] = (),
    on_tick: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
    time_limit_seconds: float,
    settings: Mapping[str, str] | None = None,
) -> Outcome:
    """Run one playbook of the collection and hand out its events in this thread.

    Args:
        playbook: fully qualified, e.g. "ftcluster.cluster.setup".
        inventories: any that Ansible takes.
        extra_vars: data for the playbook, which Ansible takes for no template at any depth; above
            all variables but those of the user's own -e among the options.
        on_event: called for each event.
        options: further arguments of ansible-playbook, unchanged.
        on_tick: called several times a second, for a display.
        cancelled: asked several times a second; true ends the playbook and all it started here.
        time_limit_seconds: after this the playbook is ended.
        settings: variables of Ansible that are other than usual.

    Raises:
        FtclusterError: a text among the variables is not valid Unicode.
    """
    text = never_a_template(extra_vars)
    scratch = Path(tempfile.mkdtemp(prefix="ftcluster-", dir=memory_dir()))
    events: queue.SimpleQueue[TaskEvent] = queue.SimpleQueue()
    words: list[str] = []

    def receive(raw: dict[str, Any]) -> bool:
        if raw.get("event") == "playbook_on_start":
            # they have been read. Where this process is killed, nobody else removes them, and the
            # second, ansible-runner's own, has our whole environment
            for path in (variables, *scratch.glob("artifacts/*/command")):
                path.unlink(missing_ok=True)
        event = read_event(raw)
        if event:
            events.put(event)
        elif raw.get("event") in ("verbose", "error") and raw.get("stdout"):
            words.append(printable(raw["stdout"]))
        return False  # ansible-runner need not keep it

    ended: Literal["", "stopped", "timeout"] = ""
    deadline = time.monotonic() + time_limit_seconds

    def cancel() -> bool:
        # ansible-runner ends its own child alone; the child's workers have sessions of their own
        nonlocal ended
        if not ended:
            late = time.monotonic() > deadline
            ended = "stopped" if cancelled() else "timeout" if late else ""
            if ended:
                end_descendants(os.getpid())
        return bool(ended)

    # as a file: the argument `settings` has no effect together with suppress_env_files
    (scratch / "env").mkdir()
    (scratch / "env/settings").write_text(json.dumps({"pexpect_timeout": POLL_SECONDS}))
    # other users can read arguments, and one of them has 128 KiB at most (MAX_ARG_STRLEN)
    variables = scratch / "variables.yml"
    variables.touch(mode=0o600)
    variables.write_text(text, encoding="utf-8")
    try:
        thread, runner = ansible_runner.run_async(
            private_data_dir=str(scratch),
            project_dir=str(Path.cwd()),
            playbook=playbook,
            inventory=[str(path) for path in inventories],
            # before the user's own -e, which have the last word
            cmdline=shlex.join(["--extra-vars", f"@{variables}", *options]),
            envvars=ansible_environment(settings),
            event_handler=receive,
            cancel_callback=cancel,
            quiet=True,
            suppress_env_files=True,
        )
        try:
            while thread.is_alive() or not events.empty():
                with contextlib.suppress(queue.Empty):
                    on_event(events.get(timeout=POLL_SECONDS))
                on_tick()
        except BaseException:
            ended = "stopped"
            end_descendants(os.getpid())
            thread.join()
            raise
        state = ended or ("done" if runner.status == "successful" else "failed")
        return Outcome(state=state, output="\n".join(words))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def never_a_template(variables: Mapping[str, Any]) -> str:
    """A file of variables for ansible-playbook's -e, whose texts and keys are data at any depth.

    The tag stands before the whole document: before a single text, Ansible reads "5" as a number.

    Raises:
        FtclusterError: a text is not valid Unicode, which Ansible's reader refuses.

    >>> never_a_template({"a": ["{{ b }}"]})
    "--- !unsafe\\na:\\n- '{{ b }}'\\n"
    """
    try:
        json.dumps(variables, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        wrong = error.object[max(0, error.start - 20) : error.end + 20]
        raise FtclusterError(f"not valid Unicode, which Ansible needs: {wrong!a}") from None
    return "--- !unsafe\n" + yaml.safe_dump(dict(variables), width=float("inf"), sort_keys=False)


def ansible_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ansible's settings, each unless the user has set it in the environment or in ansible.cfg.

    Args:
        changes: variables that are other than usual.
    """
    users = _set_in_file()
    wanted = {
        "FTCLUSTER_PID": str(os.getpid()),  # who holds the hosts' lock
        "ANSIBLE_PIPELINING": "true",  # one SSH round trip a task instead of several
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
        # else any module's answer may set variables that no play sets, such as which files are sent
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_FORKS": str(FORKS),
        "ANSIBLE_TIMEOUT": str(TIMEOUT_SECONDS),
        "ANSIBLE_SSH_ARGS": SSH_ARGS,
        **(changes or {}),
    }
    settings = {
        key: value for key, value in wanted.items() if key not in os.environ and key not in users
    }
    programs = str(Path(program("ansible-playbook")).parent)
    return settings | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _set_in_file() -> set[str]:
    """Which of our settings the user's ansible.cfg has."""
    from ansible.config.manager import find_ini_config_file

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(configparser.Error):  # Ansible itself will complain of it
        parser.read(find_ini_config_file() or ())
    return {
        variable for variable, (section, key) in IN_FILE.items() if parser.has_option(section, key)
    }


def read_event(raw: dict[str, Any]) -> TaskEvent | None:
    """The part of an ansible-runner event that the project uses; None for the rest."""
    data = printable(raw.get("event_data", {}))
    stage = str(data.get("play", "")).lower()
    task = str(data.get("task", ""))
    name = raw.get("event")
    if name in ("playbook_on_task_start", "playbook_on_handler_task_start"):
        return TaskEvent("task", stage, task)
    host = str(data.get("host", ""))
    action = str(data.get("resolved_action", data.get("task_action", "")))
    result = data.get("res") or {}
    if name == "runner_on_start":
        return TaskEvent("started", stage, task, host, action=action)
    if name == "runner_on_skipped":
        return TaskEvent("skipped", stage, task, host, action=action)
    if name == "runner_on_unreachable":
        return TaskEvent("unreachable", stage, task, host, _words(result), action)
    if name == "runner_on_ok" or (name == "runner_on_failed" and data.get("ignore_errors")):
        kind: Kind = "changed" if result.get("changed") else "ok"
        told = result.get("msg") if action.endswith("debug") else ""
        message = told if isinstance(told, str) else ""  # a list is a table, which setup shows last
        return TaskEvent(kind, stage, task, host, message, action, result)
    if name == "runner_on_failed":
        return TaskEvent("failed", stage, task, host, _words(result), action)
    return None


def _words(result: dict[str, Any]) -> str:
    """What a failed task says, with the last lines of the command's own complaint."""
    parts = [str(result["msg"]).strip()] if result.get("msg") else []
    for item in result.get("results", []):
        if isinstance(item, dict) and item.get("failed"):
            parts.append(_words(item))
    for stream in ("stderr", "module_stderr", "stdout", "module_stdout"):
        text = str(result.get(stream) or "").strip()
        if text and text not in parts[0:1]:
            parts += text.splitlines()[-5:]
            break
    return "\n".join(part for part in parts if part) or "failed without a word"


def descendants(root: int) -> list[int]:
    """Process ids of all children, grandchildren, ... of `root`, also in sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended meanwhile
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def end_descendants(root: int) -> None:
    """Ask all descendants of a process to end, and after a grace period make them."""
    known: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            # looked for again: one that was asked may just have started another
            new = set(descendants(root)) - (known if number == signal.SIGTERM else set())
            known |= new
            for pid in new if number == signal.SIGTERM else known:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if not any(_running(pid) for pid in known):
                return
            time.sleep(POLL_SECONDS)


def _running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
