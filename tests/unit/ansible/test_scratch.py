import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftcluster.ansible.scratch import private_folder

PROGRAM = """
import time
from ftcluster.ansible.scratch import private_folder
from ftcluster.cli.process import ended_in_order

with ended_in_order(), private_folder() as folder:
    print(folder, flush=True)
    while True:
        time.sleep(0.1)  # a signal before signal.pause() would be waited for without end
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing_but_to_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        with private_folder():
            assert folder.exists(), "its process is there"
        process.send_signal(number)
    assert folder.exists() == (number == signal.SIGKILL)
    (tmp_path / "ftcluster-of-others").mkdir()
    with private_folder() as own:
        assert {path.name for path in tmp_path.iterdir()} == {own.name, "ftcluster-of-others"}
