"""The file with a run's metrics for Prometheus, and the dashboard that shows them."""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

from ftcluster_common.protocol.launch import Launch, RankCores, RankHost
from ftcluster_train.io.events import EventWriter
from ftcluster_train.supervisor.metrics_file import (
    GAUGES,
    KEPT_SECONDS,
    STATES,
    MetricsFile,
    RunNumbers,
    samples,
    text_of,
)
from ftcluster_train.supervisor.rank_life import RankLife
from tests.programs import PROMTOOL, ROOT

LAUNCH = Launch(
    run_dir="/opt/ftcluster/runs/mrpc-1", program=("x",), env={}, ssh_config="", stack="/s",
    hosts=tuple(RankHost(f"node{one}", f"10.0.0.{one}", (RankCores("0", 1),)) for one in (1, 2)),
)  # fmt: skip
START: dict[str, Any] = {
    "event": "start", "time": 1010.0, "world_size": 2, "threads_per_rank": 4, "precision": "bf16",
    "ipex": False, "backend": "impi", "steps": 100, "epochs": 1.0,
    "train_samples": 800, "parameters": 5,
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"event": "phase", "time": 1000.0, "doing": "starting the ranks"},
    {"event": "placement", "time": 1005.0, "ranks": []},
    START,
    {
        "event": "step", "time": 1030.0, "step": 10, "epoch": 0.1, "loss": 0.5, "grad_norm": 1.0,
        "learning_rate": 1e-4, "samples_per_second": 8.0, "train_seconds": 10.0,
        "remaining_seconds": 90.0,
    },
    {
        "event": "communication", "time": 1030.0, "step": 10, "steps": 10,
        "train_seconds": 10.0, "tokens": 5, "waited_seconds": [1.0, 5.0],
        "input_seconds": [0.5, 0.5], "transfer_seconds": 1.0, "useful_tokens": 9, "sent_bytes": 4e7,
        "collectives": 10, "latency_seconds": 0.0,
    },
]  # fmt: skip


def numbers(*more: dict[str, Any]) -> RunNumbers:
    found = RunNumbers()
    for event in (*EVENTS, *more):
        found.add(event)
    return found


def values(found: RunNumbers, now: float = 1040.0) -> dict[tuple[str, ...], float]:
    rows = samples(found, LAUNCH, "mrpc", now)
    return {(name, *map(str, labels.values())): value for name, labels, value in rows}


def test_the_numbers_of_a_run() -> None:
    found = values(numbers())
    assert found["ftcluster_step",] == 10
    assert found["ftcluster_steps",] == 100
    assert found["ftcluster_eta_seconds",] == 90
    assert found["ftcluster_samples_per_second",] == 8
    assert found["ftcluster_goodput_ratio",] == 10 / 40
    assert found["ftcluster_sent_bytes_per_step",] == 4e6
    assert found["ftcluster_communication_ratio",] == pytest.approx(0.1)
    assert found["ftcluster_wait_ratio", "0", "node1"] == 0
    assert found["ftcluster_wait_ratio", "1", "node2"] == pytest.approx(0.4)
    # rank 0 is active 9 of 10 s, and rank 1 5 of 10 s
    assert found["ftcluster_straggler_score", "0", "node1"] == pytest.approx(9 / 7)
    assert found["ftcluster_straggler_score", "1", "node2"] == pytest.approx(5 / 7)
    assert found["ftcluster_run_state", "running"] == 1
    assert found["ftcluster_restart_count",] == 0


def test_after_a_restart_the_ranks_count_from_zero() -> None:
    again = [
        {"event": "restart", "time": 1031.0, "restart": 1, "max_restarts": 3, "message": "killed"},
        {**EVENTS[1], "time": 1033.0},
        {**START, "time": 1034.0},
        {
            **EVENTS[4],
            "time": 1040.0,
            "step": 8,
            "steps": 3,
            "train_seconds": 3.0,
            "sent_bytes": 1.2e7,
        },
    ]
    found = values(numbers(*again))
    assert found["ftcluster_restart_count",] == 1
    assert found["ftcluster_sent_bytes_per_step",] == 4e6  # in 3 steps


def test_while_no_rank_computes_the_numbers_say_so() -> None:
    restart = {"event": "restart", "time": 1031.0, "restart": 1, "max_restarts": 3, "message": "x"}
    found = values(numbers(restart))
    assert found["ftcluster_run_state", "running"] == 1
    assert found["ftcluster_samples_per_second",] == 0
    assert ("ftcluster_eta_seconds",) not in found
    assert found["ftcluster_hosts",] == 2
    waits = {"event": "phase", "time": 1032.0, "doing": "waiting for node2 (0:45 of 2:00)"}
    found = values(numbers(restart, waits))
    states = {key[1]: value for key, value in found.items() if key[0] == "ftcluster_run_state"}
    assert [state for state, value in states.items() if value] == ["waiting"]
    assert (found["ftcluster_hosts",], found["ftcluster_ranks",]) == (0, 0)
    starts = {"event": "phase", "time": 1040.0, "doing": "starting the ranks"}
    step = next(event for event in EVENTS if event["event"] == "step")
    found = values(numbers(restart, waits, starts, {**step, "time": 1050.0}))
    assert found["ftcluster_run_state", "running"] == 1
    assert found["ftcluster_samples_per_second",] == 8


RULES = ROOT / "docs/prometheus-rules.yml"


RULES_TEST = Path(__file__).with_name("prometheus_rules_test.yml")


def test_the_rules_are_about_what_the_file_has() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    for rule in rules:
        names = re.findall(r"ftcluster_\w+", rule["expr"])
        assert names
        assert set(names) <= GAUGES.keys()
        states = "|".join(re.findall(r'state=~?"([\w|]+)"', rule["expr"]))
        assert set(states.split("|")) <= {"", *STATES}
    tried = {one["alertname"] for test in yaml.safe_load(RULES_TEST.read_text())["tests"]
             for one in test["alert_rule_test"]}  # fmt: skip
    assert tried == {rule["alert"] for rule in rules}


@pytest.mark.needs("promtool")
def test_the_rules_raise_their_alarms() -> None:
    """Prometheus itself evaluates the rules."""
    done = subprocess.run(
        [PROMTOOL, "test", "rules", RULES_TEST.name], cwd=RULES_TEST.parent, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_run_before_has_trained_is_not_in_the_goodput() -> None:
    found = RunNumbers()
    for event in EVENTS:
        more = 500.0 if event["event"] == "step" else 0.0
        found.add({**event, "train_seconds": event.get("train_seconds", 0.0) + more})
    assert values(found)["ftcluster_goodput_ratio",] == 10 / 40


def test_the_end_of_a_run() -> None:
    end = {"event": "end", "time": 1050.0, "state": "done", "exit_code": 0, "seconds": 50.0}
    found = values(numbers(end), now=9999.0)
    assert found["ftcluster_run_state", "done"] == 1
    assert found["ftcluster_run_state", "running"] == 0
    assert found["ftcluster_eta_seconds",] == 0
    assert found["ftcluster_goodput_ratio",] == 10 / 50


@pytest.mark.parametrize("read", [open_metrics, prometheus_text])
def test_both_formats_of_prometheus_read_it(read: Any) -> None:
    text = text_of('a"\\\nb', samples(numbers(), LAUNCH, "mrpc", 1040.0))
    families = {one.name: one for one in read(text)}
    for name, family in families.items():
        about, labels = GAUGES[name]
        assert (family.type, family.documentation) == ("gauge", about)
        for sample in family.samples:
            assert sample.labels.keys() == {"run", *labels}
            assert sample.labels["run"] == 'a"\\\nb'
            assert sample.timestamp is None  # node_exporter refuses timestamps
    never = {"checkpoint_step", "end_info", "failed_save_info", "free_bytes", "slow_host_ratio"}
    assert families.keys() == GAUGES.keys() - {f"ftcluster_{name}" for name in never}


def test_a_file_is_written_as_a_whole_beside_the_runs(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "mrpc-1"
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text('{"recipe": {"name": "mrpc"}}')
    writer = EventWriter(run_dir)
    file = MetricsFile(run_dir)
    launch = replace(LAUNCH, run_dir=str(run_dir))
    file.write(launch)  # before the first event
    writer.write("start", **{k: v for k, v in START.items() if k not in ("event", "time")})
    with (run_dir / "events.jsonl").open("a") as events:
        events.write('{"event": "st')  # a line that is being written
    file.write(launch, step=7)
    text = (tmp_path / "metrics/mrpc-1.prom").read_text()
    assert 'ftcluster_step{run="mrpc-1"} 7\n' in text
    assert 'recipe="mrpc",backend="impi",precision="bf16"} 1\n' in text
    assert [path.name for path in (tmp_path / "metrics").iterdir()] == ["mrpc-1.prom"]
    before = file.path.stat().st_mtime_ns
    file.tick(launch, [RankLife(0, "node1", "10.0.0.1", step=8)])
    assert file.path.stat().st_mtime_ns == before  # the file was just written


def test_failed_saves_are_counted_and_the_last_error_is_a_label() -> None:
    """The texts come from a real full disk, in tests/faults/results.jsonl."""
    results = (ROOT / "tests/faults/results.jsonl").read_text().splitlines()
    full = [one for one in map(json.loads, results) if one.get("fault") == "full-disk"]
    texts = [one["cause"] for one in full if one["cause"].startswith("no checkpoint")]
    assert len(texts) > 2
    assert values(numbers())["ftcluster_failed_save_count", "checkpoint"] == 0
    notices = [
        {"event": "notice", "time": 1035.0, "message": text, "failed_save": "checkpoint"}
        for text in texts
    ]
    found = values(numbers(*notices, {"event": "notice", "time": 1036.0, "message": "x"}))
    assert found["ftcluster_failed_save_count", "checkpoint"] == len(texts)
    assert found["ftcluster_failed_save_count", "snapshot"] == 0
    errors = [key[1:] for key in found if key[0] == "ftcluster_failed_save_info"]
    assert errors == [("checkpoint", texts[-1][:200])]


def test_the_cause_of_an_end_is_a_label() -> None:
    end = {
        "event": "end", "time": 1050.0, "state": "stopped", "exit_code": 143, "seconds": 50.0,
        "cause": "shutdown", "why": "node1 is shutting down",
    }  # fmt: skip
    assert values(numbers(end))["ftcluster_end_info", "shutdown"] == 1
    older = {key: value for key, value in end.items() if key not in ("cause", "why")}
    assert values(numbers(older))["ftcluster_end_info", "stopped"] == 1
    assert not any(key[0] == "ftcluster_end_info" for key in values(numbers()))


def test_a_run_that_continues_without_a_host_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "mrpc-1"
    run_dir.mkdir(parents=True)
    record = {"format": 1, "drained": {"node7": {}, "node9": {}}, "all_reduce": {}, "tunings": {}}
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    launch = replace(LAUNCH, run_dir=str(run_dir)).on(LAUNCH.hosts[:1])
    lives = [
        RankLife(0, "node1", "10.0.0.1", condition={"free": 1}),
        RankLife(1, "node2", "10.0.0.2", condition={"free": 7}),
    ]
    EventWriter(run_dir).write("phase", doing="starting the ranks")
    file = MetricsFile(run_dir)
    file.tick(launch, lives)
    text = file.path.read_text()
    assert 'ftcluster_missing_hosts{run="mrpc-1"} 1\n' in text
    assert 'ftcluster_drained_hosts{run="mrpc-1"} 2\n' in text
    assert 'host="node2"' not in text  # the host has no ranks
    [free] = re.findall(r'ftcluster_free_bytes\{run="mrpc-1",host="node1"\} (\S+)', text)
    disk = shutil.disk_usage(run_dir).free  # the head measures its own disk
    assert float(free) == pytest.approx(disk, rel=0.1)


def test_files_of_runs_before_go(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    old, other = (tmp_path / "metrics" / name for name in ("old.prom", "other.prom"))
    for path in (old, other):
        path.touch()
    long_ago = time.time() - KEPT_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    (tmp_path / "runs/r").mkdir(parents=True)
    MetricsFile(tmp_path / "runs/r")
    assert not old.exists()
    assert other.exists()


def test_a_folder_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r"
    run_dir.mkdir(parents=True)
    (tmp_path / "metrics").write_text("a file")
    MetricsFile(run_dir).write(LAUNCH)


def test_the_dashboard_shows_what_is_written() -> None:
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    queries = [one["query"]["query"] for one in dashboard["templating"]["list"][1:]]
    used = set(re.findall(r"ftcluster_\w+", " ".join([*expressions, *queries])))
    assert used <= GAUGES.keys()
    assert GAUGES.keys() - used == set()
    labels = set(re.findall(r"\{\{(\w+)\}\}", json.dumps(dashboard)))
    assert labels <= {"run", *(label for _, names in GAUGES.values() for label in names)}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)


@pytest.mark.needs("promtool")
def test_the_table_of_runs_has_a_row_for_each_run(tmp_path: Path) -> None:
    """Grafana joins rows with equal common columns, and the metric's name is such a column."""
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    tables = [panel for panel in dashboard["panels"] if panel["type"] == "table"]
    assert all(t["expr"].startswith("max by (run") for panel in tables for t in panel["targets"])
    [table] = (panel for panel in tables if panel["title"] == "Runs")
    labels = '{run="mrpc-1", host="", instance="head:9100", job="node"}'
    about = {"recipe": "mrpc", "backend": "impi", "precision": "bf16"}
    series, expected = [], []
    for number, target in enumerate(table["targets"]):
        assert target["instant"]
        [metric] = set(re.findall(r"ftcluster_\w+", target["expr"]))
        more = about if metric == "ftcluster_run_info" else {}
        text = "".join(f', {name}="{value}"' for name, value in more.items())
        series.append({"series": metric + labels.replace("}", f"{text}}}"), "values": str(number)})
        times = 1000 if "* 1000" in target["expr"] else 1
        expected.append({
            "expr": target["expr"].replace("$run", "mrpc-.*"), "eval_time": "0",
            "exp_samples": [{"labels": f'{{run="mrpc-1"{text}}}', "value": number * times}],
        })  # fmt: skip
    tests = {"tests": [{"input_series": series, "promql_expr_test": expected}]}
    (tmp_path / "table.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "table.yml"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_state_that_has_passed_is_not_shown_beside_the_current_state() -> None:
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    states = [
        target
        for panel in dashboard["panels"]
        for target in panel["targets"]
        if "ftcluster_run_state" in target["expr"]
    ]
    assert [target.get("instant") for target in states] == [True]
