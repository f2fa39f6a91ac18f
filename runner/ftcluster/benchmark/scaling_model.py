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
from statistics import linear_regression, mean

from ftcluster_common.protocol.launch import GLOO

UNDECIDED = 1e-9  # of the sum of squares: sizes that differ by rounding alone


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
        """The mode's name, as `--modes` takes it.

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
        """Return S for a number of hosts, in bytes."""
        return min(self.base + self.per_host * hosts, self.most)


@dataclass(frozen=True)
class Model:
    """The fitted model; units and letters are those of this module's docstring.

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
        """Return T(hosts): the seconds of a step on so many hosts."""
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
    """Return L(hosts): the messages of a collective that wait for each other.

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
        of_backend = list(group)
        longer = [
            step.seconds - compute - latency[step.mode] * messages(step.mode, step.hosts)
            for step in of_backend
        ]
        per_byte[backend], of_kinds = _fit_backend(of_backend, longer)
        fixed |= {(backend, kind): seconds for kind, seconds in sorted(of_kinds.items())}
    exchanged = {
        mode: _fit_size(list(group)) for mode, group in groupby(several, key=lambda step: step.mode)
    }
    return Model(compute, fixed, latency, per_byte, exchanged)


def prediction_errors(steps: Sequence[Step]) -> list[tuple[Step, float]]:
    """Each step on several hosts, with the error of its prediction by a fit to all others.

    The error is a part of the measured time. Steps whose mode has no other point have none.
    """
    errors = []
    for step in steps:
        model = fit([other for other in steps if other is not step])
        if step.hosts > 1 and model and step.mode in model.exchanged:
            errors.append((step, model.seconds(step.mode, step.hosts) / step.seconds - 1))
    return errors


def _fit_size(steps: Sequence[Step]) -> Exchanged:
    sizes = [step.exchanged for step in steps]
    hosts = [float(step.hosts) for step in steps]
    most = min(step.most for step in steps)
    if len(set(hosts)) > 1:
        per_host, base = linear_regression(hosts, sizes)
        if per_host > 0:
            return Exchanged(base, per_host, most)
    return Exchanged(mean(sizes), 0.0, most)


def _fit_backend(steps: Sequence[Step], longer: Sequence[float]) -> tuple[float, dict[str, float]]:
    """x of a backend, and k by kind of optimizer: least squares of `longer = x size + k / H`.

    Given x, k of a kind is the mean of what is left, and x is the slope without these means. Where
    the steps do not decide that, or x would be negative, there is no k.

    Args:
        longer: seconds of each step that x and k are to explain.
    """
    sizes = [step.exchanged * (step.hosts - 1) / step.hosts for step in steps]
    often = [1 / step.mode.every for step in steps]
    kinds = {step.mode.optimizer for step in steps}

    def means(values: Sequence[float]) -> dict[str, float]:
        """The factors of 1 / H that are closest to the values, by kind."""
        rows = list(zip(steps, often, values, strict=True))
        return {
            kind: sum(w * value for step, w, value in rows if step.mode.optimizer == kind)
            / sum(w * w for step, w, _ in rows if step.mode.optimizer == kind)
            for kind in kinds
        }

    def slope(xs: Sequence[float], ys: Sequence[float]) -> float | None:
        under = sum(x * x for x in xs)
        if under <= UNDECIDED * sum(size * size for size in sizes):
            return None
        return sum(x * y for x, y in zip(xs, ys, strict=True)) / under

    def without(values: Sequence[float]) -> list[float]:
        factors = means(values)
        rows = zip(steps, often, values, strict=True)
        return [value - w * factors[step.mode.optimizer] for step, w, value in rows]

    if len(steps) > len(kinds):
        x = slope(without(sizes), without(longer))
        if x is not None and x >= 0:
            left = [value - x * size for value, size in zip(longer, sizes, strict=True)]
            return x, means(left)
    return max(0.0, slope(sizes, longer) or 0.0), dict.fromkeys(kinds, 0.0)
