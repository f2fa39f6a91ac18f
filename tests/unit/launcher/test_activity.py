"""What processes do, from the kernel."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from ftcluster_train.launcher.activity import activity, descendants, sockets_of, tcp_bytes

# a child that a thread has started, which starts one itself
TREE = (
    "import subprocess, sys, threading, time\n"
    "work = [sys.executable, '-c', sys.argv[1]]\n"
    "threading.Thread(target=lambda: subprocess.run(work)).start()\n"
)


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def tree(work: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", TREE, work], start_new_session=True)


def test_the_whole_tree_counts() -> None:
    other = tree("import time\nwhile time.process_time() < 0.5: pass")
    try:
        until(lambda: any(pid != other.pid for pid in descendants(os.getpid())))
        until(lambda: activity(os.getpid(), ())["cpu"] >= 0.5)
        before = activity(os.getpid(), ())["cpu"]
        until(lambda: descendants(os.getpid()) == [other.pid])  # the work has ended
        assert activity(os.getpid(), ())["cpu"] >= before
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_a_stop_is_that_of_a_main_process() -> None:
    other = tree("import time; time.sleep(60)")
    try:
        until(lambda: len(descendants(os.getpid())) == 2)
        (work,) = set(descendants(os.getpid())) - {other.pid}
        os.kill(work, signal.SIGSTOP)
        until(lambda: activity(os.getpid(), (other.pid, work))["state"] == "T")
        assert activity(os.getpid(), (other.pid,))["state"] == "S"
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
    assert activity(os.getpid(), ()) == {}


def test_bytes_on_the_wire_are_those_of_the_processes_own_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        inodes = sockets_of([os.getpid()])
        assert os.fstat(ours.fileno()).st_ino in inodes
        sender = {os.fstat(ours.fileno()).st_ino}
        before, idle = tcp_bytes(sender), tcp_bytes({os.fstat(listener.fileno()).st_ino})
        ours.sendall(b"x" * 50_000)
        until(lambda: tcp_bytes(sender) - before >= 50_000)
        assert tcp_bytes({os.fstat(listener.fileno()).st_ino}) == idle
        assert tcp_bytes(set()) == 0
        other = tree("import time; time.sleep(60)")
        try:
            until(lambda: len(descendants(os.getpid())) == 2)
            idle = activity(os.getpid(), ())
            assert activity(os.getpid(), (), {**idle, "wire": -1})["wire"] == idle["wire"]
            # it is not looked at while they compute
            assert activity(os.getpid(), (), {"cpu": idle["cpu"] - 1, "wire": -1})["wire"] == -1
        finally:
            os.killpg(other.pid, signal.SIGKILL)
            other.wait()
        ours.close()
        theirs.close()
