"""Long trainings with one fault after another, and what is checked at their ends."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults import observe
from tests.faults.injections import FAULTS
from tests.faults.ledger import Order, compare
from tests.faults.places import Hosts, Place
from tests.faults.training import Training
from tests.faults.watch import CLEAN_SECONDS, watch

PAUSE_SECONDS = (0.0, 8.0)  # between two faults, after the training has done some steps
LOSS_TOLERANCE = 0.02  # relative, on fewer ranks, whose sums are rounded otherwise
RUN_SECONDS = 1800.0
GOES_ON = ("continued", "undisturbed", "done")


@dataclass(frozen=True)
class Reference:
    """What an undisturbed training has done.

    Attributes:
        order: the samples of each step.
        weights: their SHA-256 at each checkpoint and at the end.
        losses: of each step.
    """

    order: Order
    weights: dict[int, str]
    losses: dict[int, float]


def undisturbed(training: Training) -> Reference:
    """Carry a training out to its end.

    Raises:
        AssertionError: it failed.
    """
    training.launch()
    try:
        assert training.follower.wait(RUN_SECONDS) == 0, training.said()
    except BaseException:
        training.stop()
        raise
    return Reference(training.order(), training.weights(), training.losses())


def each_once(order: Order, samples: int) -> bool:
    """Whether the first pass over the data takes each sample once."""
    taken: list[int] = []
    for step in sorted(order):
        taken += order[step].elements()
        if len(taken) >= samples:
            break
    return sorted(taken) == list(range(samples))


def at_end(training: Training, reference: Reference, before: dict[str, Any]) -> dict[str, Any]:
    """The facts that are checked when a training has ended well."""
    left = leftovers(training, before)
    weights, losses = training.weights(), training.losses()
    differing = [s for s, digest in weights.items() if digest != reference.weights.get(s, digest)]
    lost, extra = compare(training.order(), reference.order, training.steps)
    loss = abs(losses[training.steps] / reference.losses[training.steps] - 1)
    with contextlib.suppress(Exception):
        training.follower.wait(60)
    return {
        "runs": len(training.runs),
        "follower": training.follower.poll(),
        "samples_lost": lost,
        "samples_extra": extra,
        "weights_compared": len(weights),
        "weights_differing": differing,
        "last_weights": training.steps in weights,
        "loss_differs": round(loss, 6),
        "left": left,
    }


def surroundings(place: Place) -> dict[str, Any]:
    """What the hosts have while no run is there."""
    inits = {host: place.init(host) for host in place.hosts}
    return {
        host: {
            "mounts": sorted(observe.mounts(init)),
            "ports": sorted(observe.cluster_ports(init)),
            "shared memory": sorted(p.name for p in Path(f"/proc/{init}/root/dev/shm").iterdir()),
        }
        for host, init in inits.items()
        if init is not None
    }


def leftovers(training: Training, before: dict[str, Any]) -> list[str]:
    """What is there a minute after the end, on any host, that was not there before."""
    deadline = time.monotonic() + CLEAN_SECONDS
    while (found := _left(training, before)) and time.monotonic() < deadline:
        time.sleep(1)
    return found


def _left(training: Training, before: dict[str, Any]) -> list[str]:
    place = training.place
    found = [str(process) for process in training.processes()]
    now = surroundings(place)
    if isinstance(place, Hosts):  # others have their own on this machine
        for host, kinds in now.items():
            for kind, values in kinds.items():
                new = sorted(set(values) - set(before[host][kind]))
                found += [f"{host}: {kind}: {', '.join(map(str, new))}"] if new else []
    for host in now:
        locks = {"stack": "current", "lease": "runs/.lease"}
        for lock, name in locks.items():
            path = place.path(host, place.prefix / name)
            if path.exists() and observe.is_locked(path):
                found.append(f"{host}: the {lock} is locked")
        for run in training.runs:
            folder = training.path(host, run)
            for pattern in ("**/*.partial", "hub_token", "snapshots"):
                found += [f"{host}: {path.name}" for path in folder.glob(pattern)]
    return found


def drawn_faults(draw: random.Random, place: str, only: Sequence[str]) -> Iterator[str]:
    """Names of faults without end: each of them once, in a random order, and again."""
    names = [
        name
        for name, fault in FAULTS.items()
        if place in fault.places and (not only or name in only)
    ]
    while True:
        yield from draw.sample(names, len(names))


def wait_for_steps(training: Training, steps: int) -> bool:
    """Whether a training is so many steps further before it ends."""
    wanted = training.step() + steps
    while training.step() < wanted:
        if training.end() or training.follower.poll() is not None:
            return False
        time.sleep(0.2)
    return True


def carry_out(
    place: Place,
    seed: int,
    count: int,
    steps: int,
    folder: Path,
    write: Callable[[dict[str, Any]], None],
    only: Sequence[str] = (),
    save_steps: int = 50,
) -> None:
    """Inject `count` faults into trainings of `steps` steps, and hand each result to `write`."""
    draw = random.Random(f"{seed} {place.name}")
    names = drawn_faults(draw, place.name, only)
    folder.mkdir(parents=True, exist_ok=True)
    reference = undisturbed(Training(place, steps, save_steps, folder))
    done = 0
    while done < count:
        before = surroundings(place)
        fewer = place.name == "hosts" and draw.random() < 0.5
        options = ("--max-restarts", "99", *(("--min-nodes", "2") if fewer else ()))
        training = Training(place, steps, save_steps, folder, options)
        training.launch()
        try:
            struck = 0
            while True:
                room = training.step() < steps - save_steps and done < count
                if not room or not wait_for_steps(training, draw.randrange(2, save_steps)):
                    break
                time.sleep(draw.uniform(*PAUSE_SECONDS))
                if training.step() > steps - save_steps:
                    break
                done, struck = done + 1, struck + 1
                if not one_fault(training, next(names), draw, seed, done, write):
                    training.launch()
            deadline = time.monotonic() + RUN_SECONDS
            while not training.end() and time.monotonic() < deadline:
                time.sleep(1)
            assert (training.end() or {}).get("state") == "done", training.said()
            facts = at_end(training, reference, before)
        except BaseException:
            training.stop()
            raise
        write({"kind": "run", "seed": seed, "place": place.name, "ids": training.runs,
               "faults": struck, "options": options, **facts})  # fmt: skip


def one_fault(
    training: Training,
    name: str,
    draw: random.Random,
    seed: int,
    number: int,
    write: Callable[[dict[str, Any]], None],
) -> bool:
    """Inject one fault; returns whether the training goes on by itself."""
    saved, step = training.checkpoint(), training.step()
    struck = FAULTS[name].strike(training, draw)
    outcome = watch(training, struck)
    goes_on = outcome.state in GOES_ON
    if not goes_on:
        training.stop()
    write({
        "kind": "fault", "seed": seed, "number": number, "place": training.place.name,
        "fault": name, "run": training.run, "host": struck.host, "rank": struck.rank,
        "step": step, "at": round(struck.at, 1), **asdict(outcome),
        "checkpoint_lost": outcome.resumed is not None and outcome.resumed < saved,
    })  # fmt: skip
    return goes_on


def problems(results: Sequence[dict[str, Any]]) -> list[str]:
    """What is not as it has to be, one line each."""
    found = []
    for one in results:
        if one["kind"] == "fault":
            where = f"{one['fault']} at {one['place']}, run {one['run']}, {one['host']}"
            wrong = {
                one["state"]: not survived(one) and one["cause"],
                "not named": not one["named"] and one["cause"],
                "a checkpoint was lost": one["checkpoint_lost"],
                "left": one["left"],
            }
        elif one["kind"] == "run":
            where = ", ".join(one["ids"])
            wrong = {
                "samples lost": one["samples_lost"],
                "samples counted twice": one["samples_extra"],
                "weights differ at steps": one["weights_differing"],
                "loss differs": one["loss_differs"] > LOSS_TOLERANCE and one["loss_differs"],
                "exit code": one["follower"],
                "left": one["left"],
            }
        else:
            continue
        found += [f"{where}: {what}: {value}" for what, value in wrong.items() if value]
    return found


def survived(one: dict[str, Any]) -> bool:
    """Whether a training has got over a fault as it should."""
    return one["state"] in (("ended",) if FAULTS[one["fault"]].ends else GOES_ON)
