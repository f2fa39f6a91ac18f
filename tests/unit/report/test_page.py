"""The page of runs; `tests/cluster/test_report.py` tests its look in a browser."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import pytest

from ftcluster.report.files import RunFiles
from ftcluster.report.page import render
from ftcluster.report.run_page import labels
from ftcluster_common.protocol.class_report import report_of_classes
from tests.unit.report.runs import TRACE, run_files

NOW = datetime(2026, 11, 23, 4, 5, tzinfo=UTC)
RUNS = [
    run_files(f"mrpc-20261123-013759-{hosts}abc", hosts=hosts, slow=1 if hosts > 2 else -1)
    for hosts in (1, 2, 4)
]
BENCH = {
    "recipe": "mrpc",
    "points": [
        {"run": f"{mode}{n}", "hosts": n, "ranks": n, "samples_per_second": speed * n}
        for n in (1, 2)
        for mode, speed in (("gloo", 9.0), ("impi", 10.0))
    ],
    "model": {
        "predicted": [
            {"hosts": n, "fastest": "impi", "samples_per_second": {"impi": 9.5 * n}}
            for n in (8, 16)
        ]
    },
}
# where the parts of a step are drawn
ROWS = {"forward": "cores", "backward": "cores", "optimizer": "cores", "exchange": "network"}


def text_of(page: str) -> str:
    """Return the text that a reader sees, without pictures."""
    without = re.sub(r"<svg .*?</svg>|<style>.*?</style>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", without))


def pictures(page: str) -> list[str]:
    found = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    return [ElementTree.fromstring(one).attrib["aria-label"] for one in found]


@pytest.fixture(scope="module")
def one() -> str:
    return render([run_files(restart=True)], NOW)


def test_a_page_of_one_run(one: str) -> None:
    assert pictures(one) == [
        "cores of node1-node2 by rank", "Loss", "Evaluation: f1", "Activity over time",
        "Samples per second over time", "Samples per second by rank", "Where a step's time goes",
        "Exchanges beside the backward pass", "Each rank's time", "Scaling of mrpc",
    ]  # fmt: skip
    text = text_of(one)
    for said in (
        "local rank 0: CPUs 0-3, 4 threads, memory of NUMA node 0",
        "A step takes 120 ms: 75 % compute, 17 % communication, 8.3 % input, 0 % waiting.",
        "Training reaches 50 % of the matmul peak",
        "No host slows down training by more than 1 % of a step",
        "3 hosts: up to 720.0 samples/s with the same batch",
        "1 of 3 after 0.3 min rank 1 on node1: killed &amp; &lt;gone&gt;",
        "ftcluster train mrpc",
        "every host has AMX",
    ):
        assert said in text, said


def test_it_needs_nothing_else(one: str) -> None:
    assert re.findall(r"<(?:script|link rel=.stylesheet|img|iframe)", one) == []
    links = re.findall(r"""(?:href|src)=["']([^"']+)|url\(([^)]+)""", one)
    assert {a or b for a, b in links if not (a or b).startswith("#")} <= {"data:,"}
    assert len(one) < 200_000
    # text from hosts is not markup
    assert "Xeon &lt;Platinum&gt;" in one
    assert "<Platinum>" not in one
    # marks have a text alternative
    titles = re.findall(r"<title>([^<]+)</title>", one)
    assert "core 4: rank 1" in titles
    assert "core 8: unused" in titles
    assert "step: 20; training loss: 0.05; run: mrpc 2872" in titles


def test_a_step_shows_exchanges_beside_the_backward_pass(one: str) -> None:
    """The record has 15 exchanges: 13 end before the backward pass does, one begins after it."""
    [drawn] = [
        svg for svg in re.findall(r"<svg .*?</svg>", one, re.DOTALL)
        if 'aria-label="Exchanges beside' in svg
    ]  # fmt: skip
    mark = r"<title>milliseconds of a step: ([\d.]+); row: (\w+); ended: ([\d.]+); kind: (\w+)"
    marks = [
        (kind, row, float(began), float(ended))
        for began, row, ended, kind in re.findall(mark, drawn)
    ]
    assert marks == [
        (kind, ROWS[kind], pytest.approx(1e3 * began), pytest.approx(1e3 * ended))
        for kind, _note, began, ended in TRACE
    ]
    backward_ended = max(ended for kind, _, _, ended in marks if kind == "backward")
    exchanges = [(began, ended) for kind, _, began, ended in marks if kind == "exchange"]
    assert [ended < backward_ended for _, ended in exchanges] == [True] * 13 + [False] * 2
    assert [began < backward_ended for began, _ in exchanges] == [True] * 14 + [False]


def test_several_runs_side_by_side() -> None:
    page = render(RUNS, NOW, BENCH)
    text = text_of(page)
    assert "an epoch 5 s 5 s 7 s" in text
    assert "cost of an epoch 0.048 USD 0.096 USD 0.27 USD" in text
    assert "mrpc 1abc mrpc 2abc mrpc 4abc state done done done" in text
    assert "hosts node1 node1-node2 node1-node4" in text
    assert "mrpc 4abc: node2 is the slowest host" in text
    assert "mrpc 1abc, 2 hosts: up to" in text
    assert "This prediction excludes the cost of communication between hosts" in text
    assert pictures(page)[-2:] == ["Scaling of mrpc", "bench scaling, mrpc"]
    marks = re.findall(r"<title>([^<]+)</title>", page.rpartition("<svg")[2])
    assert set(marks) == {  # marks of the faster mode
        "hosts: 1; samples/s: 10", "hosts: 2; samples/s: 20",
        "hosts: 8; predicted samples/s: 76.0",
    }  # fmt: skip


def test_fields_that_differ_are_in_the_table() -> None:
    runs = [run_files(f"mrpc-20261123-013759-{name}") for name in ("abcd", "bcde")]
    for run, rate in zip(runs, (1e-4, 2e-5), strict=True):
        training = {"learning_rate": rate, "seed": 7, "weight_decay": rate * 100, "adam_beta1": 0.9}
        run.record["recipe"] |= {"training": training, "options": {"max_length": 64}}
    text = text_of(render(runs, NOW))
    assert "training.learning_rate 0.0001 2e-05 training.seed 7 7" in text
    assert "training.weight_decay 0.01 0.002 steps" in text
    assert "training.adam_beta1" not in text
    assert "max_length 64 64" not in text


def test_folds_have_a_mean_and_a_deviation() -> None:
    """Show the mean and standard deviation of the classic example 2, 4, 4, 4, 5, 5, 7, 9."""
    files = []
    for fold, value in enumerate((2, 4, 4, 4, 5, 5, 7, 9)):
        one = run_files(f"mrpc-20261123-013759-{fold}abc")
        recipe = {**one.record["recipe"], "folds": 8, "fold": fold, "training": {"seed": fold // 4}}
        end = [event for event in one.events if event["event"] != "result"]
        result = {"event": "result", "time": end[-1]["time"], "metrics": {"loss": float(value)}}
        record = {**one.record, "recipe": recipe}
        files.append(replace(one, record=record, events=[*end[:-1], result, end[-1]]))
    text = text_of(render(files, NOW))
    assert "all runs, 8 runs: mean ± standard deviation loss 5 ± 2.1" in text
    assert "standard deviation" not in text_of(render(files[:1], NOW))


def test_what_several_values_of_a_field_did_is_drawn() -> None:
    runs = [run_files(f"mrpc-20261123-013759-{name}") for name in ("abcd", "bcde", "cdef")]
    for run, rate in zip(runs, (1e-4, 2e-5, 1e-5), strict=True):
        run.record["recipe"] |= {"training": {"learning_rate": rate, "use_ipex": rate == 1e-4}}
    page = render(runs, NOW)
    assert [one for one in pictures(page) if " by training." in one] == [
        "f1 by training.learning_rate"
    ]
    titles = re.findall(r"<title>([^<]+)</title>", page)
    assert len([one for one in titles if one.startswith("training.learning_rate: ")]) == 3
    assert " by training." not in "".join(pictures(render(runs[:2], NOW)))


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_a_run_that_has_not_ended(count: int) -> None:
    files = run_files()
    page = render([RunFiles(files.run, files.record, files.events[:count])], NOW)
    assert "state running" in text_of(page)


def test_a_loss_that_is_no_number_has_no_point() -> None:
    files = run_files()
    events = [{**one, "loss": math.nan} if one["event"] == "step" else one for one in files.events]
    assert "Loss" not in pictures(render([RunFiles(files.run, files.record, events)], NOW))


def test_how_well_each_class_is_predicted() -> None:
    files = run_files()
    report = report_of_classes([0, 0, 0, 1], [0, 1, 2, 1], ["good", "<b>bad</b>", "never"])
    result = next(event for event in files.events if event["event"] == "result")
    result["classes"] = {"validation": report.to_dict()}
    page = render([files], NOW)
    text = text_of(page)
    assert "Results by class validation, 4 rows" in text
    assert "&lt;b&gt;bad&lt;/b&gt; 1.000 0.500 0.667 2" in text
    assert "NEVER PREDICTED, although the data contains examples: never" in text
    assert "<b>bad</b>" not in page


def test_what_a_model_writes() -> None:
    files = run_files()
    evaluation = [event for event in files.events if event["event"] == "evaluation"][-1]
    evaluation["texts"] = {"validation": [["a <b>long</b> text", "a text", "text"]]}
    rows = "validation source reference written a &lt;b&gt;long&lt;/b&gt; text a text text"
    assert f"Generated texts {rows}" in text_of(render([files], NOW))


def test_a_script_has_no_training() -> None:
    events: list[dict[str, Any]] = [
        {"event": "output", "time": 1.0, "rank": 0, "stream": "stdout", "text": "hello"},
        {"event": "error", "time": 2.0, "message": "exit code 1", "hint": "", "host": "a"},
        {"event": "end", "time": 2.0, "state": "failed", "exit_code": 1, "seconds": 1.0},
    ]  # fmt: skip
    text = text_of(render([RunFiles("tiny-1", {"kind": "run"}, events)], NOW))
    assert "state failed" in text
    assert "exit code 1" in text


def test_labels() -> None:
    def named(*runs: str) -> list[str]:
        return labels([RunFiles(run, {}, []) for run in runs])

    assert named("mrpc-20261123-013759-2872") == ["mrpc 2872"]
    # the label is the value of --name
    assert named("lr-1e-5-20261123-013759-2872") == ["lr-1e-5 2872"]
    assert named("a-1-2872", "a-2-2872") == ["a-1-2872", "a-2-2872"]


def test_labels_say_what_differs() -> None:
    def of(*recipes: dict[str, Any]) -> list[str]:
        files = [RunFiles(f"a-{n}-2872", {"recipe": one}, []) for n, one in enumerate(recipes)]
        return labels(files)

    rates = [
        {"model": "m", "training": {"learning_rate": rate, "seed": 1}} for rate in (1e-5, 2e-5)
    ]
    assert of(*rates) == ["learning_rate=1e-05", "learning_rate=2e-05"]
    assert of(rates[0], rates[0]) == ["a-0-2872", "a-1-2872"]  # no value differs
    third = {"model": "m", "training": {"learning_rate": 1e-5, "seed": 2}}
    assert of(*rates, third)[2] == "learning_rate=1e-05, seed=2"
    assert of(rates[0], {"model": "x" * 60}) == ["a-0-2872", "a-1-2872"]  # the value is too long
