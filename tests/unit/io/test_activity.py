"""The activity of processes, read from the kernel."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftcluster_train.io.activity import activity, descendants, sockets_of, tcp_bytes
from tests.programs import wait_for

# a thread starts a child, which starts another child
TREE = (
    "import subprocess, sys, threading, time\n"
    "work = [sys.executable, '-c', sys.argv[1]]\n"
    "threading.Thread(target=lambda: subprocess.run(work)).start()\n"
)


@contextmanager
def program(*words: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a Python program; at the end, kill it and all processes that it has started."""
    other = subprocess.Popen([sys.executable, "-c", *map(str, words)], start_new_session=True)
    try:
        yield other
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_the_whole_tree_counts() -> None:
    with program(TREE, "import time\nwhile time.process_time() < 0.5: pass") as other:
        wait_for(lambda: any(pid != other.pid for pid in descendants(os.getpid())))
        wait_for(lambda: activity(os.getpid(), ())["cpu"] >= 0.5)
        before = activity(os.getpid(), ())["cpu"]
        wait_for(lambda: descendants(os.getpid()) == [other.pid])  # the work has ended
        assert activity(os.getpid(), ())["cpu"] >= before


def test_a_stop_is_that_of_a_main_process() -> None:
    with program(TREE, "import time; time.sleep(60)") as other:
        wait_for(lambda: len(descendants(os.getpid())) == 2)
        (work,) = set(descendants(os.getpid())) - {other.pid}
        # a process that is stopped before it executes its program blocks its parent (vfork)
        wait_for(lambda: b"threading" not in Path(f"/proc/{work}/cmdline").read_bytes())
        os.kill(work, signal.SIGSTOP)
        wait_for(lambda: activity(os.getpid(), (other.pid, work))["state"] == "T")
        wait_for(lambda: activity(os.getpid(), (other.pid,))["state"] == "S")
    assert activity(os.getpid(), ()) == {}


THREAD = (
    "import threading, time\n"
    "def work():\n"
    "    while True: pass\n"
    "threading.Thread(target=work, daemon=True).start()\n"
    "threading.Event().wait()\n"
)


def test_a_thread_that_others_leave_no_cpu_is_not_idle() -> None:
    with program(THREAD) as other:
        wait_for(lambda: len(list(Path(f"/proc/{other.pid}/task").iterdir())) == 2)
        # as if the processes had used no CPU time since
        starved = {"cpu": 1e9, "wire": 0}
        wait_for(lambda: activity(os.getpid(), (other.pid,), starved)["state"] == "R")


# vfork: the parent is in state D until the child executes, and the child waits for the FIFO
ASLEEP = (
    "import os, sys\n"
    "opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)\n"
    "while True:\n"
    "    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opens]), 0)\n"
)


# meanwhile the main thread waits in state S
IN_A_THREAD = (
    ASLEEP.replace("while True:", "import threading, time\ndef wait():")
    + "threading.Thread(target=wait).start()\ntime.sleep(60)\n"
)


def test_a_thread_that_waits_for_a_disk_is_seen(tmp_path: Path) -> None:
    """transformers loads weights in such threads while the main thread waits."""
    os.mkfifo(tmp_path / "fifo")
    with program(IN_A_THREAD, tmp_path / "fifo") as other:
        main = Path(f"/proc/{other.pid}/task/{other.pid}/stat")
        wait_for(
            lambda: (
                activity(os.getpid(), (other.pid,))["state"] == "D"
                and main.read_text().rpartition(")")[2].split()[0] == "S"
            )
        )


def test_an_uninterruptible_sleep_is_one_until_the_process_wakes_up(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with program(ASLEEP, fifo) as other:
        wait_for(lambda: activity(os.getpid(), (other.pid,))["sleep"])
        first = activity(os.getpid(), (other.pid,))["sleep"]
        assert first[0] == other.pid
        assert activity(os.getpid(), (other.pid,))["sleep"] == first
        assert activity(os.getpid(), ())["sleep"] is None  # not one of its main processes
        os.close(os.open(fifo, os.O_WRONLY))
        wait_for(lambda: activity(os.getpid(), (other.pid,))["sleep"] not in (None, first))


def test_bytes_on_the_wire_are_those_of_the_processes_own_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        inodes = sockets_of([os.getpid()])
        assert os.fstat(ours.fileno()).st_ino in inodes
        sender = {os.fstat(ours.fileno()).st_ino}
        sent, idle = tcp_bytes(sender), tcp_bytes({os.fstat(listener.fileno()).st_ino})
        ours.sendall(b"x" * 50_000)
        wait_for(lambda: tcp_bytes(sender) - sent >= 50_000)
        assert tcp_bytes({os.fstat(listener.fileno()).st_ino}) == idle
        assert tcp_bytes(set()) == 0
        with program(TREE, "import time; time.sleep(60)"):
            wait_for(lambda: len(descendants(os.getpid())) == 2)
            before = activity(os.getpid(), ())
            assert activity(os.getpid(), (), {**before, "wire": -1})["wire"] == before["wire"]
            # the disk is not checked while processes compute
            assert activity(os.getpid(), (), {"cpu": before["cpu"] - 1, "wire": -1})["wire"] == -1
        ours.close()
        theirs.close()
