"""Long trainings with a sequence of faults, and the checks at their ends."""

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults import observe
from tests.faults.injections import FAULTS, NoTarget
from tests.faults.ledger import Order, by_pass, compare
from tests.faults.places import Hosts, Place
from tests.faults.training import Training
from tests.faults.watch import CLEAN_SECONDS, watch

LOSS_TOLERANCE = 0.02  # relative difference on fewer ranks, whose sums are rounded differently
RUN_SECONDS = 1800.0


@dataclass(frozen=True)
class Reference:
    """The steps of an undisturbed training."""

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
    found = Reference(training.order(), training.weights(), training.losses())
    training.clean()
    return found


def at_end(
    training: Training, reference: Reference | None, before: dict[str, Any]
) -> dict[str, Any]:
    """Return the facts that are checked after a training has ended.

    Without a reference, the training must have used each sample once in each epoch.
    """
    left = leftovers(training, before)
    order, steps = training.order(), training.steps
    if reference:
        expected, weights = reference.order, training.weights()
        loss = abs(training.losses()[steps] / reference.losses[steps] - 1)
        compared = sorted(weights.keys() & reference.weights.keys())
        differing = [step for step in compared if weights[step] != reference.weights[step]]
    else:
        start = next(event for event in training.events() if event["event"] == "start")
        steps = round(start["epochs"])
        order = by_pass(order, start["steps"] // steps)
        samples = range(start["train_samples"])
        expected = {number: Counter(samples) for number in range(1, steps + 1)}
        loss, compared, differing = 0.0, [], []
    lost, extra = compare(order, expected, steps)
    with contextlib.suppress(Exception):
        training.follower.wait(60)
    return {
        "runs": len(training.runs),
        "follower": training.follower.poll(),
        "samples_lost": lost,
        "samples_extra": extra,
        "weights_compared": len(compared),
        "weights_differing": differing,
        "loss_differs": round(loss, 6),
        "left": left,
    }


def surroundings(place: Place) -> dict[str, Any]:
    """Return the state of the hosts while there is no run."""
    inits = {host: place.init(host) for host in place.hosts}
    return {
        host: {
            "mounts": sorted(observe.mounts(init)),
            "ports": sorted(observe.cluster_ports(init)),
            "shared memory": sorted(
                path.name
                for path in Path(f"/proc/{init}/root/dev/shm").iterdir()
                if "faketime_" not in path.name  # of the clock of the testbed's hosts
            ),
        }
        for host, init in inits.items()
        if init is not None
    }


def leftovers(training: Training, before: dict[str, Any]) -> list[str]:
    """Return the remains on any host a minute after the end."""
    deadline = time.monotonic() + CLEAN_SECONDS
    while (found := _left(training, before)) and time.monotonic() < deadline:
        time.sleep(1)
    return found


def _left(training: Training, before: dict[str, Any]) -> list[str]:
    place = training.place
    found = [str(process) for process in training.processes()]
    now = surroundings(place)
    if isinstance(place, Hosts):  # the hosts of the testbed have separate files
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


def drawn_faults(seed: int, place: str, only: Sequence[str]) -> Iterator[str]:
    """Yield names of faults endlessly: each of them once in a random order, then again."""
    draw = random.Random(f"{seed} {place}")
    names = [
        name
        for name, fault in FAULTS.items()
        if place in fault.places and (not only or name in only)
    ]
    while True:
        yield from draw.sample(names, len(names))


def planned_faults(
    seed: int, place: str, only: Sequence[str], faults: int, done: int = 0
) -> list[str]:
    """Return the names of a campaign's faults that were not tried yet, in order.

    Args:
        faults: number of faults, including the faults that were tried before.
        done: number of faults that were tried before.
    """
    return [*itertools.islice(drawn_faults(seed, place, only), done, faults)]


def wait_for_steps(training: Training, steps: int, last: int) -> bool:
    """Wait for `steps` further steps; return True if the training has not reached `last`."""
    wanted = training.step() + steps
    while training.step() < min(wanted, last):
        if training.end() or training.follower.poll() is not None:
            return False
        time.sleep(0.2)
    return wanted < last


@dataclass(frozen=True)
class Campaign:
    """The settings of a campaign.

    Attributes:
        seed: seed of the order of faults, of their moments and of their targets.
        faults: number of faults, with the finished ones.
        done: number of faults that were tried before.
        steps: steps of each training; there are as many trainings as the faults need.
        save_steps: number of steps between two checkpoints.
        pause_seconds: longest pause between two faults, besides some steps.
        only: names of faults; () for all that are possible at the place.
        compare: True to run an undisturbed training first, as a reference.
        launch: further options of `ftcluster train`.
        recipe: further overrides of the recipe, `key=value`.
    """

    place: Place
    folder: Path
    seed: int = 1
    faults: int = 10
    steps: int = 1000
    save_steps: int = 50
    pause_seconds: float = 8.0
    only: tuple[str, ...] = ()
    compare: bool = True
    launch: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ()
    done: int = 0

    def training(self, *options: str) -> Training:
        options = (*self.launch, *options)
        return Training(self.place, self.steps, self.save_steps, self.folder, options, self.recipe)


def carry_out(campaign: Campaign, write: Callable[[dict[str, Any]], None]) -> None:
    """Inject faults into trainings, and pass each result to `write`.

    Raises:
        NoTarget: a fault cannot strike a new training.
    """
    place, done = campaign.place, campaign.done
    names = planned_faults(campaign.seed, place.name, campaign.only, campaign.faults, campaign.done)
    campaign.folder.mkdir(parents=True, exist_ok=True)
    reference = undisturbed(campaign.training()) if campaign.compare else None
    while done < campaign.faults:
        draw = random.Random(f"{campaign.seed} {place.name} {done}")
        before = surroundings(place)
        fewer = isinstance(place, Hosts) and draw.random() < 0.5
        options = ("--max-restarts", "99", *(("--min-nodes", "2") if fewer else ()))
        training = campaign.training(*options)
        training.launch()
        try:
            first = done
            while done < campaign.faults and _is_time(training, campaign, draw):
                try:
                    result = one_fault(training, names[done - campaign.done], draw)
                except NoTarget:
                    if done == first:
                        raise
                    break  # the next training is the target
                done += 1
                write({"seed": campaign.seed, "number": done, **result})
                if not survived_alone(result):
                    training.launch()
            wait_for_end(training)
            facts = at_end(training, reference, before)
            training.clean()
        except BaseException:
            training.stop()
            raise
        write({
            "kind": "run", "seed": campaign.seed, "place": place.name, "ids": training.runs,
            "faults": done - first, "options": options, **facts,
        })  # fmt: skip


def _is_time(training: Training, campaign: Campaign, draw: random.Random) -> bool:
    """Wait for the moment of the next fault; return True if the training lasts until then."""
    last = campaign.steps - campaign.save_steps
    steps, pause = draw.randrange(2, campaign.save_steps), draw.uniform(0, campaign.pause_seconds)
    if not wait_for_steps(training, steps, last):
        return False
    time.sleep(pause)
    return training.step() < last


def wait_for_end(training: Training) -> None:
    """Wait until a training has done its last step.

    Raises:
        AssertionError: it failed.
    """
    deadline = time.monotonic() + RUN_SECONDS
    while not training.end() and time.monotonic() < deadline:
        time.sleep(1)
    assert (training.end() or {}).get("state") == "done", training.said()


def one_fault(training: Training, name: str, draw: random.Random) -> dict[str, Any]:
    """Inject one fault; wait until the training has recovered or ended."""
    saved, step = training.checkpoint(), training.step()
    struck = FAULTS[name].strike(training, draw)
    outcome = watch(training, struck)
    result = {
        "kind": "fault", "place": training.place.name, "fault": name, "run": training.run,
        "host": struck.host, "rank": struck.rank, "step": step, "at": round(struck.at, 1),
        **asdict(outcome),
        "checkpoint_lost": outcome.resumed is not None and outcome.resumed < saved,
    }  # fmt: skip
    if not survived_alone(result):
        training.stop()
    return result


def problems(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the problems, one line each."""
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
    """Return True if a training has survived a fault in the expected way."""
    ends, ended = FAULTS[one["fault"]].ends, one["state"] == "ended"
    return ended if ends else survived_alone(one) or (ends is None and ended)


def survived_alone(one: dict[str, Any]) -> bool:
    """Return True if a training continues by itself after a fault."""
    return one["state"] in ("continued", "undisturbed", "done")
