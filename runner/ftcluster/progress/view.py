"""Views of progress: a silent view, a live picture on a terminal, and plain lines."""

import sys
import time

from rich.console import Console, RenderableType
from rich.live import Live

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.progress import format
from ftcluster.progress.data import data_lines
from ftcluster.progress.pictures import run_picture, setup_picture
from ftcluster.progress.state import RunProgress, SetupProgress, activity_of, stage_of
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster.text.printable import printable

# These limits keep log files short: seconds between two lines about the same activity of a host,
# and seconds without output after which the running tasks are printed.
ACTIVITY_SECONDS = 15.0
SILENT_SECONDS = 30.0


class View:
    """A receiver of an operation's progress. This base class shows nothing and asks nobody."""

    def setup_event(self, progress: SetupProgress, event: TaskEvent) -> None:
        """Show an event of a playbook, after the event was added to `progress`."""

    def task_event(self, event: TaskEvent) -> None:
        """Receive a message that a task reports about its host."""

    def run_event(self, progress: RunProgress, kind: str) -> None:
        """Show an event of a run, after the event was added to `progress`."""

    def tick(self) -> None:
        """Update elapsed times; called several times a second."""

    def say(self, text: str) -> None:
        """Print a line."""

    def ask(self, question: str) -> str:  # noqa: ARG002
        """Ask the user a question and return the answer; "" if nobody can be asked."""
        return ""

    def close(self) -> None:
        """Show the final state and restore the terminal."""


class TerminalView(View):
    """A view that prints notes on stderr; stdout is for the result."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._task = ""  # latest task with notes
        self._notes: dict[str, list[str]] = {}  # hosts by the text of a note

    def setup_event(self, progress: SetupProgress, event: TaskEvent) -> None:  # noqa: ARG002
        """Show the changes that a task in check mode would make."""
        if event.kind == "progress":
            return
        self.task_event(event)
        if event.kind == "diff":
            self.say(f"{event.host}: {event.task}\n{event.message}")

    def task_event(self, event: TaskEvent) -> None:
        """Collect a task's note about its host; show the notes of the previous task first."""
        if event.task != self._task:
            self._say_notes()
            self._task = event.task
        if event.kind in ("ok", "changed") and event.message:
            self._notes.setdefault(event.message, []).append(event.host)

    def run_event(self, progress: RunProgress, kind: str) -> None:
        """Show notes and checkpoints."""
        self._say_notes()
        if kind in ("notice", "slow_host", "restart"):
            at = f" ({format.clock(progress.time)})" if progress.time else ""
            self.say(f"note{at}: {below(progress.notices[-1])}")
        elif kind == "checkpoint":
            self.say(format.checkpoint_line(progress))
        elif kind == "data":
            for line in data_lines(progress.data, samples=1):
                self.say(line)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(printable(text), highlight=False, markup=False, emoji=False)

    def ask(self, question: str) -> str:
        """Ask a question on the terminal; return "" if stdin or stderr is not a terminal."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return ""
        print(printable(question), end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip()

    def close(self) -> None:
        """Show the remaining notes."""
        self._say_notes()

    def _say_notes(self) -> None:
        """Show the notes of the latest task; hosts with the same note share a line."""
        for note, hosts in self._notes.items():
            self.say(f"note: {short_names(sorted(hosts))}: {note}")
        self._notes.clear()


def below(text: str) -> str:
    """Indent further lines of a host's text, so that they cannot imitate ftcluster's output.

    >>> below("a\\nerror: b")
    'a\\n  error: b'
    """
    return text.replace("\n", "\n  ")


def make_view(verbose: bool, console: Console | None = None) -> View:
    """Return a live view for a terminal, or plain lines elsewhere and with -v."""
    console = console or Console(file=sys.stderr, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal and not verbose:
        return _LiveView(console)
    return _PlainView(console, verbose)


class _LiveView(TerminalView):
    """A view that redraws a picture four times a second; the last picture stays on the screen."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._shown: SetupProgress | RunProgress | None = None
        self._live: Live | None = None

    def setup_event(self, progress: SetupProgress, event: TaskEvent) -> None:
        self._show(progress)
        super().setup_event(progress, event)

    def run_event(self, progress: RunProgress, kind: str) -> None:
        self._show(progress)
        super().run_event(progress, kind)

    def tick(self) -> None:
        if self._live:
            self._live.update(self._picture())

    def close(self) -> None:
        super().close()
        if self._live:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
            self._live = None

    def _show(self, progress: SetupProgress | RunProgress) -> None:
        if self._shown is not progress:
            self.close()
            self._shown = progress
            self._live = Live(self._picture(), console=self._console, refresh_per_second=4)
            self._live.start()

    def _picture(self) -> RenderableType:
        if isinstance(self._shown, RunProgress):
            return run_picture(self._shown)
        return setup_picture(self._shown or SetupProgress())


class _PlainView(TerminalView):
    """A view with a line for each important event; with -v also for each task and host."""

    def __init__(self, console: Console, verbose: bool) -> None:
        super().__init__(console)
        self._verbose = verbose
        self._stage = ""
        self._setup: SetupProgress | None = None
        self._said_at = time.monotonic()
        self._activities: dict[str, tuple[str, float]] = {}  # activity of each host, and its time

    def setup_event(self, progress: SetupProgress, event: TaskEvent) -> None:
        self._setup = progress
        if event.kind == "progress":
            self._say_activity(event)
            return
        stage = stage_of(event)
        if stage and stage != self._stage:
            self._stage = stage
            self.say(format.stage_line(stage))
        # the reason for a failure follows in the command's error, or in a notice if a rescue
        # section handled the failure
        always = event.kind in ("failed", "unreachable", "changed")
        if always or (self._verbose and event.kind in ("ok", "skipped")):
            # the current task is not the reason why a host cannot be reached
            task = "" if event.kind == "unreachable" else f": {event.task}"
            self.say(f"{event.host}: {event.kind}{task}")
        super().setup_event(progress, event)

    def run_event(self, progress: RunProgress, kind: str) -> None:
        match kind:
            case "phase":
                self.say(f"{progress.doing} ...")
            case "start":
                steps = counted(progress.start["steps"], "step")
                self.say(f"training: {format.shape(progress)}, {steps}")
            case "step":
                self.say(format.step_line(progress))
            case "evaluation":
                last = progress.evaluations[-1]
                self.say(f"evaluation at step {last['step']}: {format.metrics(last['metrics'])}")
        super().run_event(progress, kind)

    def _say_activity(self, event: TaskEvent) -> None:
        """Print the activity of a host's long task, if it is new or the last line is old."""
        now, activity = time.monotonic(), activity_of(event.message)
        before, said_at = self._activities.get(event.host, ("", 0.0))
        if activity != before or now >= said_at + ACTIVITY_SECONDS:
            self._activities[event.host] = (activity, now)
            self.say(f"{event.host}: {event.message}")

    def tick(self) -> None:
        now = time.monotonic()
        if self._setup and now >= self._said_at + SILENT_SECONDS:
            for line in format.waiting_lines(self._setup, now, SILENT_SECONDS):
                self.say(line)
            self._said_at = now

    def close(self) -> None:
        self._setup = None
        super().close()

    def say(self, text: str) -> None:
        self._said_at = time.monotonic()
        # rich's Console takes longer to print a line than ftcluster takes to handle the event
        print(printable(text), file=self._console.file, flush=True)
