"""One rank of a script, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftcluster_train.io.mpi_output import RankEnd, read_end
from ftcluster_train.io.processes import is_running
from ftcluster_train.io.rank_status import ask_for_stacks
from ftcluster_train.rank.script import why_not
from tests.programs import NODE_PATH, wait_for

SAYS = "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['RANK'])"


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "ftcluster_train.host.script", *words]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": NODE_PATH, "RANK": "5"}


def write_job(folder: Path, *words: str, start: Path | None = None, **more: str) -> str:
    """Write the job of a run whose folder is the script's start folder."""
    script = {"program": ["script.py", *words], "start": str(start or folder), **more}
    (folder / "job.json").write_text(json.dumps({"run": "r-1", "prefix": "/p", "script": script}))
    return str(folder)


def start(folder: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        argv("run", str(folder)), env=environment() | environ, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip


def run(folder: Path, script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "script.py").write_text(script)
    write_job(folder, *words)
    return start(folder)


def reported(text: str) -> RankEnd:
    end = read_end(text)
    assert end is not None, text
    return end


def test_the_script_starts_in_its_folder_with_its_words(tmp_path: Path) -> None:
    words = ["a b", "", "$HOME", "it's", ":", "::", "{{ x }}", "-v", "--", "new\nline"]
    done = run(tmp_path, SAYS, *words)
    assert done.stdout == f"{tmp_path} {words} 5\n"
    assert done.returncode == 0
    assert reported(done.stderr).code == 0


def test_it_is_given_its_local_rank_where_it_declares_the_option(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:])")
    write_job(tmp_path, "--x", local_rank="--local-rank")
    assert start(tmp_path, LOCAL_RANK="3").stdout == "['--local-rank=3', '--x']\n"


@pytest.mark.parametrize(
    ("script", "code", "name"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import sys; sys.stderr.write('half'); sys.exit(255)", 255, ""),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", 139, "SIGSEGV"),
    ],
)
def test_how_it_ended(tmp_path: Path, script: str, code: int, name: str) -> None:
    done = run(tmp_path, script)
    assert done.returncode == code
    end = reported(done.stderr)
    assert (end.rank, end.code, end.signal) == (5, code, name)


def test_file_descriptors_of_mpi_are_handed_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    (tmp_path / "script.py").write_text(f"import os; os.write({writer}, b'hello')")
    words = argv("run", write_job(tmp_path))
    subprocess.run(words, env=environment(), pass_fds=(writer,), check=True, timeout=30,
                   capture_output=True)  # fmt: skip
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"hello"


def started(folder: Path, script: str) -> "subprocess.Popen[str]":
    (folder / "script.py").write_text(f"import os\nprint(os.getpid(), flush=True)\n{script}\n")
    return subprocess.Popen(
        argv("run", write_job(folder)),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_signals_are_handed_on(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)",
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 7
    assert reported(stderr).code == 7


def test_the_script_ends_with_what_started_it(tmp_path: Path) -> None:
    process = started(tmp_path, "import time; time.sleep(300)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=20)
    wait_for(lambda: not is_running(child))


def test_what_is_imported_first_leaves_no_trace_and_hides_nothing(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "sitecustomize.py").write_text("import sys; sys.own = 'the other one'")
    (tmp_path / "script.py").write_text(
        "import sys; print(sys.own, [p for p in sys.path if 'startup' in p])"
    )
    write_job(tmp_path)
    done = start(tmp_path, PYTHONPATH=f"{NODE_PATH}{os.pathsep}{others}")
    assert done.stdout == "the other one []\n"


def test_threads_of_gloo_are_given_time_at_the_end(tmp_path: Path) -> None:
    name = "open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('pt_gloo_runloop')"
    script = f"import threading, time\ndef work():\n    {name}\n    time.sleep(60)\n"
    script += "threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.1)\n"
    began = time.monotonic()
    assert run(tmp_path, script).returncode == 0
    assert time.monotonic() - began > 0.4


def test_its_own_packages_come_behind_those_of_the_stack(tmp_path: Path) -> None:
    packages = tmp_path / "layer/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "own.py").write_text("name = 'own'\n")
    (packages / "json.py").write_text("name = 'not this one'\n")
    (tmp_path / "script.py").write_text("import json, own, sys; print(own.name, sys.path[-1])")
    write_job(tmp_path)
    done = start(tmp_path, FTCLUSTER_LAYER=str(tmp_path / "layer"))
    assert done.stdout == f"own {packages}\n"
    there = {**environment(), "FTCLUSTER_LAYER": str(tmp_path / "layer")}
    look = subprocess.run(
        argv("look", "-m", "own"), env=there, capture_output=True, text=True, check=False
    )
    assert (look.returncode, look.stdout) == (0, "\n")
    gone = start(tmp_path, FTCLUSTER_LAYER=str(tmp_path / "none"))
    assert gone.returncode == 1
    assert "none, the folder with the script's packages, no longer exists" in gone.stdout


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    write_job(tmp_path, start=tmp_path / "none")
    done = start(tmp_path)
    assert done.returncode == 1
    assert "the script's folder: No such file or directory" in done.stdout
    assert done.stdout.startswith("FTCLUSTER-ERROR ")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["/no/such/script.py"], "/no/such/script.py does not exist"),
        (["-m", "no_such_module"], "module no_such_module does not exist"),
        (
            ["-m", "no_such.module"],
            "module no_such.module cannot be found: No module named 'no_such'",
        ),
        (["-m", "json.tool"], ""),
        ([__file__, "x"], ""),
    ],
)
def test_looking_for_what_is_on_the_hosts(program: list[str], words: str) -> None:
    assert why_not(program) == words


def test_a_script_writes_its_stacks_when_it_is_asked_to(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        "import subprocess, sys, time\n"
        "other = subprocess.Popen(['sleep', '300'])\n"
        "def stuck_here():\n"
        "    print(other.pid, flush=True)\n"
        "    time.sleep(300)\n"
        "stuck_here()",
    )
    assert process.stdout is not None
    child, other = int(process.stdout.readline()), int(process.stdout.readline())
    assert ask_for_stacks(child)
    assert not ask_for_stacks(process.pid)  # the signal would end the process
    assert not ask_for_stacks(other)
    time.sleep(0.2)
    assert is_running(process.pid)
    assert is_running(other)
    os.kill(other, signal.SIGKILL)
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert "in stuck_here" in stderr


def checkpoint(folder: Path, complete: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    if complete:
        (folder / "trainer_state.json").touch()
    return folder


def test_a_restarted_script_finds_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    work, told = tmp_path / "script", "import os; print(os.environ.get('FTCLUSTER_CHECKPOINT'))"
    checkpoint(work / "out/checkpoint-900")  # a file of the script's folder
    (work / "script.py").write_text(told)
    (work / "out/checkpoint-best").mkdir()
    write_job(tmp_path, start=work)
    assert start(tmp_path, FTCLUSTER_RESTART="1").stdout == "\n"  # a host that is new in the run
    time.sleep(0.02)
    assert start(tmp_path, FTCLUSTER_RESTART="0").stdout == "None\n"
    assert start(tmp_path, FTCLUSTER_RESTART="1").stdout == "\n"
    time.sleep(0.02)
    checkpoint(work / "out/checkpoint-10")
    assert start(tmp_path, FTCLUSTER_RESTART="1").stdout == f"{work}/out/checkpoint-10\n"
    time.sleep(0.02)
    newest = checkpoint(work / "out/mrpc/checkpoint-5")
    checkpoint(work / "out/checkpoint-20", complete=False)
    assert start(tmp_path, FTCLUSTER_RESTART="2").stdout == f"{newest}\n"


def test_checkpoints_are_found_if_the_clock_was_set_back_since_the_start(tmp_path: Path) -> None:
    work = tmp_path / "script"
    foreign = checkpoint(work / "out/checkpoint-900")  # a file of the script's folder
    (work / "script.py").write_text("import os; print(os.environ.get('FTCLUSTER_CHECKPOINT'))")
    write_job(tmp_path, start=work)
    assert start(tmp_path, FTCLUSTER_RESTART="0").stdout == "None\n"
    hour = 3600
    for step, ago in ((10, 1), (20, 2)):  # the clock goes back an hour before each checkpoint
        completed = checkpoint(work / f"out/checkpoint-{step}") / "trainer_state.json"
        at = completed.stat().st_mtime - ago * hour
        os.utime(completed, (at, at))
    assert start(tmp_path, FTCLUSTER_RESTART="1").stdout == f"{work}/out/checkpoint-20\n"
    (foreign / "trainer_state.json").write_text("{}")  # the run itself reaches this step
    assert start(tmp_path, FTCLUSTER_RESTART="1").stdout == f"{foreign}\n"
