"""Predicts the time of a training step on other numbers of hosts. Pure functions only.

    T(n) = c + max(0, k / H + a L(n) + x S (n - 1) / n)

    c  seconds of a step on one host
    S  bytes of gradients and weights that a step exchanges: those of an all-reduce count twice,
       of a reduce-scatter or all-gather once. A host sends S (n - 1) / n of them. Where rows of an
       embedding are exchanged S grows with n, up to what it is without that
    x  seconds a byte: 1 / bandwidth of a host
    L  messages one after the other of a collective without bytes: n - 1 in gloo's rings, log2 n in
       MPI's trees
    a  seconds that such messages of all collectives of a step take
    k  seconds of an exchange whatever its size; negative, as far as the backward pass hides it
    H  steps between two exchanges; S and a are means over them

Latency and bandwidth as in Hockney 1994 (The communication challenge for MPP); messages and bytes
of collectives as in Thakur, Rabenseifner and Gropp 2005 (Optimization of Collective Communication
Operations in MPICH). a belongs to a mode, x to a backend, k to a backend with an optimizer. x and
k are the least squares of what measured steps on several hosts take longer than c and a L(n). a is
that of collectives without bytes, measured by themselves: time for bytes and for messages both grow
with n, so that a few points do not tell them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, log2
from statistics import mean

from ftcluster_common.launch import GLOO

Row = list[float]


@dataclass(frozen=True, order=True)
class Mode:
    """How ranks exchange what they learn.

    Attributes:
        dtype: in which gradients are sent: fp32, bf16 or auto; in local steps what weights have
            learned: bf16 or int8.
        optimizer: whole or sharded; or local, one for each host.
        every: steps between two exchanges.
    """

    backend: str
    dtype: str
    optimizer: str
    every: int = 1

    @property
    def name(self) -> str:
        """As `--modes` takes it.

        >>> Mode("impi", "bf16", "sharded").name
        'impi-bf16-sharded'
        """
        return f"{self.backend}-{self.dtype}-{self.optimizer}"


@dataclass(frozen=True)
class Step:
    """A step that was measured.

    Attributes:
        exchanged: S, bytes.
        most: bytes that S does not exceed on any number of hosts.
        latency: seconds that the step's collectives take without bytes.
    """

    mode: Mode
    hosts: int
    seconds: float
    exchanged: float
    most: float = inf
    latency: float = 0.0


@dataclass(frozen=True)
class Exchanged:
    """S of a mode by number of hosts: `base + per_host * hosts`, and no more than `most`."""

    base: float
    per_host: float
    most: float

    def __call__(self, hosts: int) -> float:
        """Bytes."""
        return min(self.base + self.per_host * hosts, self.most)


@dataclass(frozen=True)
class Model:
    """What was fitted; the units and letters are those of this module's docstring.

    Attributes:
        compute: c.
        fixed: k by backend and optimizer.
        latency: a by mode.
        per_byte: x by backend.
        exchanged: S by mode.
    """

    compute: float
    fixed: Mapping[tuple[str, str], float]
    latency: Mapping[Mode, float]
    per_byte: Mapping[str, float]
    exchanged: Mapping[Mode, Exchanged]

    def seconds(self, mode: Mode, hosts: int) -> float:
        """T(hosts)."""
        if hosts == 1:
            return self.compute
        fixed = self.fixed.get((mode.backend, mode.optimizer), 0.0)
        often = fixed / mode.every + self.latency[mode] * messages(mode, hosts)
        size = self.exchanged[mode](hosts)
        moved = self.per_byte[mode.backend] * size * (hosts - 1) / hosts
        return self.compute + max(0.0, often + moved)

    def efficiency(self, mode: Mode, hosts: int) -> float:
        """Samples a second of a host, as a part of those of one host alone."""
        return self.compute / self.seconds(mode, hosts)


def messages(mode: Mode, hosts: int) -> float:
    """L(hosts).

    >>> messages(Mode("gloo", "fp32", "whole"), 8), messages(Mode("impi", "fp32", "whole"), 8)
    (7.0, 3.0)
    """
    return hosts - 1.0 if mode.backend == GLOO else log2(hosts)


def fit(steps: Sequence[Step]) -> Model | None:
    """The model of these steps; None without one on one host and one on several.

    A backend gets x, which is not negative, and k if it has enough steps.
    """
    alone = [step.seconds for step in steps if step.hosts == 1]
    several = sorted((step for step in steps if step.hosts > 1), key=lambda step: step.mode)
    if not alone or not several:
        return None
    compute = mean(alone)
    fixed: dict[tuple[str, str], float] = {}
    latency = {
        mode: mean(step.latency / messages(mode, step.hosts) for step in group)
        for mode, group in groupby(several, key=lambda step: step.mode)
    }
    per_byte = {}
    for backend, group in groupby(several, key=lambda step: step.mode.backend):
        own = list(group)
        kinds = sorted({step.mode.optimizer for step in own})
        longer = [
            step.seconds - compute - latency[step.mode] * messages(step.mode, step.hosts)
            for step in own
        ]
        per_byte[backend], *of_kinds = _fit_backend(own, longer, kinds)
        fixed |= {(backend, kind): one for kind, one in zip(kinds, of_kinds, strict=True)}
    exchanged = {
        mode: _fit_size(list(group)) for mode, group in groupby(several, key=lambda step: step.mode)
    }
    return Model(compute, fixed, latency, per_byte, exchanged)


def prediction_errors(steps: Sequence[Step]) -> list[tuple[Step, float]]:
    """Each step on several hosts, with the error of its prediction by a fit to all others.

    The error is a part of the measured time. Steps whose mode has no other point have none.
    """
    found = []
    for step in steps:
        model = fit([other for other in steps if other is not step])
        if step.hosts > 1 and model and step.mode in model.exchanged:
            found.append((step, model.seconds(step.mode, step.hosts) / step.seconds - 1))
    return found


def _fit_size(steps: Sequence[Step]) -> Exchanged:
    sizes = [step.exchanged for step in steps]
    most = min(step.most for step in steps)
    found = least_squares([[1.0] * len(steps), [float(step.hosts) for step in steps]], sizes)
    if found and found[1] > 0:
        return Exchanged(found[0], found[1], most)
    return Exchanged(mean(sizes), 0.0, most)


def _fit_backend(steps: Sequence[Step], longer: Row, kinds: Sequence[str]) -> Row:
    """x, and k by kind of optimizer.

    Args:
        longer: seconds of each step that x and k are to explain.
    """
    sizes = [step.exchanged * (step.hosts - 1) / step.hosts for step in steps]
    fixed = [[(step.mode.optimizer == kind) / step.mode.every for step in steps] for kind in kinds]
    for columns in ([sizes, *fixed], [sizes]):
        found = least_squares(columns, longer) if len(columns) <= len(steps) else None
        if found and found[0] >= 0:
            return (found + [0.0] * len(kinds))[: 1 + len(kinds)]
    return [0.0] * (1 + len(kinds))


def least_squares(columns: Sequence[Row], values: Row) -> Row | None:
    """Factors of the columns whose sum is closest to the values; None if these do not decide.

    Normal equations, by Gauss and Jordan, of columns scaled to length 1.

    >>> found = least_squares([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0]], [1.0, 3.0, 5.0])
    >>> [round(one, 6) for one in found]
    [1.0, 2.0]
    """
    lengths = [sum(one * one for one in column) ** 0.5 for column in columns]
    if not all(lengths):
        return None
    scaled = [[one / n for one in column] for column, n in zip(columns, lengths, strict=True)]
    rows = [
        [sum(a * b for a, b in zip(one, other, strict=True)) for other in (*scaled, values)]
        for one in scaled
    ]
    for number in range(len(rows)):
        best = max(range(number, len(rows)), key=lambda n: abs(rows[n][number]))
        rows[number], rows[best] = rows[best], rows[number]
        pivot = rows[number][number]
        if abs(pivot) < 1e-9:
            return None
        rows[number] = [one / pivot for one in rows[number]]
        for other in range(len(rows)):
            if other != number:
                factor = rows[other][number]
                pairs = zip(rows[other], rows[number], strict=True)
                rows[other] = [a - factor * b for a, b in pairs]
    return [row[-1] / length for row, length in zip(rows, lengths, strict=True)]
