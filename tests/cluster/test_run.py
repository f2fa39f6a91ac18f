"""Users' scripts and a benchmark on two ranks of this machine, with the installed command."""

import json
import re
from pathlib import Path

import pytest

from tests.cluster.conftest import Machine

# minimum and maximum repetitions per size (health/bench_all_reduce.py, which imports torch)
FEWEST, MOST = 5, 50
SCRIPTS = Path(__file__).with_name("scripts")
TWO = ("--ranks-per-host", "2", "--")
TRAINER = ("--max_steps", "3", "--per_device_train_batch_size", "4", "--report_to", "none",
           "--save_strategy", "no", "--output_dir", "out")  # fmt: skip


def script(name: str) -> str:
    return str(SCRIPTS / name)


def logs(machine: Machine, stderr: str) -> Path:
    """Return the folder with the logs of the run that has just ended."""
    run = re.findall(r"run ([\w.-]+-\d{8}-\d{6}-[0-9a-f]{4})", stderr)[-1]
    return machine.home.prefix / "runs" / run / "logs"


@pytest.mark.long
def test_a_plain_ddp_script(machine: Machine) -> None:
    done = machine.home.run("run", *TWO, script("ddp.py"))
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2, local rank 0\nequal weights: True, threads 1\n" in done.stdout
    assert "rank 1" not in done.stdout
    assert "rank 1 of 2, local rank 1\n" in (logs(machine, done.stderr) / "rank-1.log").read_text()
    assert machine.home.left_running() == []


@pytest.mark.long
def test_an_accelerate_script(machine: Machine) -> None:
    done = machine.home.run("run", *TWO, script("with_accelerate.py"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"MULTI_CPU on cpu(:0)?\n", done.stdout)
    assert "rank 0 of 2: 4 batches\n" in done.stdout
    assert "8 batches in all\n" in done.stdout
    # the script wrote into the run's own copy, so the next run does not find the file
    folder = logs(machine, done.stderr).with_name("script")
    assert (folder / "made.txt").read_text() == "by the script\n"
    copies = list((machine.home.prefix / "scripts").glob("scripts-*"))
    assert copies
    assert not any((copy / "made.txt").exists() for copy in copies)


def test_a_trainer_script(machine: Machine) -> None:
    done = machine.home.run("run", *TWO, script("with_trainer.py"), *TRAINER)
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank 0 of 2 on cpu(:0)?: 3 steps\n", done.stdout)
    planned = machine.home.run("run", "--dry-run", "--json", *TWO, script("with_trainer.py"))
    backend = json.loads(planned.stdout)["launch"]["env"]["FTCLUSTER_BACKEND"]
    assert f"2 ranks, backend {backend}, " in done.stderr
    folder = logs(machine, done.stderr).with_name("script")
    assert (folder / "out" / "model.safetensors").is_file()


def test_flags_of_the_old_recipes(machine: Machine) -> None:
    """tests/engine/test_control_node.py checks that transformers refuses them too."""
    words = (script("with_trainer.py"), *TRAINER, "--no_cuda", "--use_ipex", "--xpu_backend=ccl")
    done = machine.home.run("run", *TWO, *words)
    assert done.returncode == 2
    assert "3 problems" in done.stderr
    assert "write use_cpu" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("3", "1"),
            3,
            "rank 1 on localhost: ended with exit code 3; its last output:\n  rank 1 is here",
        ),
        pytest.param(  # hosts/test_runs.py runs this script on three hosts
            ("SIGKILL", "1"),
            137,
            "rank 1 on localhost: was killed by signal 9 (SIGKILL)",
            marks=pytest.mark.long,
        ),
    ],
)
def test_exit_codes(machine: Machine, words: tuple[str, str], code: int, said: str) -> None:
    done = machine.home.run("run", "--json", *TWO, script("ends.py"), *words)
    assert done.returncode == code
    result = json.loads(done.stdout)
    assert (result["state"], result["exit_code"], result["world_size"]) == ("failed", code, 2)
    assert said in result["error"]
    assert "Traceback" not in done.stderr
    # otherwise the other rank would have waited for minutes
    assert machine.home.left_running() == []


def test_a_script_that_hangs(machine: Machine) -> None:
    done = machine.home.run("run", "--hang-seconds", "4", *TWO, script("hangs.py"))
    assert done.returncode == 143
    assert "rank 1 on localhost: hung in script: no rank has used its CPU" in done.stderr
    assert "it is in wait_for_nothing" in done.stderr
    assert "all_reduce" in (logs(machine, done.stderr) / "rank-0.log").read_text()
    assert machine.home.left_running() == []


def test_what_each_rank_says_is_whole(machine: Machine) -> None:
    words = ["{{ 1 + 1 }}", "a b", ":", "", "$HOME"]
    done = machine.home.run("run", *TWO, script("talks.py"), *words)
    assert done.returncode == 0, done.stderr
    folder = logs(machine, done.stderr)
    for rank in range(2):
        lines = "".join(f"{rank}: line {number}\n" for number in range(2000))
        stdout = f"first half of {rank}\n[1] not a label: {words}\n{lines}end of {rank}, grün"
        said = (folder / f"rank-{rank}.log").read_bytes().decode()
        assert re.findall(r"\r\d/3", said) == ["\r0/3", "\r1/3", "\r2/3"]
        assert re.sub(r"\r\d/3", "", said) == stdout
        assert rank or done.stdout == stdout
    assert "0/3" in done.stderr


def test_a_module_of_the_hosts(machine: Machine) -> None:
    done = machine.home.run("run", *TWO, "-m", "json.tool", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    missing = machine.home.run("run", *TWO, "-m", "no_such_module")
    assert missing.returncode == 1
    assert "module no_such_module does not exist" in missing.stderr


def test_packages_that_the_stack_does_not_have(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own.py").write_text(
        "import iniconfig, sys, torch\nprint(iniconfig.__file__, torch.__file__, sys.argv[1:])\n"
    )
    (folder / "own.txt").write_text("iniconfig==2.0.0\ntorch>=2\n")
    one = ("--ranks-per-host", "1", "--")
    words = ("--requirements", str(folder / "own.txt"), *one, str(folder / "own.py"))
    done = machine.home.run("run", *words, "one")
    assert done.returncode == 0, done.stderr
    [layer] = (machine.home.prefix / "layers").glob("[!.]*")
    own, torch, _ = done.stdout.split()
    assert Path(own).is_relative_to(layer)
    assert Path(torch).is_relative_to((machine.home.prefix / "current").resolve())
    made = layer.stat()
    # the same packages, without a package index
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    again = machine.home.run("run", *words, "two", **offline)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout.replace("one", "two")
    assert (layer.stat().st_ino, layer.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    (folder / "own.txt").write_text("torch==1.0\n")
    refused = machine.home.run("run", *words)
    assert refused.returncode == 2
    assert "own.txt:1: torch==1.0: the stack has torch " in refused.stderr


def test_a_script_that_is_on_the_hosts(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text("import os\nprint(os.getcwd())\n")
    done = machine.home.run("run", "--on-hosts", *TWO, str(tmp_path / "where.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}\n"
    done = machine.home.run("run", "--on-hosts", *TWO, "/no/such.py")
    assert done.returncode == 1
    assert "/no/such.py does not exist" in done.stderr


def test_a_dry_run_changes_nothing(machine: Machine) -> None:
    before = sorted((machine.home.prefix / "runs").iterdir())
    done = machine.home.run("run", "--dry-run", "--commands", *TWO, script("ddp.py"), "a b")
    assert done.returncode == 0
    assert '["ddp.py", "a b"]' in done.stdout
    assert sorted((machine.home.prefix / "runs").iterdir()) == before


def test_all_reduces_are_measured(machine: Machine) -> None:
    sizes = ("--ranks-per-host", "2", "--sizes", "4K,1M", "--seconds", "5")
    done = machine.home.run("bench", "allreduce", "--json", *sizes)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(row["bytes"], row["type"]) for row in result["sizes"]] == [
        (size, kind) for size in (4096, 1 << 20) for kind in ("fp32", "bf16")
    ]
    for row in result["sizes"]:
        assert row["times"].keys() == {"gloo", "impi", "mpi"}
        assert FEWEST <= row["turns"] <= MOST
    assert machine.home.left_running() == []
