"""Runs the collection's playbooks with ansible-runner.

Ansible's events become `TaskEvent`s. Variables, passwords and the environment are never written to
a file, even if this process is killed. Ansible ends when this process ends.
"""

import contextlib
import json
import os
import queue
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import read_progress

from ftcluster.ansible import child
from ftcluster.ansible.ansible_words import hint_of, plain
from ftcluster.ansible.pipes import Pipes
from ftcluster.ansible.playbook_states import EndState, PlaybookState, Reason, after
from ftcluster.ansible.private_ansible import command_file, write_runner_settings
from ftcluster.ansible.processes import end_descendants, memory_of
from ftcluster.ansible.scratch import answer_in_memory, private_folder
from ftcluster.ansible.settings import ansible_environment
from ftcluster.ansible.signals import Interrupts
from ftcluster.ansible.ssh_words import (
    WITH_PASSWORD,
    of_connection,
    of_host_key,
    of_silence,
    of_sshd,
)
from ftcluster.errors import FtclusterError
from ftcluster.text.printable import printable

Kind = Literal[
    "task", "started", "progress", "diff", "ok", "changed", "skipped", "failed", "unreachable"
]
POLL_SECONDS = 0.1
# Ansible itself needs about 200 MB, and keeps several copies of each result in memory. A limit set
# in the kernel would also apply to the programs that Ansible starts on this machine.
MOST_MEMORY_BYTES = 4 << 30
LOOK_SECONDS = 1.0
MOST_SHOWN, MOST_LINES = 4000, 200  # maximum characters per line, and maximum lines, of a failure
REFUSE = "ansible.builtin.fail"


@dataclass(frozen=True)
class TaskEvent:
    """An event of a playbook.

    Attributes:
        stage: the play's name in lower case: preflight, system, ...; empty for `progress`.
        host: host of the event; empty for the start of a play or a task.
        message: message of a failed task or a debug task; text of a diff; for `progress`, the
            current activity of a long task.
        action: fully qualified name of the module.
        result: result of the module; empty except for `ok` and `changed`.
    """

    kind: Kind
    stage: str
    task: str = ""
    host: str = ""
    message: str = ""
    action: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The reason for a task's failure, or for a failed connection, without the task's name."""
        if self.kind == "unreachable":
            return of_connection(self.message) or self.message or "ssh does not connect"
        return self.message

    @property
    def problem(self) -> str:
        """The reason for a task's failure, or for a failed connection.

        It begins with the task's name, unless the task only reports an error or there is no
        connection.
        """
        without_task = self.kind == "unreachable" or self.action == REFUSE
        return self.reason if without_task else f"{self.task}: {self.reason}"


@dataclass(frozen=True)
class PlaybookOutcome:
    """The result of running a playbook.

    Attributes:
        state: done, failed, stopped (cancelled by the user) or timeout.
        output: Ansible's own messages, for a failure without a task event.
        failures: events of failed tasks, and of hosts that did not respond.
        failed_hosts: hosts that failed according to Ansible's statistics at the end. A failure that
            a rescue section handled does not count.
    """

    state: EndState
    output: str
    failures: tuple[TaskEvent, ...] = ()
    failed_hosts: tuple[str, ...] = ()

    @property
    def unreachable(self) -> bool:
        """True if a host did not respond."""
        return any(event.kind == "unreachable" for event in self.failures)


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
) -> PlaybookOutcome:
    """Run a playbook of the collection.

    Args:
        playbook: fully qualified name, e.g. "ftcluster.cluster.setup".
        extra_vars: variables of the playbook. Ansible never evaluates templates in them. They
            override all other variables except variables that -e sets in `options`.
        on_event: function that gets each event, called in this thread.
        options: further arguments of ansible-playbook.
        on_tick: function that updates a display, called several times a second.
        cancelled: function called several times a second; if it returns True, the playbook and all
            processes that it started on this machine are ended.
        time_limit_seconds: time after which the playbook is ended.
        settings: environment variables that change Ansible's settings.

    Raises:
        FtclusterError: a variable contains a string that is not valid Unicode.
    """
    text = never_a_template(extra_vars)
    with private_folder() as scratch, contextlib.closing(Pipes()) as pipes:
        arguments = _arguments(playbook, text, options, scratch, pipes)
        playing = _Playing(cancelled, time_limit_seconds)
        return playing.play(scratch, inventories, arguments, settings or {}, on_event, on_tick)


class _Playing:
    """A process of ansible-playbook, from its start to its end.

    Two threads use it: ansible-runner's thread calls `_receive` and `_cancel`, the caller's thread
    calls `play`.

    Attributes:
        state: state of the process, see `playbook_states`.
    """

    def __init__(self, cancelled: Callable[[], bool], time_limit_seconds: float) -> None:
        self.state: PlaybookState = "playing"
        self._cancelled = cancelled
        self._deadline = time.monotonic() + time_limit_seconds
        self._measure_at = time.monotonic() + LOOK_SECONDS
        self._events: queue.SimpleQueue[TaskEvent] = queue.SimpleQueue()
        self._messages: list[str] = []
        self._waiting_for: dict[str, None] = {}  # hosts that have not responded yet
        self._failed_hosts: tuple[str, ...] = ()

    def play(
        self,
        scratch: Path,
        inventories: Sequence[Path],
        arguments: Sequence[str],
        settings: Mapping[str, str],
        on_event: Callable[[TaskEvent], None],
        on_tick: Callable[[], None],
    ) -> PlaybookOutcome:
        """Start ansible-playbook and pass its events to `on_event` until it ends."""
        import ansible_runner  # here, because the import would slow down all other commands

        # without pipelining, Ansible writes a task's arguments, such as a token, to this folder
        environment = ansible_environment({**settings, "ANSIBLE_LOCAL_TEMP": f"{scratch}/tmp"})
        failures: list[TaskEvent] = []
        thread: threading.Thread | None = None
        try:
            with Interrupts():  # a signal during the start would leave a thread behind
                thread, runner = ansible_runner.run_async(
                    private_data_dir=str(scratch),
                    project_dir=str(Path.cwd()),
                    ident="run",
                    binary=sys.executable,
                    cmdline=shlex.join(arguments),
                    inventory=[str(path) for path in inventories],
                    envvars=environment,
                    event_handler=self._receive,
                    cancel_callback=self._cancel,
                    quiet=True,
                    suppress_env_files=True,
                    fact_cache_type="memory",  # otherwise ansible-runner selects the cache in files
                )
            while thread.is_alive() or not self._events.empty():
                with contextlib.suppress(queue.Empty):
                    event = self._events.get(timeout=POLL_SECONDS)
                    if event.kind in ("failed", "unreachable"):
                        failures.append(event)
                    elif event.kind in ("ok", "changed"):
                        # the playbook ignored that the host, or a delegated task's host, was off
                        failures = [
                            failure
                            for failure in failures
                            if (failure.kind, failure.host) != ("unreachable", event.host)
                        ]
                    on_event(event)
                on_tick()
        except BaseException:
            self._end("raised")
            if thread:
                thread.join()
            raise
        succeeded = runner.status == "successful"
        self.state = end = after(self.state, "succeeded" if succeeded else "failed")
        return PlaybookOutcome(end, "\n".join(self._messages), tuple(failures), self._failed_hosts)

    def _end(self, reason: Reason) -> None:
        """End ansible-playbook and all processes that it started, for this reason."""
        self.state = after(self.state, reason)
        # ansible-runner ends only its child; the child's workers have their own sessions
        end_descendants()

    def _receive(self, raw: dict[str, Any]) -> bool:
        event = read_event(raw)
        if event:
            if event.kind == "started":
                self._waiting_for[event.host] = None
            elif event.kind not in ("diff", "progress"):
                self._waiting_for.pop(event.host, None)
            self._events.put(event)
        elif raw.get("event") == "playbook_on_stats":
            counts = raw.get("event_data", {})
            self._failed_hosts = (*counts.get("failures", ()), *counts.get("dark", ()))
        elif raw.get("event") in ("verbose", "error") and raw.get("stdout"):
            self._messages.append(printable(raw["stdout"]))
        return False  # tells ansible-runner to discard the event

    def _cancel(self) -> bool:
        if self.state == "playing" and (reason := self._reason_to_end()):
            self._end(reason)
        return self.state != "playing"

    def _reason_to_end(self) -> Reason | None:
        late = time.monotonic() > self._deadline
        if self._cancelled():
            return "cancelled"
        if late:
            return "late"
        return "too_large" if self._too_large() else None

    def _too_large(self) -> bool:
        if time.monotonic() < self._measure_at:
            return False
        self._measure_at = time.monotonic() + LOOK_SECONDS
        if memory_of("ansible-playbook") <= MOST_MEMORY_BYTES:
            return False
        self._messages.append(
            f"Ansible was ended, because it needed more than {MOST_MEMORY_BYTES / 1e9:.1f} GB of "
            "memory on this machine: a host's response is endless or far too large. Hosts that "
            f"have not responded yet: {', '.join(self._waiting_for) or 'none'}; check the software "
            "on these hosts, or exclude the hosts"
        )
        return True


def _arguments(
    playbook: str, variables: str, options: Sequence[str], scratch: Path, pipes: Pipes
) -> list[str]:
    """Write the files and pipes for ansible-playbook into `scratch`; return its arguments."""
    write_runner_settings(scratch, POLL_SECONDS)
    (scratch / "tmp").mkdir()
    pipes.drop(command_file(scratch, "run"))
    # a path, because other users can read arguments, and an argument is limited to 128 KiB
    path = pipes.give(scratch / "variables.yml", variables.encode())
    return [
        *("-P", child.__file__, str(os.getpid()), "ansible-playbook", playbook),
        # before the user's own -e, which override them
        *("--extra-vars", f"@{path}"),
        *_through_pipes(options, scratch, pipes),
    ]


def _through_pipes(options: Sequence[str], folder: Path, pipes: Pipes) -> list[str]:
    """Replace options that are paths in this process's memory with paths of pipes."""
    words: list[str] = []
    for number, word in enumerate(options):
        content = answer_in_memory(word)
        words.append(word if content is None else str(pipes.give(folder / f"{number}", content)))
    return words


def never_a_template(variables: Mapping[str, Any]) -> str:
    """Return the content of a file for ansible-playbook's -e that is never read as a template.

    The tag !unsafe precedes the whole document. If it preceded a single string, Ansible would read
    "5" as a number.

    Raises:
        FtclusterError: a string is not valid Unicode, so Ansible could not read it.

    >>> never_a_template({"a": ["{{ b }}"]})
    "--- !unsafe\\na:\\n- '{{ b }}'\\n"
    """
    try:
        json.dumps(variables, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        wrong = error.object[max(0, error.start - 20) : error.end + 20]
        raise FtclusterError(f"Ansible accepts only valid Unicode, got {wrong!a}") from None
    return "--- !unsafe\n" + yaml.safe_dump(dict(variables), width=float("inf"), sort_keys=False)


def read_event(raw: dict[str, Any]) -> TaskEvent | None:
    """Convert an event of ansible-runner; return None if ftcluster does not use this event."""
    name = raw.get("event")
    if name == "verbose" and (reported := read_progress(str(raw.get("stdout", "")))):
        host, activity = printable(reported)
        return TaskEvent("progress", stage="", host=host, message=activity)
    try:
        data = printable(raw.get("event_data", {}))
    except RecursionError:
        res = {"msg": "the host's response is nested too deeply"}
        data = printable({**raw["event_data"], "res": res, "ignore_errors": False})
        name = "runner_on_failed"
    result = data.get("res") or {}
    action = str(data.get("resolved_action", data.get("task_action", "")))
    ok = name == "runner_on_ok" or (name == "runner_on_failed" and data.get("ignore_errors"))
    message = ""
    kind: Kind
    if name in ("playbook_on_task_start", "playbook_on_handler_task_start"):
        kind = "task"
    elif ok:
        kind = "changed" if result.get("changed") else "ok"
        if action.endswith("debug") and isinstance(result.get("msg"), str):
            message = result["msg"]  # a list is verify's table, which setup shows at its end
    elif name in ("runner_on_failed", "runner_on_unreachable"):
        kind = "failed" if name == "runner_on_failed" else "unreachable"
        message = plain(_failure_text(result))
        if kind == "unreachable" or WITH_PASSWORD in message:
            message = of_host_key(message) or of_sshd(message) or of_silence(message) or message
        elif hint := hint_of(message):
            message = f"{message}\n{hint}"
    elif name == "runner_on_file_diff" and str(raw.get("stdout", "")).strip():
        kind, message = "diff", printable(raw["stdout"]).strip("\n")
    elif name in ("runner_on_start", "runner_on_skipped"):
        kind = "started" if name == "runner_on_start" else "skipped"
    else:
        return None
    return TaskEvent(
        kind=kind,
        stage=str(data.get("play", "")).lower(),
        task=str(data.get("task", "")),
        host=str(data.get("host", "")),
        message=message,
        action=action,
        result=result if ok else {},
    )


def _failure_text(result: dict[str, Any]) -> str:
    """Return the message of a failed task, with the last lines of its command's output."""
    parts = [str(result["msg"]).strip()] if result.get("msg") else []
    results = result.get("results")
    for item in results if isinstance(results, list) else []:
        if isinstance(item, dict) and item.get("failed"):
            parts.append(_failure_text(item))
    for stream in ("stderr", "module_stderr", "stdout", "module_stdout"):
        text = str(result.get(stream) or "").strip()
        if text and text not in parts[0:1]:
            parts += text.splitlines()[-5:]
            break
    lines = "\n".join(part for part in parts if part).splitlines()
    shown = [line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]} ..." for line in lines]
    more = len(shown) - MOST_LINES
    if more > 0:
        shown[MOST_LINES:] = [f"... and {more} more lines"]
    return "\n".join(shown) or "failed without output"
