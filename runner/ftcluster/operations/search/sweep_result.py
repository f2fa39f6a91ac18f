"""The result of a sweep: a table of its runs, and the best run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftcluster.errors import FtclusterError
from ftcluster.progress.format import duration
from ftcluster.search.repeats import RepeatedSetting, may_be_chance, repeated_settings
from ftcluster.search.rows import NOT_STARTED, WAITING, Aim, SweepRun
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned

REASON_LENGTH = 100  # maximum length of a reason in the table


@dataclass(frozen=True)
class SweepResult:
    """The state of a sweep.

    Attributes:
        rows: one row per run, in the order of the command line.
        aim: the metric to compare, and whether a larger value is better.
        at_once: number of parallel runs.
        fetched: local folder with the best model; "" if the model was not fetched.
        report: path of the report about the runs; "" if no report was written.
        planned: True for a dry run.
    """

    rows: Sequence[SweepRun]
    aim: Aim
    at_once: int = 1
    fetched: str = ""
    report: str = ""
    planned: bool = False

    @property
    def metric(self) -> str:
        """The name of the compared metric; "" if the runs have no metric."""
        return next((name for row in self.rows if (name := self.aim.of(row.metrics)[0])), "")

    @property
    def repeated(self) -> list[RepeatedSetting]:
        """The settings whose runs have the metric, best mean first.

        Runs that differ only in their seed or fold share a setting.
        """
        more_is_better = self.aim.more_is_better(self.metric)
        sign = -1 if more_is_better else 1
        valued = [
            (value, row)
            for row in self.rows
            if row.state == "done" and (value := self.aim.of(row.metrics)[1]) is not None
        ]
        return repeated_settings(sorted(valued, key=lambda pair: sign * pair[0]), more_is_better)

    @property
    def ranked(self) -> list[SweepRun]:
        """The runs that have the metric, best setting first; each setting's best run is first."""
        return [row for setting in self.repeated for row in setting.rows]

    @property
    def best(self) -> SweepRun | None:
        """The best run of the setting with the best mean; None if no run has the metric."""
        return next(iter(self.ranked), None)

    @property
    def best_may_be_chance(self) -> bool | None:
        """True if chance may explain the lead of the best setting over the second best.

        None if there is no second setting, or if one of the two has a single run.
        """
        first_two = self.repeated[:2]
        return may_be_chance(*first_two) if len(first_two) > 1 else None

    @property
    def state(self) -> str:
        """The state of the sweep: `done` if all runs started and ended, and one has the metric."""
        if self.planned or any(row.state in (WAITING, "running") for row in self.rows):
            return "planned" if self.planned else "running"
        lost = any(row.state == NOT_STARTED for row in self.rows)
        return "failed" if lost or not self.best else "done"

    def document(self) -> dict[str, Any]:
        """Return the document that `sweep --json` prints."""
        best = self.best
        return {
            "state": self.state,
            "metric": self.metric or None,
            "greater_is_better": self.aim.more_is_better(self.metric) if self.metric else None,
            "best": best.run if best else None,
            "best_settings": dict(best.settings) if best else None,
            "best_may_be_chance": self.best_may_be_chance,
            "settings": [setting.document() for setting in self.repeated],
            "runs": [row.document() for row in self.rows],
            "fetched": self.fetched or None,
            "report": self.report or None,
        }

    def lines(self) -> list[str]:
        """Return the table of runs, best run first, and hints for the user."""
        ranked = self.ranked
        others = [row for row in self.rows if row not in ranked]
        names = list(dict.fromkeys(name for row in self.rows for name in row.settings))
        table = [(*names, self.metric or "metric", "time", "run")]
        table += [self._cells(row, names) for row in (*ranked, *others)]
        lines = [*aligned(table), ""]
        counts = {row.state: 0 for row in self.rows}
        for row in self.rows:
            counts[row.state] += 1
        lines.append(
            f"{counted(len(self.rows), 'run')}: "
            + ", ".join(f"{count} {state}" for state, count in counts.items())
        )
        lines += self._mean_lines()
        if best := self.best:
            value = self.aim.of(best.metrics)[1]
            lines.append(f"best {self.metric}, {value:.4g}: {best.label}")
            lines += self._doubts()
            if not self.fetched:
                lines.append(f"to fetch the best model: ftcluster fetch {best.run}")
        if self.fetched:
            lines.append(f"model: {self.fetched}")
        if self.report:
            lines.append(f"report: {self.report}")
        return lines

    def _mean_lines(self) -> list[str]:
        """Return a table of means if any setting has several runs."""
        settings = self.repeated
        if all(setting.deviation is None for setting in settings):
            return []
        names = list(dict.fromkeys(name for setting in settings for name in setting.settings))
        table = [(*names, f"mean {self.metric}", "standard deviation", "runs")]
        for setting in settings:
            deviation = "-" if setting.deviation is None else f"{setting.deviation:.2g}"
            values = (setting.settings.get(name, "-") for name in names)
            table.append((*values, f"{setting.mean:.4g}", deviation, str(len(setting.rows))))
        return ["", *aligned(table), ""]

    def _doubts(self) -> list[str]:
        """Return a warning if chance may explain which setting is the best."""
        settings = self.repeated
        if self.best_may_be_chance:
            return [
                f"the difference from {settings[1].label} may be due to chance (Welch's t-test, "
                "95 %); more seeds can show which is better"
            ]
        if len(settings) > 1 and self.best_may_be_chance is None:
            return ["the difference may be due to chance; to check, also try seed=1,2,3"]
        return []

    def _cells(self, row: SweepRun, names: Sequence[str]) -> tuple[str, ...]:
        value = self.aim.of(row.metrics)[1] if row.state == "done" else None
        shown = f"{value:.4g}" if value is not None else row.state
        why = f"{row.run}  {row.reason[:REASON_LENGTH]}".strip() if row.reason else row.run
        time = duration(row.seconds) if row.seconds else "-"
        return (*(row.settings.get(name, "-") for name in names), shown, time, why)


def notification_of(
    recipe: str, result: SweepResult, error: FtclusterError | None = None
) -> dict[str, Any]:
    """Return the JSON body of the notification that is sent when a sweep ends.

    The body contains the keys of `sweep --json`, the key `event`, and a line `text` for people.

    Args:
        recipe: name of the recipe.
        error: the error that ended the sweep; None if it ended by itself.
    """
    document = {**result.document(), **(error.to_dict() if error else {})}
    event = "done" if document["state"] == "done" else "failed"
    text = f"the sweep of {recipe} {'is done' if event == 'done' else 'failed'}"
    if error:
        text += f": {error.message}"
    elif best := result.best:
        value = result.aim.of(best.metrics)[1]
        text += f": best {result.metric} {value:.4g}, {best.label} ({best.run})"
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return {"event": event, **document, "text": text}
