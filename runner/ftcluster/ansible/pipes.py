"""Named pipes that pass secrets to another program, so that no file ever contains them.

Ansible reads passwords and variables from paths, and resolves links in these paths. Paths of
inherited descriptors or of unnamed files are such links, so a named pipe is needed.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

JOIN_SECONDS = 0.05
BLOCK_BYTES = 1 << 16


class Pipes:
    """Named pipes in a private folder. Each pipe works once; `close` ends unused pipes."""

    def __init__(self) -> None:
        self._open: list[tuple[threading.Thread, Path, int]] = []

    def give(self, path: Path, content: bytes) -> Path:
        """Make a pipe that passes this content to its first reader and then disappears."""

        def run() -> None:
            with open(path, "wb", buffering=0) as pipe:  # noqa: PTH123  # waits for the reader
                path.unlink(missing_ok=True)
                rest = memoryview(content)
                with contextlib.suppress(BrokenPipeError):
                    while rest:
                        rest = rest[pipe.write(rest) :]

        return self._start(path, run, os.O_RDONLY)

    def drop(self, path: Path) -> Path:
        """Make a pipe that discards its first writer's content and then disappears."""

        def run() -> None:
            with open(path, "rb", buffering=0) as pipe:  # noqa: PTH123  # waits for the writer
                while pipe.read(BLOCK_BYTES):
                    pass
            path.unlink(missing_ok=True)

        return self._start(path, run, os.O_WRONLY)

    def close(self) -> None:
        """Open and close each unused pipe so that its thread ends, and wait for all threads."""
        for thread, path, other_end in self._open:
            while thread.is_alive():
                with contextlib.suppress(OSError):  # ENXIO: no program has opened the other end yet
                    os.close(os.open(path, other_end | os.O_NONBLOCK))
                thread.join(JOIN_SECONDS)
        self._open.clear()

    def _start(self, path: Path, run: Callable[[], None], other_end: int) -> Path:
        os.mkfifo(path, 0o600)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._open.append((thread, path, other_end))
        return path
