# Apache-2.0 (see LICENSE)
"""Copies the events and logs of a running run to the control node.

Each command on the host needs an SSH session and a sudo session. To keep the number of commands
low, a command waits on the host until a file contains new text. Only parts of very long files are
copied.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import (
    MARK,
    SUPERVISOR_GONE,
    TELL,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.samples import WHOLE_BYTES, samples
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.typed import NAME as PROMPTS
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.typed import Typed

# a supervisor counts as dead only after this time, because the run may just have ended
GONE_SECONDS = 5.0
STARTS_SECONDS = 60.0  # longest time from the end of the preparation to the supervisor's start
WAIT_SECONDS = 20  # time for which a command on the host waits, even if the connection is lost
BUSY_SECONDS = 2.0  # longest pause after a command that returned new text
EVENTS, OUTPUT = "events.jsonl", "output.jsonl"
PIECE_BYTES = 1 << 20  # maximum bytes of a file in one response
TAIL_BYTES = 64 << 10  # bytes at the end of a file that are searched for the last event
LAST_BYTES = 4 << 20  # a copy of a log begins at most this far before its end
SPARE_BYTES = 256 << 20  # bytes that must stay free on the control node's disk
MOST_BYTES = 1 << 42  # maximum size of a run's file; ext4 allows at most 16 TiB
SHOWN = 8000  # maximum characters of a run's logs in an error
FILE = r"[0-9.-]{1,60}"  # inode and time in seconds, see stat(1)
ROTATED = "[lines are missing here: the log was rotated twice before they were copied]\n"
EARLIER = "[earlier lines are in {}/logs on the head]\n"


@dataclass(frozen=True)
class _Piece:
    """A piece of a file on a host.

    Attributes:
        file: inode and creation time, which together identify the file (inodes are reused); "0" if
            there is no file.
        start: position of the first byte.
        size: size of the file in bytes.
        data: content of the piece.
    """

    file: str = "0"
    start: int = 0
    size: int = 0
    data: bytes = b""

    @property
    def full(self) -> bool:
        """True if the piece has the maximum length, so the file may contain more bytes."""
        return len(self.data) == PIECE_BYTES


@dataclass
class _Log:
    """The state of copying a log.

    Attributes:
        name: file name in the run's folder.
        write: function that receives the new text.
        mark: function that encodes a notice about lines that are not copied.
        offset: position of the next byte to copy. Before the first read, a negative position counts
            from the end of the file.
        known: identity of the file, see `_Piece.file`.
    """

    name: str
    write: Callable[[bytes], object]
    mark: Callable[[str], bytes] = str.encode
    offset: int = 0
    known: str = "0"


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/follow.py."""

    _VALID_ARGS = frozenset(
        ("run_dir", "file", "once", "destination", "output", "prompts", "poll_seconds")
    )
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        name, once = given.get("file", EVENTS), boolean(given.get("once", False))
        self._run_dir, destination = given["run_dir"], Path(given["destination"])
        self._shortest = self._pause = float(given.get("poll_seconds", 0.5))
        if name == EVENTS and not once:
            output = _Output(Path(given["output"])) if given.get("output") else None
            typed = Typed(Path(given["prompts"])) if given.get("prompts") else None
            end = self._follow_events(destination, output, typed)
            return {**result, "changed": False, "end": end}

        def write(data: bytes) -> None:
            _check_room(destination.parent)
            with destination.open("ab") as file:
                file.write(data)

        log = _Log(name, write, offset=-LAST_BYTES)
        if name == EVENTS:
            self._copy_samples(destination)
            log.offset = destination.stat().st_size if destination.exists() else 0
        self._follow_log(log, once)
        return {**result, "changed": False}

    def _follow_events(
        self, destination: Path, output: _Output | None, typed: Typed | None
    ) -> dict[str, Any]:
        """Copy events and a script's output until the run's end, and return the end event.

        Also send the lines that the user types to the run.
        """
        gone_since = None
        self._copy_samples(destination)
        while True:
            offset = destination.stat().st_size if destination.exists() else 0
            log = _Log(EVENTS, bytes, offset=offset)
            logs = [log, output.log] if output else [log]
            if typed and (lines := typed.to_send()):
                self._send(lines)
            alive, pieces = self._poll(logs, 0 if typed and typed.awaited else WAIT_SECONDS)
            found, data = pieces[0], pieces[0].data
            whole = data[: data.rfind(b"\n") + 1] or (data if found.full else b"")
            # write the output first: a reader of the end event must already have all output
            if output:
                self._take_output(output, pieces[1], to_end=b'"end"' in whole)
            _check_room(destination.parent)
            with destination.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another command may follow the same run
                if file.seek(0, os.SEEK_END) == offset:
                    file.write(whole)
            if not (alive or whole):  # another command may have copied the end event
                whole = _tail(destination)
            events = [*filter(None, map(_event, whole.split(b"\n")))]
            if typed:
                typed.see(str(event.get("event")) for event in events)
            ends = [event for event in events if event.get("event") == "end"]
            if ends:
                return ends[-1]
            now = time.monotonic()
            gone_since = None if alive else gone_since or now
            if gone_since and now - gone_since > GONE_SECONDS:
                raise AnsibleActionFail(self._last_words())
            self._sleep(pieces)

    def _send(self, lines: bytes) -> None:
        """Append lines to the run's file of prompts, if the run still reads prompts."""
        path = shlex.quote(f"{self._run_dir}/{PROMPTS}")
        done = execute(self, f"if [ -f {path} ]; then cat >> {path}; fi", lines)
        if done.get("rc"):
            raise AnsibleActionFail(
                f"the prompt cannot be sent to the run: {done['stderr'].strip()}"
            )

    def _copy_samples(self, destination: Path) -> None:
        """Copy the beginning, the end and samples of a long event file into a sparse file."""
        if destination.exists() and destination.stat().st_size:
            return
        _, (found,) = self._poll([_Log(EVENTS, bytes, offset=0)], 0)
        if found.size <= WHOLE_BYTES:
            return
        _check_room(destination.parent)
        parts = samples(found.size)
        pieces = self._parts(EVENTS, parts)
        with destination.open("ab") as lock, destination.open("r+b") as file:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_size:
                return
            for (start, _), piece in zip(parts, pieces, strict=True):
                first = piece.find(b"\n") + 1 if start else 0
                file.seek(start + first)
                file.write(piece[first : piece.rfind(b"\n") + 1])

    def _follow_log(self, log: _Log, once: bool) -> None:
        """Copy a log until the run has ended, or only once; handle a rotation of the log."""
        absent: tuple[str, float] | None = None  # state without a supervisor, and its start
        while True:
            alive, (found,) = self._poll([log], 0 if once else WAIT_SECONDS)
            if self._take(log, found):
                continue
            if once and not found.full:
                return
            now = time.monotonic()
            if alive or found.data:
                absent = None
            elif (state := self._state()) == "ended":
                return
            elif state in ("gone", "starts"):
                # a supervisor that starts just after the poll looks gone until the next poll
                if absent is None or absent[0] != state:
                    absent = state, now
                if now - absent[1] > (GONE_SECONDS if state == "gone" else STARTS_SECONDS):
                    raise AnsibleActionFail(self._last_words())
            self._sleep([found])

    def _state(self) -> str:
        """Return the state of a run that has no supervisor process on this host.

        The states are: ended; elsewhere (the run is a Slurm job on other hosts); prepares; starts
        (there was no supervisor yet); gone (the supervisor has died).

        A Slurm job is running if its id is in the queue; each task of an array has its own id. If
        Slurm does not respond, the state is elsewhere, because the job may still be running.
        """
        words, _ = self._answer(
            f"{TELL}; cd {shlex.quote(self._run_dir)} && state=gone; "
            "[ -e supervisor.pid ] || state=starts; "
            # split into two parts so that grep does not find this shell's own command line
            "what=prepare; for one in "
            '$(grep -lsF "ftcluster_train.engine.$what" /proc/[0-9]*/cmdline); do '
            f"grep -qsF {shlex.quote(self._run_dir)} $one && state=prepares; done; "
            f"""job=$(sed -n 's/.*"slurm_job": "\\([0-9][0-9]*\\)".*/\\1/p' launch.json); """
            'if [ "$job" ] && command -v squeue >/dev/null; then '
            'if queue=$(squeue --noheader --format=%A --jobs="$job" 2>&1); then '
            """printf '%s\\n' "$queue" | grep -qx "$job" && state=elsewhere; """
            'else case $queue in *"Invalid job id"*) ;; *) state=elsewhere ;; esac; fi; fi; '
            f"if tail -c {TAIL_BYTES} {EVENTS} | "
            """grep -q '"event": "end"'; then state=ended; fi; """
            "tell $state"
        )
        return words

    def _take(self, log: _Log, found: _Piece) -> bool:
        """Write the new text of a log; return True if a new file must be read."""
        if log.known not in ("0", found.file) and found.file != "0":
            self._finish_rotated(log)
            log.offset, log.known = 0, found.file  # the new log may be renamed before the next poll
            return True
        if log.known == "0" != found.file and found.start == 0:
            self._take_renamed(log, found)
        data = found.data
        if log.offset < 0 < found.start:
            log.write(log.mark(EARLIER.format(self._run_dir)))
            data = data[data.find(b"\n") + 1 :]
        if data:
            log.write(data)
        if found.file != "0":
            log.offset, log.known = found.start + len(found.data), found.file
        return False

    def _take_renamed(self, log: _Log, found: _Piece) -> None:
        """Copy the wanted part of a log that was renamed before the first poll.

        One command inspects both files, so that a rename between two commands cannot confuse them.
        """
        old = _Log(f"{log.name}.1", log.write, log.mark, min(0, log.offset + found.size))
        _, (again, rest) = self._poll([log, old], 0)
        if again.file == found.file != rest.file != "0":
            while not self._take(old, rest) and rest.full:
                _, (rest,) = self._poll([old], 0)

    def _take_output(self, output: _Output, found: _Piece, to_end: bool) -> None:
        while (self._take(output.log, found) or found.data) and to_end:
            _, (found,) = self._poll([output.log], 0)
        output.keep()

    def _finish_rotated(self, log: _Log) -> None:
        """Copy the rest of a log that was renamed."""
        old = _Log(f"{log.name}.1", log.write, offset=log.offset)
        while True:
            _, (rest,) = self._poll([old], 0)
            if rest.file != log.known:
                log.write(log.mark(ROTATED))
                return
            log.write(rest.data)
            old.offset += len(rest.data)
            if not rest.full:
                return

    def _poll(self, logs: Sequence[_Log], wait_seconds: int) -> tuple[bool, list[_Piece]]:
        """Return two values: True if the run's supervisor is alive, and a piece of each log.

        The command on the host waits up to `wait_seconds` for new bytes. It stops waiting if the
        supervisor is dead or a file was replaced.
        """
        folder = shlex.quote(self._run_dir)
        look = "".join(_look(number, log) for number, log in enumerate(logs))
        numbers = range(len(logs))
        read = "".join(
            f'; [ "$s{n}" -le "$f{n}" ] || tail -c +$((f{n} + 1)) <&{n + 3} | head -c '
            f"$((s{n} - f{n} < {PIECE_BYTES} ? s{n} - f{n} : {PIECE_BYTES}))"
            for n in numbers
        )
        words, data = self._answer(
            f"{TELL}; cd {folder} && waits={2 * wait_seconds} && while :; do more=0; "
            f'if grep -qsF {folder} "/proc/$(cat supervisor.pid)/cmdline"; then state=alive; '
            f"else state=gone; fi; {look}"
            "if [ $more = 1 ] || [ $state = gone ] || [ $waits -le 0 ]; then break; fi; "
            "waits=$((waits - 1)); sleep 0.5; done; "
            f"tell $state {' '.join(f'$i{n} $f{n} $s{n}' for n in numbers)}{read}"
        )
        state, *told = words.split() or ["gone", *["0"] * 3 * len(logs)]
        places = [*told[1::3], *told[2::3]]
        if len(told) != 3 * len(logs) or not all(re.fullmatch(r"\d{1,18}", n) for n in places):
            raise AnsibleActionFail(f"the host's response is invalid: {words[:200]!a}")
        pieces = []
        for number, log in enumerate(logs):
            file, start, size = told[3 * number], *map(int, told[3 * number + 1 :][:2])
            if max(start, size) > MOST_BYTES:
                count = max(start, size)
                raise AnsibleActionFail(f"the host reports {count:,} bytes for {log.name}")
            if words and 0 <= log.offset != start:
                raise AnsibleActionFail(f"the host sent another part of {log.name} than requested")
            count = max(0, min(size - start, PIECE_BYTES))
            pieces.append(_Piece(file, start, size, data[:count]))
            # the run cut off the incomplete output of a failed write
            if len(data) < count and len(logs) > 1:
                return state == "alive", [_Piece() for _ in logs]
            data = data[count:]
        if data:
            raise AnsibleActionFail("the host sent more bytes than requested")
        return state == "alive", pieces

    def _parts(self, name: str, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the contents of some parts of a run's file, given as (start, length in bytes)."""
        path = shlex.quote(f"{self._run_dir}/{name}")
        wanted = " ".join(f"{start + 1}:{count}" for start, count in parts)
        _, data = self._answer(
            f"{TELL}; tell parts; for part in {wanted}; do "
            f"tail -c +${{part%:*}} {path} | head -c ${{part#*:}}; done"
        )
        if len(data) != sum(count for _, count in parts):
            raise AnsibleActionFail(f"{name} of the run has become shorter while it was copied")
        pieces = []
        for _, count in parts:
            pieces.append(data[:count])
            data = data[count:]
        return pieces

    def _answer(self, command: str) -> tuple[str, bytes]:
        """Return the values in a command's output, and the rest of the output."""
        answer = execute(self, f"{{ {command}; }} 2>/dev/null")
        # skip the output of login scripts
        words, _, text = answer["stdout"].partition(MARK)[2].partition("\n")
        return words.strip(), text.encode(errors="surrogateescape")

    def _sleep(self, found: Sequence[_Piece]) -> None:
        """Wait before the next command: longer each time while commands return new text."""
        if any(piece.full for piece in found):
            return
        time.sleep(self._pause)
        grown = min(BUSY_SECONDS, 1.2 * self._pause)
        busy = any(piece.data for piece in found)
        self._pause = max(self._shortest, grown) if busy else self._shortest

    def _last_words(self) -> str:
        folder = shlex.quote(self._run_dir)
        answer = execute(self, f"cd {folder} && tail -n 15 supervisor.log ranks.log 2>/dev/null")
        return f"{SUPERVISOR_GONE}; its logs in {self._run_dir} end with:\n" + (
            answer["stdout"].strip()[-SHOWN:] or "(nothing)"
        )


def _look(number: int, log: _Log) -> str:
    """Return shell commands that open a log and set i (identity), f (start) and s (size)."""
    known = log.known if re.fullmatch(FILE, log.known) else "0"
    i, f, s, fd = f"i{number}", f"f{number}", f"s{number}", number + 3
    start = f"{f}={log.offset}; "
    if log.offset < 0:
        start = f"{f}=$(({s} > {-log.offset} ? {s} - {-log.offset} : 0)); "
    return (
        # read the opened file, even if the log is renamed
        f"command exec {fd}< {shlex.quote(log.name)} && "
        f"set -- $(stat -Lc '%i-%.W %s' /proc/self/fd/{fd}) || set -- 0 0; "
        f"{i}=$1; {s}=$2; {start}"
        f'if [ "${s}" -gt "${f}" ]; then more=1; fi; '
        f'if [ {known} != 0 ] && [ "${i}" != 0 ] && [ "${i}" != {known} ]; then more=1; fi; '
    )


class _Output:
    """A writer that copies a script's output into a pipe.

    A file next to the pipe stores the position, for a later command that continues the copy.
    """

    def __init__(self, pipe: Path) -> None:
        self._pipe, self._place = pipe, pipe.with_name(f"{pipe.name}.at")
        offset, known = -PIECE_BYTES, "0"
        if self._place.exists():
            offset, known = json.loads(self._place.read_text())
        self.log = _Log(OUTPUT, self._write, self._mark, offset, known)

    def keep(self) -> None:
        """Store the position after the copied output."""
        self._place.write_text(json.dumps([self.log.offset, self.log.known]))

    def _write(self, data: bytes) -> None:
        with self._pipe.open("wb") as file:
            file.write(data)

    @staticmethod
    def _mark(text: str) -> bytes:
        event = {"event": "output", "time": 0, "rank": 0, "stream": "stderr", "text": text}
        return json.dumps(event).encode() + b"\n"


def _check_room(folder: Path) -> None:
    if shutil.disk_usage(folder).free < SPARE_BYTES:
        raise AnsibleActionFail(
            f"{folder} on the control node has less than {SPARE_BYTES >> 20} MiB free, so nothing "
            "is copied there; the run continues"
        )


def _event(line: bytes) -> dict[str, Any]:
    """Parse a line of the file as an event; {} if it is invalid, because hosts are untrusted."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read()
