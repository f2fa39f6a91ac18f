"""Remains of a removed account in world-writable places, in a separate namespace."""

import json
import pwd
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT

pytestmark = pytest.mark.needs("root", "mount", "pid")
# other tests mount file systems as nobody, perhaps at the same time
ACCOUNT = pwd.getpwnam("games")
PLANT = """
set -e
for folder in /tmp /var/tmp /dev/shm /run/lock /var/spool /var/lib/systemd; do
  [ ! -d $folder ] || mount -t tmpfs none $folder
done
mkdir -p /var/spool/cron/crontabs /var/spool/cron/atjobs /var/lib/systemd/linger
for path in cron/crontabs/games cron/games cron/atjobs/a1 cron/crontabs/other; do
  touch /var/spool/$path
done
touch /var/lib/systemd/linger/games /var/lib/systemd/linger/other
mkdir -p /tmp/torchinductor_games/deep /tmp/mixed
touch /tmp/torchinductor_games/deep/file /tmp/mixed/other /var/tmp/file /dev/shm/segment
mkfifo /tmp/pipe
ln -s /var/lib/systemd/linger /tmp/link
chown -hR games /tmp /var/tmp /dev/shm /var/spool/cron/atjobs/a1
chown root /tmp /var/tmp /dev/shm /tmp/mixed/other
touch /tmp/other
setpriv --reuid games --clear-groups ipcmk -M 4096 > /dev/null
setpriv --reuid games --clear-groups ipcmk -S 1 > /dev/null
setpriv --reuid games --clear-groups ipcmk -Q > /dev/null
ipcmk -M 4096 > /dev/null
# one that adds a job when it is asked to end
chmod 1777 /var/spool/cron/crontabs
setpriv --reuid games --clear-groups sh -c '
  trap "echo x > /var/spool/cron/crontabs/games; exit" TERM; touch /tmp/ready
  while :; do sleep 1; done
' > /dev/null 2>&1 &
while [ ! -e /tmp/ready ]; do sleep 0.1; done
# a host without procps
for name in pgrep pkill; do
  [ ! -e /usr/bin/$name ] || mount --bind /bin/false /usr/bin/$name
done
"""
LEFT = """
find /tmp /var/tmp /dev/shm /var/spool /var/lib/systemd -mindepth 1 -not -type d -o -user games
for kind in shm sem msg; do awk 'NR > 1' /proc/sysvipc/$kind | wc -l; done
find /proc -maxdepth 1 -user games | wc -l
"""


# as text, because the namespace has another /tmp, which may contain the checkout
MOUNTS = (ROOT / "plugins/module_utils/mounts.py").read_text()
FILE = (ROOT / "plugins/modules/account_remains.py").read_text().partition("\nif __name__")[0]
FUTURE = "from __future__ import annotations\n"
# without imports of Ansible and its collections
MODULE = MOUNTS + re.sub(r"(?m)^from ansible.*\n", "", FILE.replace(FUTURE, ""))
CALL = f"""
import json
print(json.dumps(remove_remains("games", {ACCOUNT.pw_uid})))
"""


def test_nothing_is_left_that_the_next_one_with_its_number_would_get() -> None:
    module = f"{Path(sys.executable).resolve()} -c {shlex.quote(MODULE + CALL)}"
    command = f"{PLANT}\n set +e; echo ---; {module}; echo ---; {module}; echo ---\n{LEFT}"
    done = subprocess.run(
        ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c", command],
        check=True, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    _, first, again, left = done.stdout.split("---\n")
    removed, kept = json.loads(first)
    assert {"its processes", "/tmp/torchinductor_games", "/var/tmp/file"} < set(removed)
    assert removed.count("/var/spool/cron/crontabs/games") == 2
    assert len([name for name in removed if name.startswith("/proc/sysvipc/")]) == 3
    assert kept == ["/tmp/mixed"]
    assert json.loads(again) == [[], ["/tmp/mixed"]]
    assert sorted(left.split()) == [
        "/tmp/mixed", "/tmp/mixed/other", "/tmp/other", "/var/lib/systemd/linger/other",
        "/var/spool/cron/crontabs/other", "0", "0", "0", "1",
    ]  # fmt: skip
