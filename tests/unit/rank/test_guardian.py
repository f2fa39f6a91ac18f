"""Guardians with real processes: whichever process is killed first, no rank remains."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftcluster_common.protocol.timeouts import Timeouts
from ftcluster_train.io.activity import process_state
from ftcluster_train.rank.guardian import connect
from ftcluster_train.supervisor.heartbeats import Heartbeats
from tests.programs import NODE_PATH
from tests.unit.supervisor.test_heartbeats import HOST

GUARD = (
    "import sys; from ftcluster_train.rank import guardian; guardian.GRACE_SECONDS = 0.5; "
    "sys.exit(guardian.guard(sys.argv[1:], 0))"
)
# a rank that has started another process and ignores SIGTERM
RANK = (
    "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "other = subprocess.Popen(['sleep', '300'], start_new_session=True); "
    "open(sys.argv[1], 'w').write(f'{os.getpid()} {other.pid}'); time.sleep(300)"
)


class Guarded:
    """A guardian with its rank, and the supervisor's end of the connection."""

    def __init__(self, folder: Path, *program: str, guard: str = GUARD) -> None:
        self.pids = folder / "pids"
        rank = (sys.executable, "-c", RANK, str(self.pids))
        (folder / "secret").write_text("secret\n")
        self.beats = Heartbeats("127.0.0.1", 0, "secret", [HOST], time.monotonic(), Timeouts(1.4))
        self.process = subprocess.Popen(
            [sys.executable, "-c", guard, *(program or rank)],
            env={
                **os.environ, "PYTHONPATH": NODE_PATH,
                "FTCLUSTER_SUPERVISOR": self.beats.listens_at,
                "FTCLUSTER_GUARD_FILE": str(folder / "secret"), "FTCLUSTER_TIMEOUT": "1.4",
            },
        )  # fmt: skip

    def until(self, done: Callable[[], object], seconds: float = 15.0, poll: bool = True) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline
            if poll:
                self.beats.poll(time.monotonic())
            time.sleep(0.02)

    def started(self) -> list[int]:
        self.until(lambda: self.pids.exists() and self.pids.read_text())
        return [int(pid) for pid in self.pids.read_text().split()]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    one = Guarded(tmp_path)
    yield one
    one.beats.close()
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def gone(pids: list[int]) -> bool:
    return all(process_state(pid).get("state", "Z") == "Z" for pid in pids)


def test_the_supervisors_end_is_the_ranks(guarded: Guarded) -> None:
    pids = guarded.started()
    guarded.beats.close()
    guarded.until(lambda: gone(pids), poll=False)
    assert guarded.process.wait(5) == 128 + signal.SIGKILL


def test_it_leaves_the_cores_to_its_rank(guarded: Guarded) -> None:
    """The guardian sends and receives a sign of life every second."""
    guarded.started()
    status = Path(f"/proc/{guarded.process.pid}/status")

    def slept() -> int:
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    before, until = slept(), time.monotonic() + 2
    guarded.until(lambda: time.monotonic() > until)
    assert slept() - before < 15


def test_it_may_have_inherited_a_thousand_files(tmp_path: Path) -> None:
    """On the head of hundreds of hosts, mpirun passes open files on."""
    files = (
        "import os, resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard)); "
        "[os.dup(0) for _ in range(1100)]; "
    )
    one = Guarded(tmp_path, "sleep", "0.5", guard=files + GUARD)
    one.until(lambda: one.beats.lives[0].exit == 0)
    one.beats.close()
    assert one.process.wait(15) == 0


def test_where_the_kernel_does_not_tell_of_a_ranks_end_it_looks(tmp_path: Path) -> None:
    old = GUARD.replace("guardian.GRACE", "guardian.open_end = lambda pid: None; guardian.GRACE")
    one = Guarded(tmp_path, "sleep", "0.5", guard=old)
    one.until(lambda: one.beats.lives[0].exit == 0)
    one.beats.close()
    assert one.process.wait(15) == 0


def test_a_silent_supervisor_is_gone(guarded: Guarded) -> None:
    pids = guarded.started()
    guarded.until(lambda: gone(pids), poll=False)


def test_a_killed_guardian_takes_its_rank_along(guarded: Guarded) -> None:
    rank, _ = guarded.started()
    guarded.process.kill()
    guarded.process.wait()
    guarded.until(lambda: gone([rank]) and guarded.beats.lives[0].lost)


def test_an_order_ends_also_a_rank_that_is_stopped(guarded: Guarded) -> None:
    pids = guarded.started()
    os.kill(pids[0], signal.SIGSTOP)
    guarded.until(lambda: guarded.beats.lives[0].stopped is not None)
    guarded.beats.send(b"end\n")
    guarded.until(lambda: gone(pids))


def test_a_killed_rank_is_told_with_its_signal(guarded: Guarded) -> None:
    pids = guarded.started()
    os.kill(pids[0], signal.SIGKILL)
    guarded.until(lambda: guarded.beats.lives[0].exit is not None)
    assert (guarded.beats.lives[0].exit, guarded.beats.lives[0].oom) == (-signal.SIGKILL, False)
    guarded.until(lambda: gone(pids))  # the processes that the rank has started have ended too


def test_a_rank_reports_its_step_and_its_exit_code_comes_through(tmp_path: Path) -> None:
    rank = (
        "import os, sys, time; fd = int(os.environ['FTCLUSTER_PROGRESS_FD']); "
        "os.write(fd, b'7\\n[]\\n{\"pid\": \"x\"}\\n' + b'[' * 60000 + b'\\n'); time.sleep(0.5); "
        'os.write(fd, b\'{"step": 3, "doing": "forward"}\\n\'); time.sleep(1.5); sys.exit(7)'
    )
    one = Guarded(tmp_path, sys.executable, "-c", rank)
    one.until(lambda: one.process.poll() is not None)
    one.until(lambda: one.beats.lives[0].exit is not None)
    one.beats.close()
    life = one.beats.lives[0]
    assert (one.process.returncode, life.exit, life.step, life.doing) == (7, 7, 3, "forward")


def test_a_guardian_that_was_hung_up_on_connects_again(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    said = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def supervisor() -> None:
            listener.accept()[0].close()  # as if too many connections had arrived
            peer, _ = listener.accept()
            said.append(peer.recv(100))
            peer.sendall(b"beat\n")
            peer.close()

        thread = threading.Thread(target=supervisor)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with connect(address, tmp_path / "secret", 3, 20) as connection:
            thread.join()
            assert connection.recv(100) == b"beat\n"
    assert said == [b"secret 3\n"]


def test_without_a_supervisor_no_rank_is_started(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    done = subprocess.run(
        [sys.executable, "-c", GUARD, "touch", str(tmp_path / "started")],
        env={
            **os.environ, "PYTHONPATH": NODE_PATH, "FTCLUSTER_SUPERVISOR": "127.0.0.1:1",
            "FTCLUSTER_GUARD_FILE": str(tmp_path / "secret"), "FTCLUSTER_TIMEOUT": "0.25",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot reach the supervisor at 127.0.0.1:1" in done.stderr
    assert not (tmp_path / "started").exists()


def test_sighup_after_sigterm_leaves_a_training_the_time_to_save(tmp_path: Path) -> None:
    """systemd sends both to every process of a login session, for example at a shutdown."""
    program = (
        "import os, signal, sys, time; "
        "asked = []; signal.signal(signal.SIGTERM, lambda *_: asked.append(1)); "
        "os.write(int(os.environ['FTCLUSTER_PROGRESS_FD']), "
        """b'{\"step\": 3, \"doing\": \"forward\"}\\n'); """
        "open(sys.argv[1], 'w').write(f'{os.getpid()} 0'); \n"
        "while not asked: time.sleep(0.01)\n"
        "time.sleep(0.5); open(sys.argv[2], 'w').write('saved')"
    )
    saved = tmp_path / "saved"
    guarded = Guarded(tmp_path, sys.executable, "-c", program, str(tmp_path / "pids"), str(saved))
    try:
        guarded.started()
        [life] = guarded.beats.lives
        guarded.until(lambda: life.step == 3)
        pid = guarded.process.pid
        kill = f"kill -TERM {pid}; kill -HUP {pid}; sleep 1; true"
        sender = subprocess.Popen(["bash", "-c", kill])
        guarded.until(lambda: life.exit is not None)
        assert (life.exit, saved.read_text()) == (0, "saved")
        assert life.received
        assert (life.received.pid, life.received.program) == (sender.pid, "bash")
        assert life.received.number == signal.SIGTERM
        sender.wait(10)
    finally:
        guarded.beats.close()
        guarded.process.kill()
        guarded.process.wait()
