"""The command `generate`; tests/engine/test_generation.py tests the program on the host."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli import generate as command
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import Interrupted
from ftcluster.launch import training_run
from ftcluster.launch.events import read_event_line
from ftcluster.launch.runs import FoundJob
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.models import generate
from ftcluster.progress.state import RunProgress
from ftcluster.recipe.recipe import load_recipe
from tests.unit.clusters import cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Shell

RESULT = {
    "model": "", "metrics": {}, "samples_per_second": 9.5, "train_seconds": 2.0, "world_size": 1,
    "tokens": 4, "answers": ["Two.", "Three."],
}  # fmt: skip
RUN = "sft-20261126-101500-7f3a"


@pytest.fixture(autouse=True)
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the runs that are launched on a cluster of two hosts; a model is in the folder."""
    monkeypatch.chdir(tmp_path)
    facts = cluster(host("node0", cores=64, numa_nodes=2), host("node1", cores=64, numa_nodes=2))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=facts))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    write_weights(tmp_path / "model/model.safetensors", a=("F32", [2, 3]))
    runs: list[TrainingRun] = []

    def train(
        run: TrainingRun, _view: object, _: object, on_event: Callable[[dict[str, Any]], None]
    ) -> RunProgress:
        runs.append(run)
        for number, text in ((0, "Two"), (0, ".\x1b[2J"), (1, "Three.")):
            on_event({"event": "text", "prompt": number, "text": text})
        on_event({"event": "answered", "prompt": 1})
        return RunProgress(run.id, state="done", result=RESULT, seconds=7.0)

    def find(_hosts: object, name: str) -> FoundJob:
        recipe = load_recipe("sft" if name in RUN else "mrpc")
        return FoundJob(RUN, recipe, ("node0", "node1"), 2)

    monkeypatch.setattr(training_run, "train", train)
    monkeypatch.setattr(generate, "find_job", find)
    return runs


def test_text_is_printed_as_it_comes(shell: Shell, launched: list[TrainingRun]) -> None:
    words = ["generate", "model", "a prime", "another", "--temperature", "0", "--seed", "3"]
    said = shell([*words, "--system", "Be brief."])
    assert said.out == "> a prime\nTwo.\\x1b[2J\n> another\nThree.\n"
    [run] = launched
    assert run.job["generation"] == {
        "prompts": ["a prime", "another"], "more": False, "system": "Be brief.",
        "max_new_tokens": 256, "temperature": 0.0, "top_p": 0.95, "seed": 3,
    }  # fmt: skip
    assert (run.plan.world_size, run.job["purpose"]) == (1, "generate")
    assert [source for source, _ in run.folders] == [f"{Path.cwd()}/model"]


# sequences that control a terminal: clipboard, title, clear screen, a response as input, reversed
# text
ATTACKS = (
    "\x1b]52;c;cm0gLXJmIH4K\x07", "\x1b]0;root@head\x1b\\", "\x1b[2J\x1b[H", "\x9b2J",
    "\x1bP+q436f\x9c",
    "\x1b[6n", "\x1b[31mred\x1b[0m", "a\rb", "a\x08\x08b", "\u202egnp.exe\u202c", "\u2066x\u2069",
    "\x85next", "\u2028line", "\x0e\x0f", "\x1b#8", "\x1bc",
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_terminal_obeys_a_model(
    attack: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove control sequences even from text in pieces; line feeds and tabs stay."""
    text = f"1.\ta\n\n{attack}\n2.\tb \U0001f600\u00e9"

    def train(run: TrainingRun, _view: object, _: object, on_event: Any) -> RunProgress:
        for size in (1, 2, 3, len(text)):
            for start in range(0, len(text), size):
                event = {
                    "event": "text",
                    "time": 1,
                    "prompt": 0,
                    "text": text[start : start + size],
                }
                found = read_event_line(json.dumps(event).encode())
                assert found is not None, "a piece of an answer is lost"
                on_event(found)
        return RunProgress(run.id, state="done", result=RESULT, seconds=7.0)

    monkeypatch.setattr(training_run, "train", train)
    shown = shell(["generate", "model", f"a prompt of a file {attack}"]).out
    assert {letter for letter in shown if not letter.isprintable()} <= {"\n", "\t"}
    assert shown.count("1.\ta\n\n") == 4
    assert shown.count("\n2.\tb \U0001f600\u00e9") == 4
    shown = shell(["generate", "model", "a", f"another {attack}"]).out
    assert {letter for letter in shown if not letter.isprintable()} <= {"\n", "\t"}


def test_a_run_s_model_is_used_where_it_is(
    shell: Shell, launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a prime\nof two digits\n"))
    found = shell(f"generate {RUN[:8]} --json").document
    assert found["answers"] == [{"prompt": "a prime\nof two digits", "answer": "Two."}]
    assert (found["tokens"], found["tokens_per_second"]) == (4, 9.5)
    [run] = launched
    assert run.recipe.model == f"{run.plan.prefix}/runs/{RUN}/model"
    assert run.folders == ()


@pytest.mark.parametrize("end", [EOFError, signal.SIGTERM])
def test_prompts_are_typed_on_a_terminal(
    shell: Shell, launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    """One run answers until Ctrl-D; Ctrl-C discards a line, or ends an answer and the run."""
    typed = iter(["a prime", KeyboardInterrupt, " ", "ümlaut", "stop", "another", end])

    def type_next(_: str) -> str:
        one = next(typed)
        if isinstance(one, str):
            return one
        if isinstance(one, signal.Signals):
            os.kill(os.getpid(), one)
        else:
            raise one
        return "not typed"

    asked = []

    def train(run: TrainingRun, _view: object, _: object, on_event: Any) -> RunProgress:
        launched.append(run)
        file, [prompt] = Path(run.prompts), run.job["generation"]["prompts"]
        while prompt:
            asked.append(prompt)
            on_event({"event": "text", "prompt": 0, "text": "Two."})
            if prompt == "stop":
                raise Interrupted("stopped at step 0")
            on_event({"event": "answered", "prompt": 0})
            prompt = json.loads(file.read_text().splitlines()[-1])
        return RunProgress(run.id, state="done", result=RESULT, seconds=7.0)

    monkeypatch.setattr(training_run, "train", train)
    monkeypatch.setattr("builtins.input", type_next)
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    found = shell("generate model")
    assert asked == ["a prime", "ümlaut", "stop", "another"]
    assert len(launched) == 2
    assert all(run.job["generation"]["more"] for run in launched)
    assert {run.launch.hang_seconds for run in launched} == {0}
    assert not any(Path(run.prompts).exists() for run in launched)
    assert "stopped at step 0" in found.err
    assert found.out.count("Two.\n") == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("generate", 2, "no model is named"),
        (["generate", "model", " "], 2, "the prompt is missing or empty"),
        ("generate model a --top-p 0 --temperature -1", 2, "top_p=0.0: must be above 0"),
        ("generate mrpc-1 a", 2, "for text-classification, but generate needs a decoder"),
        ("generate ./nothing a", 1, "does not exist"),
    ],
)
def test_what_is_refused(shell: Shell, words: str | list[str], code: int, said: str) -> None:
    assert said in shell(words, code).err
