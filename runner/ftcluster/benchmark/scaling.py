"""How a training scales: its points, and the result as a document and as text. Pure functions only.

Each rank has the same number of samples a step at every point (weak scaling).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcluster.text.plural import counted
from ftcluster.text.table import aligned


@dataclass(frozen=True)
class Point:
    """A training that was measured.

    Attributes:
        threads: of all ranks together.
        batch_size: of all ranks together.
    """

    run: str
    hosts: int
    ranks: int
    threads: int
    batch_size: int
    samples_per_second: float


def doubled(most: int) -> list[int]:
    """1, 2, 4 and so on up to `most`, which is the last.

    >>> doubled(6), doubled(8)
    ([1, 2, 4, 6], [1, 2, 4, 8])
    """
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def share(batch_size: int, ranks: int) -> int:
    """Samples of a rank, where all ranks have as many.

    >>> share(32, 4), share(33, 4), share(2, 4)
    (8, 8, 1)
    """
    return max(1, batch_size // ranks)


def document(recipe: str, stack: str, steps: int, points: Sequence[Point]) -> dict[str, Any]:
    """The result of `bench scaling --json`.

    The efficiency is the speed-up for the threads that were added: all hosts that are alike have as
    many, and ranks of one host share its cores.
    """
    first = points[0]
    rows = []
    for point in points:
        speed_up = point.samples_per_second / first.samples_per_second
        efficiency = speed_up / (point.threads / first.threads)
        figures = {"speed_up": round(speed_up, 3), "efficiency": round(efficiency, 3)}
        rows.append({**vars(point), **figures})
    return {"state": "done", "recipe": recipe, "stack": stack, "steps": steps, "points": rows}


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The result as text."""
    first = result["points"][0]
    samples = first["batch_size"] // first["ranks"]
    yield (
        f"recipe {result['recipe']}, stack {result['stack']}, {counted(samples, 'sample')} a rank "
        f"and step, {result['steps']} steps"
    )
    yield ""
    head = ("hosts", "ranks", "threads", "samples/s", "speed-up", "efficiency")
    rows = [
        (
            str(point["hosts"]), str(point["ranks"]), str(point["threads"]),
            f"{point['samples_per_second']:.1f}", f"{point['speed_up']:.2f}",
            f"{point['efficiency']:.0%}",
        )
        for point in result["points"]
    ]  # fmt: skip
    yield from aligned([head, *rows])
