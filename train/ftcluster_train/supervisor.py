"""Runs one mpirun on the head, outlives the control node's connection, and ends what it started.

    python -m ftcluster_train.supervisor start RUN_DIR   go to the background and launch
    python -m ftcluster_train.supervisor stop RUN_DIR    end the run, say whether it was running
    python -m ftcluster_train.supervisor sweep RUN_DIR   end what is left of the run on this host

`start RUN_DIR --hub-token` gives the ranks the token for the Hugging Face Hub that is on stdin.

Standard library only: it starts at once and does not depend on what it watches.
"""

import contextlib
import json
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ftcluster_train.distributed import oneccl
from ftcluster_train.errors import TrainError
from ftcluster_train.io.events import EventWriter
from ftcluster_train.io.permissions import GROUP_READS
from ftcluster_train.launcher.host_watchdog import Connections, as_error
from ftcluster_train.launcher.hub_token import give, take_back, token_file
from ftcluster_train.launcher.monitors import Ending, ScriptWatch, TrainingWatch, Watch
from ftcluster_train.launcher.ssh_check import Host, unreachable
from ftcluster_train.launcher.stack_lock import hold_stack, own_stack

# For the meeting point, within what the firewall guards. Not those that torch and accelerate take
# first: local users other than the cluster's account are kept from these.
PORTS = range(29550, 29600)
GRACE_SECONDS = 10.0  # for ranks that were asked to end
PAUSE_SECONDS = 0.2
# of the host's environment, the ranks get only what they may need; the rest is the launch's
INHERITED = ("HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
INHERITED_PREFIXES = ("HF_", "MLFLOW_")
CREDENTIAL = re.compile("TOKEN(?!_PATH)|PASSWORD|SECRET|KEY")  # in names of variables


class Stopped(Exception):
    """SIGTERM or SIGINT has come."""


def supervise(run_dir: Path, hub_token: str = "") -> int:
    """Launch, wait, report and clean up; returns mpirun's exit code.

    Args:
        run_dir: has the launch.
        hub_token: on all hosts while the ranks are; "" for none.
    """
    events = EventWriter(run_dir)
    launch = json.loads((run_dir / "launch.json").read_text(encoding="utf-8"))
    os.environ["FTCLUSTER_RUN"] = launch["env"]["FTCLUSTER_RUN"]  # what `sweep` knows ours by
    try:
        return _supervise(run_dir, launch, events, hub_token)
    except Stopped:  # outside of what looks after mpirun
        sweep(launch["env"]["FTCLUSTER_RUN"])
        forget_token(run_dir)
        events.write("end", state="stopped", exit_code=130, seconds=0.0)
        return 130
    finally:
        forget_token(run_dir)  # also after what nobody has thought of


def _supervise(run_dir: Path, launch: dict[str, Any], events: EventWriter, hub_token: str) -> int:
    began = time.monotonic()
    stack = own_stack()
    try:
        hold_stack(stack)
    except TrainError as error:
        refuse(events, error)
        return 1
    launch = by_real_path(launch, stack)
    environment = launch_environment(launch, events) if reaches_all(launch, events) else None
    if environment is None:
        return 1
    others = [Host(**host) for host in launch["hosts"][1:]]
    if hub_token and not has_token(hub_token, run_dir, others, launch["ssh_config"], events):
        return 1
    run = environment["FTCLUSTER_RUN"]
    if "script" not in launch:
        environment["HF_HUB_OFFLINE"] = "1"  # model and data have been fetched by `prepare`
    watch = make_watch(run_dir, launch, events)
    ending = Ending("failed", 1, [])
    events.write("phase", doing="starting the ranks")
    process = subprocess.Popen(
        without_credentials(launch["argv"], environment, launch["env"]),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if "script" in launch else subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        lost = _read(process, watch, Connections(others, lambda: processes_of(run)))
        ending = watch.ending(process.wait())
        if lost:  # what the ranks have said since is that they were ended
            ending = Ending("failed", 1, [as_error(host) for host in lost])
    except Stopped:
        ending = Ending("stopped", 130, [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ending is not broken off
        end_group(process)
        if ending.state != "done":
            wait_for_the_end(run)
        sweep(run)
        forget_token(run_dir)
        if ending.state == "stopped":
            _read_the_rest(process, watch)
        for message in {str(error["message"]): error for error in ending.errors}.values():
            events.write("error", **message)
        events.write(
            "end",
            state=ending.state,
            exit_code=ending.exit_code,
            seconds=round(time.monotonic() - began, 2),
        )
    return ending.exit_code


def make_watch(run_dir: Path, launch: dict[str, Any], events: EventWriter) -> Watch:
    """Who listens to the ranks of this launch."""
    script = launch.get("script")
    if script:
        run, hosts = launch["env"]["FTCLUSTER_RUN"], launch["hosts"]
        head = hosts[0]["name"] if len(hosts) > 1 else ""
        return ScriptWatch(run_dir, run, script["world_size"], events, head)
    return TrainingWatch(run_dir)


def _read(process: "subprocess.Popen[bytes]", watch: Watch, connections: Connections) -> list[Host]:
    """Hand what mpirun says to the watch until it says no more; returns the hosts that were lost.

    From when a rank has failed, what is left is given some time, asked to end, and made to; from
    when a host was lost, it is asked at once.
    """

    def end_ranks(_number: int, _frame: FrameType | None) -> None:
        if process.poll() is None and not asked:
            asked.append(True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        else:
            sweep(os.environ["FTCLUSTER_RUN"])

    asked: list[bool] = []
    lost: list[Host] = []
    armed = False
    signal.signal(signal.SIGALRM, end_ranks)
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe:
                selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select(PAUSE_SECONDS):
                data = os.read(key.fd, 65536)
                if data:
                    watch.feed(key.data, data)
                else:
                    selector.unregister(key.fileobj)
            watch.pause()
            if not (watch.over or lost):
                lost = connections.lost()
            if (watch.over or lost) and not armed:
                armed = True
                # after a failure the others may still have something to say; nobody comes back
                signal.setitimer(signal.ITIMER_REAL, PAUSE_SECONDS if lost else GRACE_SECONDS / 2)
    watch.close()
    return lost


def _read_the_rest(process: "subprocess.Popen[bytes]", watch: Watch) -> None:
    """Hand over what mpirun had said before it was ended."""
    for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
        if pipe:
            os.set_blocking(pipe.fileno(), False)
            with contextlib.suppress(BlockingIOError):  # somebody else has it open
                while data := os.read(pipe.fileno(), 65536):
                    watch.feed(name, data)  # type: ignore[arg-type]
    watch.close()


def reaches_all(launch: dict[str, Any], events: EventWriter) -> bool:
    """Whether the head reaches all other hosts; if not, writes why and the run's end."""
    if not launch["ssh_config"]:
        return True
    events.write("phase", doing="looking whether the head reaches the other hosts")
    hosts = [Host(**host) for host in launch["hosts"][1:]]
    stack = launch.get("stack")
    problems = unreachable(hosts, launch["ssh_config"], Path(stack) if stack else None)
    return _no_problem(problems, events)


def has_token(
    token: str, run_dir: Path, others: Sequence[Host], ssh_config: str, events: EventWriter
) -> bool:
    """Whether all hosts have got the token; if not, writes why and the run's end."""
    problems = give(token, run_dir, others, ssh_config)
    if problems:
        take_back(run_dir, others, ssh_config)
    return _no_problem(problems, events)


def _no_problem(problems: Sequence[str], events: EventWriter) -> bool:
    for problem in problems:
        name = problem.split()[0]
        events.write("error", message=problem, hint="no rank was started", host=name, rank=None)
    if problems:
        events.write("end", state="failed", exit_code=1, seconds=0.0)
    return not problems


def forget_token(run_dir: Path) -> None:
    """Remove the run's token for the Hub, where it has one, from all hosts."""
    if token_file(run_dir).exists():
        launch = json.loads((run_dir / "launch.json").read_text(encoding="utf-8"))
        others = [Host(**host) for host in launch["hosts"][1:]]
        take_back(run_dir, others, launch["ssh_config"])


def launch_environment(launch: dict[str, Any], events: EventWriter) -> dict[str, str] | None:
    """mpirun's environment; None where it cannot be had, with why and the run's end."""
    try:
        sourced = oneccl.variables_for(launch["env"], host_path())
        return rank_environment(launch["env"], Path(launch["argv"][0]).parent, sourced)
    except TrainError as error:
        refuse(events, error)
        return None


def refuse(events: EventWriter, error: TrainError) -> None:
    """Write why no rank is started, and the run's end."""
    host = socket.gethostname()
    events.write("error", message=error.message, hint=error.hint, host=host, rank=None)
    events.write("end", state="failed", exit_code=1, seconds=0.0)


def by_real_path(launch: dict[str, Any], stack: Path) -> dict[str, Any]:
    """The same launch by the real folder of its stack: the link may lead elsewhere while it lasts.

    What a script is given stays as it is.
    """
    if "stack" not in launch:
        return launch
    link, real = f"{launch['stack']}/", f"{stack}/"
    argv: list[str] = launch["argv"]
    own = argv.index("ftcluster_train.bind") + 2  # the program's first word is the stack's as well
    ours = [word.replace(link, real) if word.startswith(link) else word for word in argv[:own]]
    env = {name: value.replace(link, real) for name, value in launch["env"].items()}
    return {**launch, "argv": [*ours, *argv[own:]], "env": env, "stack": str(stack)}


def host_path() -> str:
    """PATH of this host."""
    return os.environ.get("PATH", os.defpath)


def rank_environment(
    launch: Mapping[str, str], bin_dir: Path, sourced: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of mpirun and its ranks.

    Args:
        launch: the variables of the plan.
        bin_dir: the stack's programs; Hydra looks for its own on PATH.
        sourced: what the backend's own scripts have set; their PATH comes after the stack's, so
            that mpirun and Hydra remain those of the plan.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key in INHERITED
        or key.startswith(INHERITED_PREFIXES)
        or key.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }
    sourced = sourced or {}
    path = f"{bin_dir}{os.pathsep}{sourced.get('PATH') or host_path()}"
    return {
        **inherited,
        **sourced,
        "PATH": path,
        "MASTER_PORT": str(free_port()),
        **launch,
    }


def without_credentials(
    argv: Sequence[str], environment: Mapping[str, str], launch: Mapping[str, str]
) -> list[str]:
    """mpirun's command line, so that credentials of this host's environment stay on this host.

    Ranks of this host have them from mpirun itself. To other hosts Hydra sends the environment
    unencrypted (seen with Intel MPI 2021.18); ranks there have what their own host gives an SSH
    session.
    """
    kept = sorted(
        name
        for name, value in environment.items()
        if name not in launch
        and (CREDENTIAL.search(name) or (name.lower().endswith("_proxy") and "@" in value))
    )
    return [argv[0], *(["-genvexcl", ",".join(kept)] if kept else []), *argv[1:]]


def free_port() -> int:
    """A TCP port of the cluster's own range that is free on this host now.

    Raises:
        TrainError: there is none.
    """
    ports = list(PORTS)
    random.shuffle(ports)  # two launches at the same moment do not take the same one
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise TrainError(
        f"no TCP port from {PORTS.start} to {PORTS.stop - 1} is free on {socket.gethostname()}, "
        "and the ranks have nowhere to meet",
        f"end what has them there: ss -ltnp 'sport >= :{PORTS.start} and sport < :{PORTS.stop}'",
    )


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End mpirun and its process group: SIGTERM, a grace period, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


def sweep(run: str) -> list[int]:
    """Kill what is left of a run on this host; returns the process ids."""
    found = []
    for pid in processes_of(run):
        with contextlib.suppress(OSError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)
            found.append(pid)
    return found


def wait_for_the_end(run: str) -> None:
    """Give what was asked to end a grace period: mpirun itself does not wait for it."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(_lives(pid) for pid in processes_of(run)):
        time.sleep(0.1)


def processes_of(run: str) -> list[int]:
    """Process ids of a run on this host, without this process.

    A process belongs to the run if its environment says FTCLUSTER_RUN=<id>: Hydra's proxies and
    ranks are in sessions of their own, so the process group does not hold them.
    """
    mark = f"FTCLUSTER_RUN={run}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return found


def start(run_dir: Path, hub_token: str = "") -> int:
    """Go to the background, in a session of its own, and supervise there."""
    os.umask(GROUP_READS)
    if os.fork():
        pid_file = run_dir / "supervisor.pid"
        while not pid_file.exists():
            time.sleep(0.01)
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    log = os.open(run_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGTERM, _raise_stopped)
    signal.signal(signal.SIGINT, _raise_stopped)
    _write_pid(run_dir / "supervisor.pid")
    try:
        code = supervise(run_dir, hub_token)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _write_pid(path: Path) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{os.getpid()}\n", encoding="ascii")
    temporary.rename(path)


def _raise_stopped(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def _lives(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def stop(run_dir: Path) -> str:
    """End a run; returns "stopped", or "not running" where there is none."""
    try:
        pid = int((run_dir / "supervisor.pid").read_text(encoding="ascii"))
        if not _lives(pid):
            return "not running"
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return "not running"
    deadline = time.monotonic() + 3 * GRACE_SECONDS
    while time.monotonic() < deadline:
        if not _lives(pid):
            return "stopped"
        time.sleep(0.1)
    raise SystemExit(f"the supervisor (process {pid}) does not end")


def main() -> int:
    """Entry point; returns the exit code."""
    verb, run_dir, *options = sys.argv[1:]
    if verb == "start":
        return start(Path(run_dir), sys.stdin.read().strip() if "--hub-token" in options else "")
    if verb == "sweep":
        print(f"ended {len(sweep(Path(run_dir).name))}")
        token_file(Path(run_dir)).unlink(missing_ok=True)
    else:
        print(stop(Path(run_dir)))
        forget_token(Path(run_dir))  # where the supervisor was killed
    return 0


if __name__ == "__main__":
    sys.exit(main())
