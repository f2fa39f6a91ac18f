"""The supervisor with a user's script; a shell script replaces mpirun and labels lines."""

import json
from pathlib import Path

import pytest

from ftcluster_common.protocol.launch import Launch, RankCores, RankHost
from ftcluster_train.io.events import EventWriter
from ftcluster_train.io.mpi_output import BACKEND_MARKER, RankEnd
from ftcluster_train.supervisor.monitors import Watch, watch_of
from ftcluster_train.supervisor.rank_life import Trouble
from tests.programs import wait_for
from tests.unit.supervisor import test_supervisor
from tests.unit.supervisor.test_supervisor import (
    errors,
    events,
    processes_of,
    supervisor,
    until_end,
)


def launch(run_dir: Path, script: str, world_size: int = 2) -> None:
    ranks = (RankCores("0", 1),) * world_size
    hosts = [RankHost("node1", "127.0.0.1", ranks)]
    test_supervisor.launch(run_dir, script, hosts=hosts, script=True)


def say(run_dir: Path, rank: int, text: str) -> str:
    """Return a command that prints a line as mpirun prints a rank's line."""
    return f"printf %s '[{run_dir.name} {rank}] {text}'"


def ended(run_dir: Path, rank: int, code: int = 0, name: str = "") -> str:
    """Return a command that reports how a rank's script ended."""
    return say(run_dir, rank, RankEnd(rank, f"node{rank}", code, name).line()) + " >&2"


def output(run_dir: Path) -> dict[str, str]:
    """Return the output of rank 0 by stream, as the control node gets it."""
    said = {"stdout": "", "stderr": ""}
    file = run_dir / "output.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        event = json.loads(line)
        assert (event["event"], event["rank"]) == ("output", 0)
        said[event["stream"]] += event["text"]
    return said


def test_a_good_script(run_dir: Path) -> None:
    launch(
        run_dir,
        f"{say(run_dir, 0, 'half ')}; {say(run_dir, 1, 'other')};"
        f"{say(run_dir, 0, 'a line')}; echo;"
        f"{say(run_dir, 0, 'a warning')} >&2; {say(run_dir, 0, BACKEND_MARKER + 'impi')} >&2;"
        f"echo >&2; {ended(run_dir, 0)}; {ended(run_dir, 1)}; env >&2",
    )
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("done", 0)
    assert output(run_dir) == {"stdout": "half a line\n", "stderr": "a warning"}
    assert [one["name"] for one in events(run_dir) if one["event"] == "backend"] == ["impi"]
    assert (run_dir / "logs/rank-1.log").read_text() == "other"
    log = (run_dir / "logs/rank-0.log").read_text()
    # two pipes at the same moment
    assert log in ("half a line\na warning", "a warninghalf a line\n")
    environment = (run_dir / "logs/mpirun.log").read_text()
    assert "HF_HUB_OFFLINE" not in environment  # a script may load from the Hub itself
    assert "MASTER_PORT=" in environment
    assert "s3cret" not in environment


def test_the_exit_code_of_the_rank_that_failed_first(run_dir: Path) -> None:
    launch(
        run_dir,
        f"{say(run_dir, 1, 'cannot read x')}; {ended(run_dir, 1, 3)};"
        f"{say(run_dir, 0, 'connection lost')}; {ended(run_dir, 0, 1)}; exit 3",
    )
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("failed", 3)
    [error] = errors(run_dir)
    assert (error["rank"], error["host"]) == (1, "node1")
    assert error["message"] == "ended with exit code 3; its last output:\ncannot read x"
    assert str(error["hint"]).endswith("/logs/rank-1.log")


def watched(run_dir: Path) -> Watch:
    launch = Launch(str(run_dir), (), {}, (RankHost("head", ""),), "", "", script=True)
    return watch_of(launch, EventWriter(run_dir))


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        ("ModuleNotFoundError: No module named x", "ftcluster run --requirements FILE"),
        ('  File "/r/script/train.py", line 8, in <module>\n'
         '  File "/s/lib/python3.11/site-packages/torch/cuda/__init__.py", line 4, in _lazy_init\n'
         "AssertionError: Torch not compiled with CUDA enabled", "a device (/r/script/train.py:8)"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "no GPU"),
        ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", "no GPU"),
        ("DistNetworkError: ... code: -98, name: EADDRINUSE", "(mp.spawn) must call"),
    ],
)  # fmt: skip
def test_what_to_do_about_a_scripts_last_words(run_dir: Path, last: str, hint: str) -> None:
    watch, label = watched(run_dir), f"[{run_dir.name} 0] "
    said = f"{last}\n{RankEnd(0, 'head', 1).line()}"
    watch.feed("stderr", "".join(label + line for line in said.splitlines(True)).encode())
    watch.close()
    [error] = watch.ending(1).errors
    assert hint in error["hint"]


def test_a_rank_that_failed_ends_those_that_would_wait_for_it(run_dir: Path) -> None:
    launch(run_dir, f"{ended(run_dir, 1, 137, 'SIGKILL')}; setsid sleep 300 & sleep 300")
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("failed", 137)
    [error] = errors(run_dir)
    assert error["message"] == "was killed by signal 9 (SIGKILL) without output"
    assert "memory is short" in str(error["hint"])
    assert processes_of(run_dir.name) == []


def test_what_good_ranks_leave_in_the_background_is_not_waited_for(run_dir: Path) -> None:
    launch(run_dir, f"{ended(run_dir, 0)}; {ended(run_dir, 1)}; setsid sleep 300 & sleep 300")
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("done", 0)
    assert processes_of(run_dir.name) == []


def test_one_good_rank_is_not_all(run_dir: Path) -> None:
    launch(run_dir, f"{ended(run_dir, 0)}; sleep 3; {say(run_dir, 1, 'late')}; {ended(run_dir, 1)}")
    assert until_end(run_dir)["state"] == "done"
    assert (run_dir / "logs/rank-1.log").read_text() == "late"


def test_mpirun_that_fails_by_itself(run_dir: Path) -> None:
    launch(run_dir, "echo '[mpiexec@a] no such host' >&2; exit 255")
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("failed", 255)
    [error] = errors(run_dir)
    assert error["rank"] is None
    assert "mpirun ended with exit code 255" in str(error["message"])
    assert "no such host" in str(error["message"])


def test_a_rank_that_cannot_be_started(run_dir: Path) -> None:
    marked = json.dumps({"message": "no core 7", "hint": "plan again", "host": "b", "rank": 1})
    launch(run_dir, f"{say(run_dir, 1, f'FTCLUSTER-ERROR {marked}')}; echo; exit 1")
    assert until_end(run_dir)["exit_code"] == 1
    assert [error["message"] for error in errors(run_dir)] == ["no core 7"]


def test_a_stop_keeps_what_was_said_before_it(run_dir: Path) -> None:
    last = say(run_dir, 0, "saved").replace("'", '"')
    launch(run_dir, f"trap '{last}; exit 0' TERM; {say(run_dir, 0, 'here')}; sleep 300 & wait")
    wait_for(lambda: output(run_dir)["stdout"] == "here")
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    assert events(run_dir)[-1]["state"] == "stopped"
    assert output(run_dir)["stdout"] == "heresaved"
    assert processes_of(run_dir.name) == []


def test_much_output_is_whole(run_dir: Path) -> None:
    lines = 20000
    launch(
        run_dir,
        f'for n in $(seq {lines}); do echo "[{run_dir.name} 0] line $n"; done; {ended(run_dir, 0)}',
        world_size=1,
    )
    assert until_end(run_dir)["state"] == "done"
    expected = "".join(f"line {number}\n" for number in range(1, lines + 1))
    assert output(run_dir)["stdout"] == expected
    assert (run_dir / "logs/rank-0.log").read_text() == expected


STACK = """Thread 0x00007f6298 (most recent call first):
  File "/s/lib/threading.py", line 324 in wait

Current thread 0x00007f298f (most recent call first):
{inside}  File "{path}", line 6 in {function}
  File "/r/script.py", line 7 in <module>
"""


def test_of_a_script_that_hangs_the_rank_in_no_collective_is_named(run_dir: Path) -> None:
    watch = watched(run_dir)
    torch = "/s/torch/distributed/distributed_c10d.py"
    hung = [Trouble("head", rank, 0, "hung", "hung in script") for rank in (2, 0, 1)]
    impi = (
        '  File "/s/lib/threading.py", line 324 in wait\n'
        '  File "/s/ftcluster_mpi/work.py", line 44 in wait\n'
    )
    for rank, path, inside in ((0, torch, ""), (1, "/r/data.py", ""), (2, torch, impi)):
        text = STACK.format(path=path, function="f", inside=inside).replace(
            "\n", f"\n[{run_dir.name} {rank}] "
        )
        watch.feed("stderr", f"[{run_dir.name} {rank}] {text}\n".encode())
    watch.close()
    (named,) = watch.blame(hung)
    assert (named.rank, named.message) == (1, "hung in script; it is in f, /r/data.py:6")
    assert watch.blame([hung[1], hung[0]]) == [hung[1]]  # the rank that was idle first
    killed = [Trouble("head", 0, 0, "signal", "killed"), Trouble("head", 1, 0, "signal", "killed")]
    assert watch.blame(killed) == killed
    banner = "RANK 1 PID 9 RUNNING AT head\n=   KILLED BY SIGNAL: 9 (Killed)\n"
    watch.feed("stdout", banner.encode())
    watch.close()
    assert watch.blame(killed) == killed[1:]
    told = json.dumps({"message": "timed out", "hint": "gloo", "host": "head", "rank": 0})
    watch.feed("stderr", f"[{run_dir.name} 0] FTCLUSTER-ERROR {told}\n".encode())
    watch.close()
    [named] = watch.blame(killed)
    assert (named.rank, named.message) == (0, "timed out")
