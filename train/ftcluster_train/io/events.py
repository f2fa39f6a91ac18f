"""events.jsonl: what a run tells the control node, one JSON object a line.

Rank 0 writes while there are ranks; the supervisor writes before and after. Kinds of events:

- phase: doing
- notice: message, what a user should know, such as that samples were cut
- placement: ranks, where each really is: rank, host, cpus (such as 0-15), memory_nodes (those it
  takes memory from first; [] for the kernel's own way, null where that is not told), threads
- start: world_size, threads_per_rank, backend, precision, ipex, steps, epochs, train_samples,
  parameters
- step: step, epoch, loss, learning_rate, samples_per_second, remaining_seconds
- evaluation: step, epoch, metrics, seconds
- parameters: step, equal, sha256
- result: model, metrics, samples_per_second, train_seconds, world_size
- output: rank (0), stream (stdout, stderr), text; only of a user's script, whose words they are
- error: message, hint, host, rank
- end: state (done, failed, stopped), exit_code, seconds
"""

import json
import os
import time
from pathlib import Path
from typing import Any


class EventWriter:
    """Appends events; each is on its way to the disk as one whole line."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "events.jsonl"

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the current time.

        Raises:
            OSError: it cannot be written; nothing of it is left in the file.
        """
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}) + "\n"
        data = line.encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, data)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            if written < len(data):
                os.ftruncate(descriptor, size)
                raise OSError(28, "No space left on device", str(self._path))
        finally:
            os.close(descriptor)
