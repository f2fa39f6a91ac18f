"""Times of commands with many runs on the head, and with one run of weeks.

    .venv-dev/bin/python -m bench.scale_commands --results FILE [--home DIR]

from the repository's root, after `bench.scale`, whose FILE this adds to; `scripts/environment
control` before. This machine is set up in a folder (with --home: in DIR, and kept), as head and
control node. The program measures wall time, CPU time and the largest process of each command: with
RUNS ended runs on the head and in the control node's state, and with a run of EVENTS events whose
ranks' log has LOG_BYTES.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.machines import cpu, resumed
from bench.runs import write
from ftcluster.report.files import EVENTS, JOB
from ftcluster_common import __version__
from ftcluster_common.protocol.launch import LAUNCH_FILE, Launch, RankCores, RankHost
from tests.programs import FTCLUSTER, Home

RUNS, EVENT_COUNT, LOG_BYTES = 10_000, 10_000_000, 20 << 30
DAY = 86400.0
ENDED = 30 * DAY  # 30 days ago
# repetitions of each command, of which the fastest counts, because other programs use the cores
AGAIN = 5
HOST = RankHost("localhost", "127.0.0.1", (RankCores("0", 1),))
LONG = "long-20260101-000000-0000"


def add_runs(home: Home, count: int) -> str:
    """Write ended runs and their records; return the id of a run with a model."""
    began = time.time() - ENDED - count
    run = ""
    for number in range(count):
        run = f"quickstart-20260131-{number:06}-{number % 65536:04x}"
        folder = home.prefix / "runs" / run
        lines: list[dict[str, Any]] = [
            {"event": "start", "time": began + number, "world_size": 1, "steps": 10},
            {"event": "result", "time": began + number + 4, "model": f"{folder}/model"},
            {"event": "end", "time": began + number + 5, "state": "done", "exit_code": 0,
             "seconds": 5.0},
        ]  # fmt: skip
        add_run(folder, lines)
        record = home.folder / "state/ftcluster/runs" / run
        record.mkdir(parents=True)
        end = {"state": "done", "seconds": 5.0}
        document = {"run": run, "ftcluster": __version__, "started": began + number, "end": end}
        (record / "run.json").write_text(json.dumps(document, indent=1) + "\n")
    model = home.prefix / "runs" / run / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(1 << 20))
    (model.parent / "ranks.log").write_text("[0] a line\n")
    return run


def add_run(folder: Path, lines: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    (folder / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    launch = Launch(str(folder), (), {}, (HOST,), "", "", started_by="somebody")
    (folder / LAUNCH_FILE).write_text(json.dumps(launch.to_dict()))


def add_long_run(home: Home) -> None:
    """Write a run of several weeks; only the end of its log has data, the rest is a hole."""
    folder = home.prefix / "runs" / LONG
    began = time.time() - ENDED
    add_run(folder, [{"event": "start", "time": began, "world_size": 1, "steps": EVENT_COUNT,
                      "threads_per_rank": 1, "precision": "fp32", "ipex": False, "backend": "gloo",
                      "epochs": 1.0, "train_samples": 1000, "parameters": 1000}])  # fmt: skip
    event = {
        "event": "step", "time": began + 1, "step": 0, "epoch": 0.1, "loss": 1.5,
        "grad_norm": 1.0, "learning_rate": 1e-5,
        "samples_per_second": 100.0, "remaining_seconds": 5.0, "train_seconds": 1.0,
    }  # fmt: skip
    (folder / JOB).write_text('{"recipe": {}}\n')
    before, _, after = json.dumps(event).partition('"step": 0')
    end = {"event": "end", "time": began + DAY, "state": "done", "exit_code": 0, "seconds": DAY}
    with (folder / EVENTS).open("a", encoding="utf-8") as file:
        file.writelines(f'{before}"step": {one}{after}\n' for one in range(1, EVENT_COUNT + 1))
        file.write(json.dumps(end) + "\n")
    with (folder / "ranks.log").open("wb") as file:
        file.truncate(LOG_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"[0] a line of a rank's log, of which there are many\n" * 200_000)


METRICS_FILE = "the supervisor's file of metrics, as a new supervisor writes it"
# the supervisor does this every few seconds
WRITE_METRICS = """
import sys
from pathlib import Path
from ftcluster_common.protocol.launch import read_launch
from ftcluster_train.supervisor.metrics_file import MetricsFile

run = Path(sys.argv[1])
MetricsFile(run).write(read_launch(run))
"""


def call(home: Home, *words: str, program: Path = FTCLUSTER) -> dict[str, Any]:
    """Return the fastest of several calls of a command on the control node.

    Raises:
        SystemExit: the command failed; the message has its output.
    """
    found = []
    for _ in range(AGAIN):
        shutil.rmtree("model", ignore_errors=True)  # written by `fetch`
        with (home.folder / "said").open("w+b") as said:
            began = time.monotonic()
            pid = os.posix_spawn(
                program, [str(program), *words], home.env,
                file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), one) for one in (1, 2)],
            )  # fmt: skip
            _, status, usage = os.wait4(pid, 0)
            seconds = time.monotonic() - began
            if status:
                said.seek(0)
                raise SystemExit(f"{words}: {said.read().decode()[-2000:]}")
        found.append((seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    seconds, used, memory = min(found)
    words = tuple("RUN" if "-2026" in word else word for word in words)
    return {
        "command": " ".join(words), "seconds": round(seconds, 2), "cpu_seconds": round(used, 2),
        "memory_mb": round(memory),
    }  # fmt: skip


@contextmanager
def this_machine(kept: Path | None) -> Iterator[Home]:
    """Set up this machine in a folder."""
    folder = kept or Path(tempfile.mkdtemp(prefix="ftcluster-scale-"))
    folder.mkdir(parents=True, exist_ok=True)
    home = Home(folder, folder / "ftcluster")
    try:
        if not (home.prefix / "current").exists():
            done = home.run("setup", "localhost", "-e", f"ftcluster_prefix={home.prefix}")
            if done.returncode:
                raise SystemExit(done.stderr)
        yield home
    finally:
        if not kept:
            shutil.rmtree(folder)


def measure(home: Home) -> Iterator[dict[str, Any]]:
    """Measure the commands with many runs, and then with the long run too."""
    os.chdir(home.folder)
    for runs in (home.prefix / "runs", home.folder / "state/ftcluster/runs"):
        shutil.rmtree(runs, ignore_errors=True)  # remains of an interrupted measurement
    for word in ("version", "ps"):
        yield {"runs": 0, **call(home, word)}
    run = add_runs(home, RUNS)
    home.run("ps")  # the head caches what it has read
    for words in (
        ("ps",), ("ps", "--all"), ("logs", run), ("stop", run), ("fetch", run, "model"),
        ("report", run), ("clean", "--done", "--older-than", "7d", "--dry-run"),
    ):  # fmt: skip
        yield {"runs": RUNS, **call(home, *words)}
    add_long_run(home)
    home.run("ps")
    for words in (
        ("attach", LONG), ("logs", LONG), ("logs", "-f", LONG), ("report", LONG), ("ps",),
    ):  # fmt: skip
        yield {"events": EVENT_COUNT, **call(home, *words)}
    python, run = home.prefix / "current/bin/python", home.prefix / "runs" / LONG
    written = call(home, "-B", "-c", WRITE_METRICS, str(run), program=python)
    yield {"events": EVENT_COUNT, **written, "command": METRICS_FILE}


def main() -> int:
    """Measure and add the results to the file; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    results = resumed(options.results, cpu())
    results["commands"] = []
    path = options.results.absolute()
    with this_machine(options.home and options.home.absolute()) as home:
        for row in measure(home):
            results["commands"].append({**row, "load": os.getloadavg()[0]})
            print(json.dumps(results["commands"][-1]), flush=True)
            write(path, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
