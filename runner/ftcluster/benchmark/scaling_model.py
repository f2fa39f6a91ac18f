"""A model that predicts the step time T(n) on n hosts. Pure functions only.

    T(n) = c + max(0, k / H + a L(n) + x S (n - 1) / n)

    c  seconds of a step on one host
    S  bytes of gradients and weights that a step exchanges: bytes of an all-reduce count twice,
       bytes of a reduce-scatter or all-gather once. A host sends S (n - 1) / n bytes. If ranks
       exchange only the used rows of an embedding, S grows with n up to the size of all rows
    x  seconds per byte: 1 / bandwidth of a host
    L  sequential messages of a collective without payload: n - 1 in gloo's rings, log2 n in
       MPI's trees
    a  seconds that a sequential message costs, over all collectives of a step
    k  fixed seconds of an exchange; negative if the backward pass hides more communication
    H  steps between two exchanges; S and a are means over these steps

Latency and bandwidth follow Hockney 1994 (The communication challenge for MPP); messages and bytes
of collectives follow Thakur, Rabenseifner and Gropp 2005 (Optimization of Collective Communication
Operations in MPICH).

Each mode has its own a, each backend its own x, and each pair of backend and optimizer its own k. x
and k are a least-squares fit to the step times on several hosts minus c and a L(n).

a comes from a separate measurement of collectives without payload: the times for bytes and for
messages both grow with n, so a few points cannot separate them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, log2
from statistics import linear_regression, mean

from ftcluster_common.protocol.launch import GLOO

UNDECIDED = 1e-9  # below this fraction of the sum of squares, sizes differ only by rounding


@dataclass(frozen=True, order=True)
class Mode:
    """The way in which ranks exchange gradients or weights.

    Attributes:
        dtype: data type in which gradients are sent: fp32, bf16 or auto. With local steps, the data
            type of the weight changes: bf16 or int8.
        optimizer: whole, sharded, or local (each host has its own optimizer).
        every: steps between two exchanges.
    """

    backend: str
    dtype: str
    optimizer: str
    every: int = 1

    @property
    def name(self) -> str:
        """The mode's name, as in `--modes`.

        >>> Mode("impi", "bf16", "sharded").name
        'impi-bf16-sharded'
        """
        return f"{self.backend}-{self.dtype}-{self.optimizer}"


@dataclass(frozen=True)
class Step:
    """A measured step.

    Attributes:
        exchanged: S, in bytes.
        most: upper limit of S on any number of hosts, in bytes.
        latency: seconds that the step's collectives take without payload.
    """

    mode: Mode
    hosts: int
    seconds: float
    exchanged: float
    most: float = inf
    latency: float = 0.0


@dataclass(frozen=True)
class Exchanged:
    """S (exchanged bytes) of a mode by host count: min(base + per_host * hosts, most)."""

    base: float
    per_host: float
    most: float

    def __call__(self, hosts: int) -> float:
        """Return S in bytes for this number of hosts."""
        return min(self.base + self.per_host * hosts, self.most)


@dataclass(frozen=True)
class Model:
    """The fitted model; units and letters are defined in this module's docstring.

    Attributes:
        compute: c, the seconds of a step on one host.
        fixed: k, the fixed seconds of an exchange, by backend and optimizer.
        latency: a, the seconds of a sequential message, by mode.
        per_byte: x, the seconds per byte, by backend.
        exchanged: S, the bytes that a step exchanges, by mode.
    """

    compute: float
    fixed: Mapping[tuple[str, str], float]
    latency: Mapping[Mode, float]
    per_byte: Mapping[str, float]
    exchanged: Mapping[Mode, Exchanged]

    def seconds(self, mode: Mode, hosts: int) -> float:
        """Return T(hosts): the step time in seconds on this number of hosts."""
        if hosts == 1:
            return self.compute
        fixed = self.fixed.get((mode.backend, mode.optimizer), 0.0)
        often = fixed / mode.every + self.latency[mode] * messages(mode, hosts)
        size = self.exchanged[mode](hosts)
        moved = self.per_byte[mode.backend] * size * (hosts - 1) / hosts
        return self.compute + max(0.0, often + moved)

    def efficiency(self, mode: Mode, hosts: int) -> float:
        """Return the samples per second per host, as a fraction of a single host's rate."""
        return self.compute / self.seconds(mode, hosts)


def messages(mode: Mode, hosts: int) -> float:
    """Return L(hosts): the number of sequential messages of a collective.

    >>> messages(Mode("gloo", "fp32", "whole"), 8), messages(Mode("impi", "fp32", "whole"), 8)
    (7.0, 3.0)
    """
    return hosts - 1.0 if mode.backend == GLOO else log2(hosts)


def fit(steps: Sequence[Step]) -> Model | None:
    """Fit the model to steps; return None unless one host and several hosts were both measured.

    x is never negative. k of a backend is fitted only if enough steps use the backend.
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
    """Predict each step on several hosts from all other steps; return the steps with their errors.

    An error is relative to the measured time. A step is skipped if no other step has its mode.
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
    """Fit x of a backend and k of each kind of optimizer: least squares of longer = x size + k / H.

    For a fixed x, the k of an optimizer is the mean residual of its steps. x is the slope after
    subtracting these means. If the steps do not determine x and k, or x would be negative, k is 0.

    Args:
        longer: measured seconds of each step minus c and a L(n).
    """
    sizes = [step.exchanged * (step.hosts - 1) / step.hosts for step in steps]
    often = [1 / step.mode.every for step in steps]
    kinds = {step.mode.optimizer for step in steps}

    def means(values: Sequence[float]) -> dict[str, float]:
        """Return the best-fitting factor of 1 / H for each kind of optimizer."""
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
            residuals = [value - x * size for value, size in zip(longer, sizes, strict=True)]
            return x, means(residuals)
    return max(0.0, slope(sizes, longer) or 0.0), dict.fromkeys(kinds, 0.0)
