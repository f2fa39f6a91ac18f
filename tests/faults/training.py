"""A long training from the view of its user and of the head's events.jsonl."""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.processes import descendants
from tests.faults import ledger
from tests.faults.ledger import Order
from tests.faults.observe import Process, processes_of
from tests.faults.places import Place

# A model of 1 M parameters, whose step takes 50 to 150 ms on two cores.
MODEL = (
    "quickstart", "from_scratch=true", "data=generated:train=1600,validation=40,seed=1",
    "config_overrides={num_hidden_layers: 2, hidden_size: 64, intermediate_size: 256, "
    "num_attention_heads: 2}",
)  # fmt: skip
SAVING = ("training.save_strategy=steps", "training.save_total_limit=2")
START_SECONDS = 180.0


class LaunchError(Exception):
    """An error that kept a training from starting."""


@dataclass
class Training:
    """A training that a command of the control node follows; resumed, it is a chain of runs.

    Attributes:
        save_steps: number of steps between two checkpoints.
        options: further options of `ftcluster train`.
        recipe: further overrides of the recipe, `key=value`.
        runs: ids of the runs in the chain.
    """

    place: Place
    steps: int
    save_steps: int
    folder: Path
    options: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ()
    runs: list[str] = field(default_factory=list)
    follower: Any = None
    _events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        return (
            *MODEL, *SAVING, f"training.save_steps={self.save_steps}",
            f"training.max_steps={self.steps}", "training.logging_steps=1",
            "training.eval_strategy=no", *self.recipe,
        )  # fmt: skip

    @property
    def run(self) -> str:
        """The id of the chain's last run."""
        return self.runs[-1]

    @property
    def head(self) -> str:
        return self.place.hosts[0]

    def launch(self) -> None:
        """Start the training, or resume the last run as a new run; return when it has started."""
        before = self._listed()
        words = ("--resume", self.run) if self.runs else self.words
        self._follow("train", *words, *self.place.launch, *self.options, "--json")
        deadline = time.monotonic() + START_SECONDS
        while not (new := self._listed() - before):
            if self.follower.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(self.said())
            time.sleep(0.2)
        self.runs += new

    def attach(self) -> None:
        """Follow the run with another command."""
        self._follow("attach", self.run, "--json")

    def abandon(self) -> None:
        """Kill the command and all its processes, as if the control node were lost."""
        for pid in (self.follower.pid, *descendants(self.follower.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.follower.wait()

    def stop(self) -> None:
        """End the run and its command, in any state."""
        with contextlib.suppress(Exception):
            self.place.run("stop", self.run)
        for process in processes_of(self.run):
            process.signal(signal.SIGKILL)
        if self.follower.poll() is None:
            self.abandon()

    def clean(self) -> None:
        """Remove the chain's runs from the hosts."""
        done = self.place.run("clean", *self.runs)
        assert done.returncode == 0, done.stderr

    def _follow(self, *words: str) -> None:
        self._log = self.folder / f"{len(self.runs)}-{time.time():.0f}-{words[0]}.x"
        self.follower = self.place.start(*words, log=self._log)

    def said(self) -> str:
        """Return the follower's stderr."""
        return self._log.with_suffix(".err").read_text(errors="replace")

    def _listed(self) -> set[str]:
        runs = self.place.path(self.head, self.place.prefix / "runs")
        return {path.name for path in runs.glob("*-*-*-*")}

    # ------------------------------------------------------------ observations
    def path(self, host: str, run: str = "") -> Path:
        """Return the folder of the last run on a host."""
        return self.place.path(host, self.place.prefix / "runs" / (run or self.run))

    def events(self, run: str = "") -> list[dict[str, Any]]:
        """Return all events of the run; while the head is off, the events read before."""
        run = run or self.run
        with contextlib.suppress(OSError):
            lines = (self.path(self.head, run) / "events.jsonl").read_text().splitlines(True)
            self._events[run] = [json.loads(line) for line in lines if line.endswith("\n")]
        return self._events.get(run, [])

    def all_events(self) -> list[dict[str, Any]]:
        """Return the events of the whole chain of runs."""
        return [event for run in self.runs for event in self.events(run)]

    def step(self) -> int:
        """The last completed step."""
        steps = [event["step"] for event in self.events() if event["event"] == "step"]
        return steps[-1] if steps else 0

    def end(self) -> dict[str, Any] | None:
        """The event of the run's end."""
        events = self.events()
        return events[-1] if events and events[-1]["event"] == "end" else None

    def processes(self) -> list[Process]:
        return [one for run in self.runs for one in processes_of(run)]

    def checkpoint(self) -> int:
        """The step of the newest checkpoint that is visible on a running host."""
        steps = [0]
        for host in self.place.hosts:
            with contextlib.suppress(OSError):
                found = (self.path(host) / "checkpoints").glob("checkpoint-*")
                steps += [int(path.name[11:]) for path in found if path.name[11:].isdigit()]
        return max(steps)

    def order(self) -> Order:
        """Return the samples that count."""
        taken = []
        for number, run in enumerate(self.runs):
            for host in self.place.hosts:
                for text in ledger.logs_below(self.path(host, run)):
                    taken += ledger.read_log(text, number)
        return ledger.counted(taken)

    def weights(self) -> dict[int, str]:
        """Return the SHA-256 of the weights by step, while all ranks are there."""
        found: dict[int, str] = {}
        size = 0
        for event in self.all_events():
            if event["event"] == "start":
                size = size or event["world_size"]
                if event["world_size"] != size:
                    break
            if event["event"] == "parameters":
                found[event["step"]] = event["sha256"]
        return found

    def losses(self) -> dict[int, float]:
        """Return the loss of each step that counts."""
        return {e["step"]: e["loss"] for e in self.all_events() if e["event"] == "step"}
