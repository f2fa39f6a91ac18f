"""Progress as plain lines, for logs, pipes and CI."""

from rich.console import Console

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.progress import format
from ftcluster.progress.state import RunProgress, SetupProgress


class PlainView:
    """One line a fact; under -v also a line a task and host."""

    def __init__(self, console: Console, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._stage = ""

    def setup_event(self, progress: SetupProgress, event: TaskEvent) -> None:
        """See View."""
        if event.stage != self._stage:
            self._stage = event.stage
            self.say(f"{event.stage} ...")
        if event.kind in ("failed", "unreachable"):
            self.say(f"{event.host}: {event.kind}: {event.task}: {event.message}")
        elif event.kind == "changed":
            self.say(f"{event.host}: changed: {event.task}")
        elif self._verbose and event.kind in ("ok", "skipped"):
            self.say(f"{event.host}: {event.kind}: {event.task}")
        if event.kind in ("ok", "changed") and event.message:
            self.say(f"note: {progress.notices[-1]}")

    def run_event(self, progress: RunProgress, kind: str) -> None:
        """See View."""
        match kind:
            case "phase":
                self.say(f"{progress.doing} ...")
            case "notice":
                self.say(f"note: {progress.notices[-1]}")
            case "start":
                self.say(f"training: {format.shape(progress)}, {progress.start['steps']} steps")
            case "step":
                self.say(format.step_line(progress))
            case "evaluation":
                last = progress.evaluations[-1]
                self.say(f"evaluation at step {last['step']}: {format.metrics(last['metrics'])}")
            case "checkpoint":
                self.say(format.checkpoint_line(progress))

    def tick(self) -> None:
        """See View."""

    def say(self, text: str) -> None:
        """See View."""
        self._console.out(text, highlight=False)

    def close(self) -> None:
        """See View."""
