"""The training account can read the cluster's record, but not change it."""

import pwd
import subprocess
import tempfile
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules.cluster_record import NAME, settle

from tests.rights import PYTHON

NOBODY = pwd.getpwnam("nobody")
TRY_ALL = """
import os, sys
path = sys.argv[1]
print(open(path).read(), end="")
for attempt in (
    lambda: open(path, "a"),
    lambda: os.chmod(path, 0o666),
    lambda: os.unlink(path),
    lambda: os.rename(path, path + ".old"),
    lambda: os.symlink("/etc/passwd", path + ".new"),
):
    try:
        attempt()
    except PermissionError:
        continue
    sys.exit("it was let")
"""


@pytest.mark.needs("root")
def test_the_account_reads_the_record_and_cannot_change_it() -> None:
    with tempfile.TemporaryDirectory(prefix="ftcluster-test-") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, NAME)
        drained = {"xeon3": {"why": "memory errors", "since": "2026-01-31"}}
        changed, text = settle(path, "present", "", {"drained": drained}, check_mode=False)
        assert changed
        status = path.stat()
        assert (status.st_mode & 0o7777, status.st_uid) == (0o644, 0)
        done = subprocess.run(
            [PYTHON, "-I", "-c", TRY_ALL, path],
            user=NOBODY.pw_uid, group=NOBODY.pw_gid, extra_groups=[], cwd="/",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, text + "\n", "")
        assert list(Path(folder).iterdir()) == [path]
