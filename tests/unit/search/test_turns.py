"""The search of `tune` on hosts with known speed: the effect of each setting, and the noise."""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.operations.search.tune_result import document, lines
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import parse_recipe
from ftcluster.search.candidates import candidates
from ftcluster.search.engine import search
from ftcluster.search.turns import (
    FINAL,
    Settings,
    Trial,
    TrialSpeed,
    Turns,
    attempted,
    decide,
    relative,
)
from tests.unit.clusters import STACKS, cluster, host
from tests.unit.shell import Said

POOL: list[Settings] = [
    {"ranks_per_host": 1}, {"training.ddp_backend": "gloo"}, {"communication_cores": 0},
    {"communication_cores": 2}, {"allocator": "libc"},
]  # fmt: skip
Worth = Mapping[str, float]
TEXT = "model: m\ndata: d\ntext_columns: [a]\nbatch_size: 64\n"


class Hosts:
    """Hosts that train 100 samples per second by default, with a clock."""

    def __init__(self, worth: Worth, noise: float = 0.0, drift: float = 0.0, seed: int = 0) -> None:
        self.worth, self.noise, self.drift = worth, noise, drift
        self.random = random.Random(seed)
        self.clock = 0.0
        self.said: list[str] = []

    def measure(self, settings: Settings, steps: int) -> TrialSpeed:
        speed = 100.0 * (1 - self.drift) ** (self.clock / 60)
        for name, value in settings.items():
            speed *= self.worth.get(f"{name}={value}", 1.0)
        speed *= 1 + self.noise * self.random.uniform(-1, 1)
        step = 10 / speed
        self.clock += 8 + steps * step
        return TrialSpeed(speed, step, 8 + steps * step)

    def search(self, budget: float = 3600) -> Turns:
        turns = Turns(POOL, lambda: budget - self.clock, self.said.append)
        search(turns, partial(attempted, self.measure))
        return turns


def test_what_helped_is_put_together() -> None:
    worth = {"communication_cores=0": 1.1, "allocator=libc": 1.06, "ranks_per_host=1": 0.5}
    hosts = Hosts(worth, noise=0.005)
    verdict = decide(hosts.search().trials)
    assert verdict.settings == {"communication_cores": 0, "allocator": "libc"}
    assert verdict.speed_up == pytest.approx(1.1 * 1.06, abs=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_noise_chooses_nothing(seed: int) -> None:
    turns = Hosts({}, noise=0.05, seed=seed).search()
    assert decide(turns.trials).settings == {}


def test_hosts_that_become_slower_choose_nothing() -> None:
    hosts = Hosts({}, drift=0.02)
    turns = hosts.search()
    first = [trial for trial in turns.trials if trial.round == 1]
    assert max(abs(speed - 1) for _, speed in relative(first)) < 0.02
    assert decide(turns.trials).settings == {}


@pytest.mark.parametrize("budget", [10, 60, 120, 300, 600, 900, 1500, 3600])
def test_the_time_is_kept_and_the_last_round_has_its_part(budget: int) -> None:
    hosts = Hosts({"communication_cores=0": 1.2})
    turns = hosts.search(budget)
    first, longest = 8 + 9 * 0.1, max((8 + 0.1 * one.steps for one in turns.trials), default=0)
    assert hosts.clock <= max(first, budget + longest)
    if budget >= 300:
        assert decide(turns.trials).settings["communication_cores"] == 0
    if budget <= 60:
        assert turns.trials == []
        assert turns.left_out
        assert decide(turns.trials).speed_up is None


def test_a_candidate_that_fails_is_left_out() -> None:
    hosts = Hosts({"allocator=libc": 1.2})

    def measure(settings: Settings, steps: int) -> TrialSpeed:
        if settings.get("ranks_per_host"):
            raise FtclusterError("not enough memory")
        return hosts.measure(settings, steps)

    turns = Turns(POOL, lambda: 1000.0, hosts.said.append)
    search(turns, partial(attempted, measure))
    assert [one.problem for one in turns.trials if one.problem] == ["not enough memory"]
    assert decide(turns.trials).settings == {"allocator": "libc"}


def test_a_default_that_fails_once_is_tried_again() -> None:
    hosts, failed = Hosts({}), []

    def measure(settings: Settings, steps: int) -> TrialSpeed:
        if not settings and len(failed) < 1:
            failed.append(steps)
            raise FtclusterError("the port is taken")
        return hosts.measure(settings, steps)

    turns = Turns(POOL, lambda: 1000.0, hosts.said.append)
    search(turns, partial(attempted, measure))
    assert decide(turns.trials).speed_up is None
    assert failed


def test_the_default_must_not_fail() -> None:
    def measure(*_: Any) -> TrialSpeed:
        raise FtclusterError("no host answers")

    with pytest.raises(FtclusterError, match="no host answers"):
        search(Turns(POOL, lambda: 1000.0, print), partial(attempted, measure))


def test_what_is_known_when_it_is_stopped() -> None:
    hosts = Hosts({"communication_cores=0": 1.2})
    whole = len(hosts.search().trials)
    for stop in range(1, whole + 1):
        hosts.clock, count = 0.0, 0

        def measure(settings: Settings, steps: int, stop: int = stop) -> TrialSpeed:
            nonlocal count
            count += 1
            if count > stop:
                raise Interrupted("stopped")
            return hosts.measure(settings, steps)

        turns = Turns(POOL, lambda: 3600 - hosts.clock, hosts.said.append)
        with pytest.raises(Interrupted):
            search(turns, partial(attempted, measure))
        verdict = decide(turns.trials)
        defaults = sum(one.round == FINAL and not one.settings for one in turns.trials)
        assert bool(verdict.settings) <= (defaults >= 3)
    assert verdict.settings


def test_candidates_are_what_has_an_effect_and_is_not_set() -> None:
    def names(text: str, *facts: Any, batch: bool = False) -> list[dict[str, Any]]:
        recipe = parse_recipe(TEXT + text, "r.yml")
        default = plan(cluster(*facts), recipe, STACKS)
        return list(map(dict, candidates(recipe, facts, default, ("impi", "gloo"), batch)))

    pair = [host(name, cores=32, numa_nodes=2, sockets=2) for name in ("a", "b")]
    assert names("", *pair, batch=True) == [
        {"ranks_per_host": 1}, {"ranks_per_host": 4}, {"ranks_per_host": 8},
        {"training.ddp_backend": "gloo"},
        {"communication_cores": 0}, {"communication_cores": 2},
        {"allocator": "libc"},
        {"batch_size": 128}, {"batch_size": 256},
    ]  # fmt: skip
    one = host("a", cores=2)
    assert names("", one) == [{"ranks_per_host": 2}, {"allocator": "libc"}]
    assert names("allocator: libc\nranks_per_host: 1\n", one, batch=True) == [
        {"batch_size": 128}, {"batch_size": 256},
    ]  # fmt: skip
    assert names("training:\n  per_device_train_batch_size: 8\n", one, batch=True) == [
        {"allocator": "libc"}
    ]
    assert names("", replace(one, tcmalloc=""), host("b", cores=3, tcmalloc="")) == [
        {"ranks_per_host": 2}, {"training.ddp_backend": "gloo"},
    ]  # fmt: skip


def test_the_result_as_text(said: Said) -> None:
    hosts = Hosts({"communication_cores=0": 1.1, "ranks_per_host=1": 0.7}, noise=0.01)
    turns = hosts.search()
    verdict = decide(turns.trials)
    said("\n".join(lines(document("mrpc", "native", turns, verdict, hosts.clock))))
    turns = Hosts({}, noise=0.02).search()
    turns.trials.append(Trial({"allocator": "libc"}, 2, 60, None, "rank 0 was killed"))
    said("\n".join(lines(document("mrpc", "native", turns, decide(turns.trials), 600))))
    turns = Hosts({}).search(50)
    said("\n".join(lines(document("mrpc", "native", turns, decide(turns.trials), 50))))
