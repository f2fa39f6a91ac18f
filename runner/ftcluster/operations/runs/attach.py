"""Follow a run to its end, regardless of where it was started."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftcluster.ansible.failures import failed_without_task
from ftcluster.cluster.price import Price, price_document
from ftcluster.errors import FtclusterError
from ftcluster.launch import follow
from ftcluster.launch.record import read_record
from ftcluster.launch.run import Followed, raise_if_stopped, why_failed
from ftcluster.launch.run_hosts import failure_hint, head_lost_hint
from ftcluster.operations.connection import Connection, find
from ftcluster.progress.classes import class_documents, class_lines
from ftcluster.progress.format import duration, metrics
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.report.cost import cost_line, recorded_price
from ftcluster.text.host_names import with_host


@dataclass(frozen=True)
class AttachResult:
    """A run that has succeeded.

    Attributes:
        progress: the state that the run's events describe.
        price: price of the run's hosts; None if the price is not known.
        hosts: number of hosts of the run.
    """

    progress: RunProgress
    price: Price | None = None
    hosts: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the model, by name; empty for a script."""
        return dict(self.progress.result.get("metrics", {}))

    @property
    def classes(self) -> dict[str, Any]:
        """The scores of each class by validation set, as in `--json`."""
        return class_documents(self.progress.result)

    @property
    def model(self) -> str:
        """The folder of the model on the head; "" for a script."""
        return str(self.progress.result.get("model") or "")

    @property
    def seconds(self) -> float:
        """The duration in seconds, from the launch to the end of the last rank."""
        return self.progress.seconds

    def document(self) -> dict[str, Any]:
        """Return the document that `attach --json` prints."""
        price, progress = self.price, self.progress
        return {
            **progress.document(),
            "price": price_document(price),
            "cost": round(price.cost(progress.seconds), 6) if price else None,
        }

    def lines(self) -> list[str]:
        """Return the result as text."""
        progress = self.progress
        lines = [f"{progress.run}: {progress.state}, {duration(progress.seconds)}"]
        if model := progress.result.get("model"):
            lines += [
                *class_lines(progress.result),
                metrics(self.metrics),
                f"model on the head: {model}",
            ]
        if self.price:
            epoch = progress.epoch_seconds
            lines.append(cost_line(progress.seconds, epoch, self.price, self.hosts))
        return lines


def attach(
    connection: Connection,
    run: str,
    view: View,
    on_output: Callable[[str], None] = lambda _: None,
) -> AttachResult:
    """Follow a run from its first event to its end. A signal ends this process, not the run.

    Args:
        run: the run's id or the beginning of the id; "" for the newest run.
        on_output: function that is called with each piece of the output of a script's rank 0.

    Raises:
        Detached: a signal, such as Ctrl-C, has ended this process only.
        Interrupted: the run was stopped.
        FtclusterError: there is no such run, or the run failed.
    """

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "output":
            on_output(event["text"])

    run_hosts, name = find(connection, run, view)
    followed = follow.attach(run_hosts, name, view, on_event)
    progress = followed.progress
    record = read_record(progress.run) or {}
    price = recorded_price(record) if progress.result else None
    result = AttachResult(progress, price, len(record.get("facts", ())))
    document = result.document()
    raise_if_stopped(followed, document)
    if not progress.ended or progress.state != "done":
        hint = head_lost_hint(name) if followed.outcome.unreachable else ""
        message, to_do = _reason(followed)
        raise FtclusterError(message, hint or to_do, details=document)
    return result


def _reason(followed: Followed) -> tuple[str, str]:
    """Return the reason why a run failed, and a hint for the user."""
    progress = followed.progress
    if progress.errors:
        return why_failed(progress)
    failures, failed = followed.outcome.failures, f"run {progress.run} failed"
    lines = [with_host(event.host, event.reason) for event in failures]
    if not lines:
        error = failed_without_task(f"run {progress.run}", followed.outcome.output)
        return error.message, error.hint
    return "\n  ".join([failed, *lines]), failure_hint(failures)
