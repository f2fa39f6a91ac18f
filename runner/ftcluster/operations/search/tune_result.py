"""The result of `tune`, as a JSON document and as text."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ftcluster.planning.tuned import written
from ftcluster.progress.format import duration
from ftcluster.search.turns import FIRST, Turns, Verdict, relative, spread
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned


def document(
    recipe: str, stack: str, search: Turns, verdict: Verdict, seconds: float, state: str = "done"
) -> dict[str, Any]:
    """Return the document that `tune --json` prints."""
    first = [trial for trial in search.trials if trial.round == FIRST]
    defaults = [trial.samples_per_second for trial in first if not trial.settings]
    alike = [speed for speed in defaults if speed]
    return {
        "state": state,
        "recipe": recipe,
        "stack": stack,
        "settings": dict(verdict.settings),
        "best": dict(verdict.best),
        "speed_up": _rounded(verdict.speed_up),
        "spread": _rounded(verdict.spread),
        "worth": [
            {"settings": dict(trial.settings), "speed_up": _rounded(speed)}
            for trial, speed in relative(first)
        ],
        "worth_spread": _rounded(spread(alike)) if len(alike) > 1 else None,
        "trials": [asdict(trial) for trial in search.trials],
        "left_out": [dict(settings) for settings in search.left_out],
        "seconds": round(seconds, 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Format the document for a terminal, line by line."""
    count = counted(len(result["trials"]), "trial")
    yield (
        f"recipe {result['recipe']}, stack {result['stack']}: {count} in "
        f"{duration(result['seconds'])}"
    )
    noise = result["worth_spread"]
    if result["worth"]:
        yield ""
        rows = sorted(result["worth"], key=lambda row: -float(row["speed_up"]))
        within = "no faster or slower, within the spread"
        yield from aligned(
            [
                ("setting alone", "x the default", ""),
                *(
                    (
                        written(row["settings"]),
                        f"{row['speed_up']:.2f}",
                        within if noise is None or abs(row["speed_up"] - 1) <= noise else "",
                    )
                    for row in rows
                ),
            ]
        )
        if noise is not None:
            yield f"repeated trials of the default differed by {noise:.1%}"
    failed = {written(trial["settings"]): trial["problem"] for trial in result["trials"]}
    for name, problem in failed.items():
        if problem:
            yield f"failed: {name}: {problem.splitlines()[0]}"
    if result["left_out"]:
        names = "; ".join(map(written, result["left_out"]))
        yield f"no time for: {names}"
    yield ""
    yield from _verdict(result)


def _verdict(result: Mapping[str, Any]) -> Iterator[str]:
    speed_up, differs = result["speed_up"], result["spread"]
    if result["settings"]:
        yield (
            f"fastest: {written(result['settings'])}, with {speed_up:.2f} x the speed of the "
            f"plan's default; repeated trials differed by up to {differs:.1%}"
        )
    elif speed_up is not None:
        yield (
            f"the plan's default stays: the fastest settings, {written(result['best'])}, reached "
            f"{speed_up:.2f} x its speed, but repeated trials differed by up to {differs:.1%}"
        )
    elif result["state"] == "done" and not result["left_out"]:
        yield "the plan's default stays: no other settings were faster"
    else:
        yield "the plan's default stays: there was no time to compare other settings"
