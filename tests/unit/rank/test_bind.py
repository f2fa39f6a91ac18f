"""Binding on the rank's host: real affinity, and a kernel that refuses."""

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.launch import pack_env
from ftcluster_train.rank import bind
from ftcluster_train.rank.bind import (
    MPOL_PREFERRED,
    MPOL_PREFERRED_MANY,
    bind_memory,
    find_place,
    memory_nodes,
    variables,
)
from tests.programs import NODE_PATH

PLACEMENT = {
    "kinds": [
        {"env": {"LD_PRELOAD": "/lib/a.so"},
         "ranks": [{"cpus": "0-3", "threads": 3, "memory": [8]},
                   {"cpus": "4-10:2", "threads": 4, "memory": []}]},
        {"env": {}, "ranks": [{"cpus": "0", "threads": 1, "memory": []}]},
    ],
    "hosts": [[0, 2], [1, 1], [0, 1]],
}  # fmt: skip


def test_every_rank_finds_its_own_entry() -> None:
    places = [find_place(PLACEMENT, rank) for rank in range(7)]
    assert [(one.host, one.local_rank, one.local_size) for one in places] == [
        (0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2), (2, 0, 1), (3, 0, 2), (3, 1, 2),
    ]  # fmt: skip
    assert {one.world_size for one in places} == {7}
    assert places[1].cpus == {4, 6, 8, 10}
    assert places[4].env == {}
    with pytest.raises(ValueError, match="rank 7 is not in the plan, which contains 7 ranks"):
        find_place(PLACEMENT, 7)
    # variables for scripts that expect torchrun
    assert variables(find_place(PLACEMENT, 5), threads=3) == {
        "LD_PRELOAD": "/lib/a.so", "OMP_NUM_THREADS": "3", "RANK": "5", "WORLD_SIZE": "7",
        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("quota", "threads", "said"),
    [(None, 4, ""), (8.0, 4, ""), (5.0, 2, "the CPU quota of 5 CPUs allows 2 for each of 2 ranks"),
     (0.5, 1, "the CPU quota of 0.5 CPUs")],
)  # fmt: skip
def test_a_pod_with_less_than_was_planned_has_fewer_threads(
    quota: float | None, threads: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = set(range(16))
    monkeypatch.setattr(bind, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    found, problems = bind.bind_cores(find_place(PLACEMENT, 1))
    assert (found, bool(problems)) == (threads, bool(said))
    assert said in "".join(problems)


def kernel(answers: dict[int, int], seen: list[tuple[int, list[int]]]) -> Callable[..., int]:
    """Replace the kernel: it answers set_mempolicy by its mode, and stores modes and nodes."""

    def syscall(_number: int, mode: Any, mask: Any, _most: Any) -> int:
        words = (ctypes.c_uint64 * (bind.MOST_NODES // 64)).from_address(
            ctypes.cast(mask, ctypes.c_void_p).value or 0
        )
        nodes = [node for node in range(bind.MOST_NODES) if words[node // 64] >> node % 64 & 1]
        seen.append((mode.value, nodes))
        return answers[mode.value]

    return syscall


@pytest.mark.parametrize(
    ("answers", "said", "asked"),
    [
        ({MPOL_PREFERRED_MANY: 0}, "", [(MPOL_PREFERRED_MANY, [8, 65])]),
        ({MPOL_PREFERRED_MANY: -errno.EINVAL, MPOL_PREFERRED: 0}, "",
         [(MPOL_PREFERRED_MANY, [8, 65]), (MPOL_PREFERRED, [8])]),
        ({MPOL_PREFERRED_MANY: -errno.EPERM},
         "NUMA nodes 8, 65 as the preferred memory nodes: Operation not permitted; a container",
         [(MPOL_PREFERRED_MANY, [8, 65])]),
        ({MPOL_PREFERRED_MANY: -errno.EINVAL, MPOL_PREFERRED: -errno.EINVAL}, "Invalid argument",
         [(MPOL_PREFERRED_MANY, [8, 65]), (MPOL_PREFERRED, [8])]),
    ],
)  # fmt: skip
def test_memory_is_preferred_or_it_is_said_why_not(
    answers: dict[int, int], said: str, asked: list[tuple[int, list[int]]]
) -> None:
    seen: list[tuple[int, list[int]]] = []
    problems = bind_memory([8, 65], kernel(answers, seen))
    assert seen == asked
    assert (said in problems[0]) if said else problems == []
    assert bind_memory([], kernel({}, [])) == []


def test_a_kernel_that_does_not_tell_its_policy() -> None:
    assert memory_nodes(lambda *_: -errno.EPERM) is None
    assert memory_nodes(lambda *_: 0) == []  # MPOL_DEFAULT


def start(
    ranks: list[dict[str, Any]], *program: str, **env: str
) -> "subprocess.CompletedProcess[str]":
    secret = env.pop("FTCLUSTER_SECRET_ENV", "")
    placement = {"kinds": [{"env": env, "ranks": ranks}], "hosts": [[0, 1]]}
    return subprocess.run(
        [sys.executable, "-m", "ftcluster_train.host.bind", *program],
        env={
            "PATH": os.environ["PATH"], "PYTHONPATH": NODE_PATH, "PMI_RANK": "0",
            "FTCLUSTER_PLACEMENT": json.dumps(placement),
            "FTCLUSTER_SECRET_ENV": secret,
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip


SHOW = (
    sys.executable, "-c",
    "import json, os; from ftcluster_train.rank.bind import memory_nodes; print(json.dumps("
    "[sorted(os.sched_getaffinity(0)), memory_nodes(), dict(os.environ)]))",
)  # fmt: skip


def test_the_program_runs_on_the_cores_of_the_plan() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    last = allowed[-1]
    done = start([{"cpus": str(last), "threads": 1, "memory": [0]}], *SHOW, KMP_BLOCKTIME="1")
    assert done.returncode == 0, done.stderr
    affinity, memory, environment = json.loads(done.stdout)
    assert affinity == [last]
    assert memory in ([0], None) or "as the preferred memory node" in done.stderr
    assert environment["OMP_NUM_THREADS"] == environment["KMP_BLOCKTIME"] == "1"
    assert environment["RANK"] == "0"
    assert bind.PLACEMENT_VARIABLE not in environment


def test_a_rank_takes_the_variables_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "secret_env"
    ranks = [{"cpus": str(min(os.sched_getaffinity(0))), "threads": 1, "memory": []}]
    file.write_text(pack_env({"OWN_KEY": "s3cret\n{{ x }}", "RANK": "7"}))
    found = json.loads(start(ranks, *SHOW, FTCLUSTER_SECRET_ENV=str(file)).stdout)[2]
    assert (found["OWN_KEY"], found["RANK"]) == ("s3cret\n{{ x }}", "0")
    assert "FTCLUSTER_SECRET_ENV" not in found
    file.write_text("s3cret")
    done = start(ranks, *SHOW, FTCLUSTER_SECRET_ENV=str(file))
    assert (done.returncode, "s3cret" in done.stdout + done.stderr) == (1, False)
    assert "the file with the variables of --env, cannot be read" in done.stdout


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"TORCHINDUCTOR_CACHE_DIR": "/own", "PYTHONPYCACHEPREFIX": "/p/cache"}, "/own"),
        ({"PYTHONPYCACHEPREFIX": "/p/cache"}, "/p/cache/torchinductor-{}"),
        ({"HOME": "HERE"}, "HERE/.cache/torchinductor-{}"),
        ({"HOME": "/nowhere"}, ""),
    ],
)
def test_compiled_code_is_kept_where_no_other_user_may_write(
    tmp_path: Path, given: dict[str, str], folder: str
) -> None:
    cpus = str(min(os.sched_getaffinity(0)))
    given = {name: value.replace("HERE", str(tmp_path)) for name, value in given.items()}
    done = start([{"cpus": cpus, "threads": 1, "memory": []}], *SHOW, **given)
    found = json.loads(done.stdout)[2].get("TORCHINDUCTOR_CACHE_DIR", "")
    assert found == folder.format(os.uname().nodename).replace("HERE", str(tmp_path))


def test_ranks_of_torchrun_have_its_numbers_and_the_cores_of_their_local_rank() -> None:
    last = sorted(os.sched_getaffinity(0))[-1]
    ranks = [{"cpus": "900", "threads": 9, "memory": []}]
    ranks.append({"cpus": str(last), "threads": 1, "memory": []})
    placement = {"kinds": [{"env": {}, "ranks": ranks}], "hosts": [[0, 4]]}
    numbers = {
        "RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",  # one host of the plan is missing
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "ftcluster_train.host.bind", *SHOW],
        env={
            "PATH": os.environ["PATH"], "PYTHONPATH": NODE_PATH, **numbers,
            "TORCHELASTIC_RUN_ID": "1", "FTCLUSTER_PLACEMENT": json.dumps(placement),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    affinity, _, environment = json.loads(done.stdout)
    assert affinity == [last]
    assert {name: environment[name] for name in numbers} == numbers


def test_cores_that_are_not_allowed_are_said_in_one_line_and_survived() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cpus = f"{allowed[0]},900-903"
    done = start([{"cpus": cpus, "threads": 5, "memory": []}], *SHOW)
    affinity, _, environment = json.loads(done.stdout)
    assert affinity == [allowed[0]]
    assert environment["OMP_NUM_THREADS"] == "1"  # no more than the cores that exist
    [line] = done.stderr.splitlines()
    assert line.startswith("ftcluster: rank 0 on ")
    assert line.endswith(
        f"the planned CPUs 900-903 are not allowed here, so the rank runs on CPUs {allowed[0]}"
    )
    done = start([{"cpus": "900", "threads": 64, "memory": []}], *SHOW)
    affinity, _, environment = json.loads(done.stdout)
    assert affinity == allowed
    assert environment["OMP_NUM_THREADS"] == str(len(allowed))


def test_the_program_has_a_umask_and_its_exit_code_comes_through() -> None:
    rank = [{"cpus": "0-1023", "threads": 1, "memory": []}]
    before = os.umask(0)  # an SSH session has the umask of the host's administrator
    try:
        done = start(rank, "/bin/sh", "-c", "umask; exit 7")
    finally:
        os.umask(before)
    assert (done.stdout.strip(), done.returncode) == ("0027", 7)
    done = start(rank, "/no/such/program")
    assert done.returncode == 127
    assert "/no/such/program cannot be started: No such file or directory" in done.stderr


@pytest.mark.parametrize(("given", "mode"), [({}, "1"), ({"PYTHONUTF8": "0"}, "0")])
def test_a_rank_prints_and_reads_utf8_whatever_the_hosts_locale_is(
    given: dict[str, str], mode: str
) -> None:
    rank = [{"cpus": "0-1023", "threads": 1, "memory": []}]
    program = "import sys; print(sys.flags.utf8_mode)"
    done = start(rank, sys.executable, "-c", program, LC_ALL="C.UTF-8", **given)
    assert done.stdout.split() == [mode]


@pytest.mark.parametrize("missing", [bind.PLACEMENT_VARIABLE, "PMI_RANK"])
def test_a_launch_without_a_plan(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bind.PLACEMENT_VARIABLE, json.dumps(PLACEMENT))
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.delenv(missing)
    monkeypatch.setattr(sys, "argv", ["bind", "/bin/true"])
    assert bind.main() == 2


@pytest.mark.parametrize("alone", [True, False])
def test_ranks_do_not_keep_hydras_listening_socket_open_to_others(alone: bool) -> None:
    program = (
        "import os, sys; from ftcluster_train.rank.bind import "
        "close_inherited_listeners as close; close(sys.argv[1] == 'True'); "
        "print([os.path.exists(f'/proc/self/fd/{number}') for number in sys.argv[2:]])"
    )
    with socket.create_server(("", 0)) as listener, socket.socket() as other:
        kept = [listener.fileno(), other.fileno()]
        done = subprocess.run(
            [sys.executable, "-c", program, str(alone), *map(str, kept)],
            env={**os.environ, "PYTHONPATH": NODE_PATH}, pass_fds=kept, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "[False, True]\n"
        device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
        assert device.rstrip(b"\0") == (b"lo" if alone else b"")
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5).close()
