"""The supervisor's notifications about a run, for the user's command and webhook.

Each notification is delivered by a process of `notification`. A run never waits for its
notifications, and a failed notification only causes a notice. Standard library only.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Any

from ftcluster_common.delivery import LIMIT_SECONDS, Delivery
from ftcluster_common.protocol.launch import RUN_VARIABLE, WEBHOOK_FILE, Launch
from ftcluster_common.protocol.run_state import WAITS
from ftcluster_train.io.events import EventWriter, last_events
from ftcluster_train.io.processes import signal_group
from ftcluster_train.supervisor.heartbeats import StopRequest
from ftcluster_train.supervisor.notification import document_of
from ftcluster_train.supervisor.rank_environment import ARRIVAL_SECONDS, POLL_SECONDS, host_path
from ftcluster_train.supervisor.runs import run_there

PROGRAM = "ftcluster_train.supervisor.notification"
FINISH_SECONDS = 2 * LIMIT_SECONDS + 5.0  # for a command, then a webhook


class Notifier:
    """Starts a process for each notification about a run.

    Args:
        launch: launch of the run, with the user's command.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch, self._run_dir = launch, Path(launch.run_dir)
        self._webhook = ""
        self._waits = False
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def prepare(self, request: StopRequest, events: EventWriter) -> None:
        """Wait for the webhook's address, and check that the head has the user's command.

        Raises:
            Stopped: the run was ended meanwhile.
        """
        command = self._launch.notify[:1]
        if command and not which(command[0], path=host_path()):
            head = self._launch.hosts[0].name
            message = (
                f"--notify: {head} has no program {command[0]}, so its notifications will fail: "
                "install it there, or name it by its absolute path"
            )
            events.write("notice", message=message)
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while self._launch.webhook and not self.read_webhook() and time.monotonic() < deadline:
            request.check()
            time.sleep(POLL_SECONDS)
        if self._launch.webhook and not self._webhook:
            message = "--webhook: its address has not arrived, so there will be no notification"
            events.write("notice", message=message)

    def read_webhook(self) -> bool:
        """Read the webhook's address if its file has arrived; return True if it is known.

        The control node writes the file once the supervisor runs, like the run's secrets.
        """
        with contextlib.suppress(OSError, ValueError):
            text = (self._run_dir / WEBHOOK_FILE).read_text(encoding="ascii")
            self._webhook = text.strip() or self._webhook
        return bool(self._webhook)

    def see(self, event: str, fields: Mapping[str, Any]) -> None:
        """Notify the user if this event reports that the run begins to wait for hosts."""
        if event != "phase":
            return
        doing = str(fields["doing"])
        began, self._waits = not self._waits, doing.startswith(WAITS)
        if self._waits and began:
            self._start("waiting", doing=doing)

    def end(self, state: str, why: str, wait: bool = True) -> None:
        """Notify the user of the run's end; wait for all notifications, but at most a minute.

        Args:
            wait: False to return at once.
        """
        self.read_webhook()
        self._start(state, state=state, why=why, doing="")
        if not wait:
            return
        deadline = time.monotonic() + FINISH_SECONDS
        events = EventWriter(self._run_dir)
        for event, process in self._started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                signal_group(process, signal.SIGKILL)
                process.wait()
                message = f"the notification that the run is {event} took too long and was ended"
                with contextlib.suppress(OSError):  # disk full
                    events.write("notice", message=message)
        self._started.clear()

    def _start(self, event: str, **changes: Any) -> None:
        if not (self._launch.notify or self._webhook):
            return
        metrics = last_events(self._run_dir).get("result", {}).get("metrics", {})
        run, head = run_there(self._run_dir, alive=True), self._launch.hosts[0].name
        document = document_of(event, run, head, metrics, **changes)
        delivery = Delivery(self._launch.notify, self._webhook, document)
        # the process must not count as a process of the run, because those are killed at the end
        environment = {key: value for key, value in os.environ.items() if key != RUN_VARIABLE}
        # in memory, because the webhook may be a secret and a pipe could block the supervisor
        with contextlib.suppress(OSError), os.fdopen(os.memfd_create("delivery"), "r+b") as stdin:
            stdin.write(delivery.packed())
            stdin.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(self._run_dir), event],
                env=environment, cwd="/", stdin=stdin, start_new_session=True,
            )  # fmt: skip
            self._started.append((event, process))
