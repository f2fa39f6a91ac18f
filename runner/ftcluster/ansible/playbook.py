"""Runs the collection's playbooks: a small adapter over ansible-runner.

Its events become `TaskEvent`s. Variables, passwords and the environment are in no file at any time,
whenever this process is killed; Ansible ends with it.
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

from ftcluster.ansible import child
from ftcluster.ansible.ansible_words import hint_of
from ftcluster.ansible.pipes import Pipes
from ftcluster.ansible.playbook_states import EndState, PlaybookState, Reason, after
from ftcluster.ansible.private_ansible import command_file, write_runner_settings
from ftcluster.ansible.processes import end_descendants, memory_of
from ftcluster.ansible.scratch import answer_in_memory, private_folder
from ftcluster.ansible.settings import ansible_environment
from ftcluster.ansible.signals import Interrupts
from ftcluster.ansible.ssh_words import WITH_PASSWORD, of_connection, of_host_key, of_sshd
from ftcluster.errors import FtclusterError
from ftcluster.text.printable import printable

Kind = Literal["task", "started", "diff", "ok", "changed", "skipped", "failed", "unreachable"]
POLL_SECONDS = 0.1
# Ansible holds the whole answer of a task in memory, several times. It needs some 200 MB by itself,
# and a limit of the kernel's would also be that of what it starts on this machine.
MOST_MEMORY_BYTES = 4 << 30
LOOK_SECONDS = 1.0
MOST_SHOWN, MOST_LINES = 4000, 200  # characters of a line of a failure, and lines
REFUSE = "ansible.builtin.fail"


@dataclass(frozen=True)
class TaskEvent:
    """One event of a playbook.

    Attributes:
        stage: the play's name in lower case: preflight, system, ...
        host: the host it happened on; empty for tasks.
        message: what a failed task or a debug task says; the text of a diff.
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

    @property
    def problem(self) -> str:
        """Why a task failed, or why Ansible could not connect.

        The task's name is part of it unless the task only reports a problem: where no connection
        is made, the task does not matter.
        """
        if self.kind == "unreachable":
            return of_connection(self.message) or self.message or "ssh does not connect"
        return self.message if self.action == REFUSE else f"{self.task}: {self.message}"


@dataclass(frozen=True)
class PlaybookOutcome:
    """How a playbook ended.

    Attributes:
        state: done, failed, stopped (cancelled by the user) or timeout.
        output: Ansible's own messages, for a failure without a task event.
        failures: the events of tasks that failed, and of hosts that did not answer.
    """

    state: EndState
    output: str
    failures: tuple[TaskEvent, ...] = ()

    @property
    def unreachable(self) -> bool:
        """Whether a host did not answer."""
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
    """Run one playbook of the collection; `on_event` is called in this thread.

    Args:
        playbook: fully qualified, e.g. "ftcluster.cluster.setup".
        extra_vars: data for the playbook, never templates. They override all variables but those
            of -e among the options.
        options: further arguments of ansible-playbook, unchanged.
        on_tick: called several times a second, for a display.
        cancelled: asked several times a second; true ends the playbook and all it started here.
        time_limit_seconds: after this the playbook is ended.

    Raises:
        FtclusterError: a text among the variables is not valid Unicode.
    """
    text = never_a_template(extra_vars)
    with private_folder() as scratch, contextlib.closing(Pipes()) as pipes:
        arguments = _arguments(playbook, text, options, scratch, pipes)
        playing = _Playing(cancelled, time_limit_seconds)
        return playing.play(scratch, inventories, arguments, settings or {}, on_event, on_tick)


class _Playing:
    """One process of ansible-playbook, from its start to its end.

    Two threads share it: ansible-runner's calls `_receive` and `_cancel`, the caller's plays.

    Attributes:
        state: see `playbook_states`.
    """

    def __init__(self, cancelled: Callable[[], bool], time_limit_seconds: float) -> None:
        self.state: PlaybookState = "playing"
        self._cancelled = cancelled
        self._deadline = time.monotonic() + time_limit_seconds
        self._measure_at = time.monotonic() + LOOK_SECONDS
        self._events: queue.SimpleQueue[TaskEvent] = queue.SimpleQueue()
        self._messages: list[str] = []
        self._waiting_for: dict[str, None] = {}  # hosts that have not answered yet

    def play(
        self,
        scratch: Path,
        inventories: Sequence[Path],
        arguments: Sequence[str],
        settings: Mapping[str, str],
        on_event: Callable[[TaskEvent], None],
        on_tick: Callable[[], None],
    ) -> PlaybookOutcome:
        """Start ansible-playbook and pass its events on until it has ended."""
        import ansible_runner  # a quarter of what a command takes that needs no playbook

        # where pipelining is off, Ansible writes there what a task is given, such as a token
        environment = ansible_environment({**settings, "ANSIBLE_LOCAL_TEMP": f"{scratch}/tmp"})
        failures: list[TaskEvent] = []
        thread: threading.Thread | None = None
        try:
            with Interrupts():  # a signal in the midst of it would leave a thread that nobody ends
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
                    fact_cache_type="memory",  # else it sets that of files
                )
            while thread.is_alive() or not self._events.empty():
                with contextlib.suppress(queue.Empty):
                    event = self._events.get(timeout=POLL_SECONDS)
                    if event.kind in ("failed", "unreachable"):
                        failures.append(event)
                    on_event(event)
                on_tick()
        except BaseException:
            self._end("raised")
            if thread:
                thread.join()
            raise
        succeeded = runner.status == "successful"
        self.state = end = after(self.state, "succeeded" if succeeded else "failed")
        return PlaybookOutcome(end, "\n".join(self._messages), tuple(failures))

    def _end(self, reason: Reason) -> None:
        """End ansible-playbook and all that it has started, for this reason."""
        self.state = after(self.state, reason)
        # ansible-runner ends only its child; the child's workers have sessions of their own
        end_descendants()

    def _receive(self, raw: dict[str, Any]) -> bool:
        event = read_event(raw)
        if event:
            if event.kind == "started":
                self._waiting_for[event.host] = None
            elif event.kind != "diff":
                self._waiting_for.pop(event.host, None)
            self._events.put(event)
        elif raw.get("event") in ("verbose", "error") and raw.get("stdout"):
            self._messages.append(printable(raw["stdout"]))
        return False  # ansible-runner shall not keep it

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
            "memory here: a host's answer has no end, or is far too large. These had not answered "
            f"yet: {', '.join(self._waiting_for) or 'none'}; look at what is installed there, or "
            "leave them out"
        )
        return True


def _arguments(
    playbook: str, variables: str, options: Sequence[str], scratch: Path, pipes: Pipes
) -> list[str]:
    """Return the arguments of the child that becomes ansible-playbook; fills `scratch`."""
    write_runner_settings(scratch, POLL_SECONDS)
    (scratch / "tmp").mkdir()
    pipes.drop(command_file(scratch, "run"))
    # a path, because other users can read arguments, and one has 128 KiB at most (MAX_ARG_STRLEN)
    path = pipes.give(scratch / "variables.yml", variables.encode())
    return [
        *("-P", child.__file__, str(os.getpid()), "ansible-playbook", playbook),
        # before the user's own -e, which override them
        *("--extra-vars", f"@{path}"),
        *_through_pipes(options, scratch, pipes),
    ]


def _through_pipes(options: Sequence[str], folder: Path, pipes: Pipes) -> list[str]:
    """Options of ansible-playbook, with a pipe for each path of an answer in our memory."""
    words: list[str] = []
    for number, word in enumerate(options):
        content = answer_in_memory(word)
        words.append(word if content is None else str(pipes.give(folder / f"{number}", content)))
    return words


def never_a_template(variables: Mapping[str, Any]) -> str:
    """A file of variables for ansible-playbook's -e, in which nothing is a template.

    The tag is before the whole document: before a single text, Ansible reads "5" as a number.

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


def read_event(raw: dict[str, Any]) -> TaskEvent | None:
    """The part of an ansible-runner event that the project uses; None for the rest."""
    name = raw.get("event")
    try:
        data = printable(raw.get("event_data", {}))
    except RecursionError:
        res = {"msg": "the host's answer is nested too deeply"}
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
            message = result["msg"]  # a list is the table of verify, which setup shows last
    elif name in ("runner_on_failed", "runner_on_unreachable"):
        kind = "failed" if name == "runner_on_failed" else "unreachable"
        message = _failure_text(result)
        if kind == "unreachable" or WITH_PASSWORD in message:
            message = of_host_key(message) or of_sshd(message) or message
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
    """The message of a failed task, with the last lines of its command's output."""
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
