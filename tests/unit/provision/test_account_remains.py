"""What a removed account leaves in places that everybody may write to, found in a namespace."""

import pwd
import shlex
import subprocess

import pytest
import yaml

from tests.programs import ROOT

pytestmark = pytest.mark.needs("root", "mount", "pid")
ACCOUNT = pwd.getpwnam("nobody")
PLANT = """
set -e
for folder in /tmp /var/tmp /dev/shm /run/lock /var/spool /var/lib/systemd; do
  [ ! -d $folder ] || mount -t tmpfs none $folder
done
mkdir -p /var/spool/cron/crontabs /var/spool/cron/atjobs /var/lib/systemd/linger
for path in cron/crontabs/nobody cron/nobody cron/atjobs/a1 cron/crontabs/other; do
  touch /var/spool/$path
done
touch /var/lib/systemd/linger/nobody /var/lib/systemd/linger/other
mkdir -p /tmp/torchinductor_nobody/deep /tmp/mixed
touch /tmp/torchinductor_nobody/deep/file /tmp/mixed/other /var/tmp/file /dev/shm/segment
mkfifo /tmp/pipe
ln -s /var/lib/systemd/linger /tmp/link
chown -hR nobody /tmp /var/tmp /dev/shm /var/spool/cron/atjobs/a1
chown root /tmp /var/tmp /dev/shm /tmp/mixed/other
touch /tmp/other
setpriv --reuid nobody --clear-groups ipcmk -M 4096 > /dev/null
setpriv --reuid nobody --clear-groups ipcmk -S 1 > /dev/null
setpriv --reuid nobody --clear-groups ipcmk -Q > /dev/null
ipcmk -M 4096 > /dev/null
# one that adds a job when it is asked to end
chmod 1777 /var/spool/cron/crontabs
setpriv --reuid nobody --clear-groups sh -c '
  trap "echo x > /var/spool/cron/crontabs/nobody; exit" TERM; touch /tmp/ready
  while :; do sleep 1; done
' > /dev/null 2>&1 &
while [ ! -e /tmp/ready ]; do sleep 0.1; done
# a host without procps
for name in pgrep pkill; do
  [ ! -e /usr/bin/$name ] || mount --bind /bin/false /usr/bin/$name
done
"""
LEFT = """
find /tmp /var/tmp /dev/shm /var/spool /var/lib/systemd -mindepth 1 -not -type d -o -user nobody
for kind in shm sem msg; do awk 'NR > 1' /proc/sysvipc/$kind | wc -l; done
find /proc -maxdepth 1 -user nobody | wc -l
"""


def scripts() -> list[str]:
    """The shell commands of the tasks, for the account nobody."""
    tasks = yaml.safe_load((ROOT / "roles/account/tasks/delete.yml").read_text())
    wanted = ("Remove its timed jobs", "Remove its temporary files")
    found = [task["ansible.builtin.shell"] for task in tasks if task["name"].startswith(wanted)]
    uid = str(ACCOUNT.pw_uid)
    return [
        text.replace("{{ account_name | quote }}", "nobody").replace(
            "{{ account__entry[2] | quote }}", uid
        )
        for text in found
    ]


def test_nothing_is_left_that_the_next_one_with_its_number_would_get() -> None:
    jobs, temporary = scripts()
    after = [f"sh -c {shlex.quote(text)} 2> /dev/null" for text in (jobs, temporary)]
    said = "echo ---; " + " && ".join(after) + "; echo ---; " + " && ".join(after)
    command = f"{PLANT}\n set +e; {said}; echo ---\n{LEFT}"
    done = subprocess.run(
        ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c", command],
        check=True, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    _, first, again, left = done.stdout.split("---\n")
    assert "/var/spool/cron/crontabs/nobody" in first
    assert "/tmp/torchinductor_nobody" in first
    assert "removed its processes" in first
    assert first.count("/var/spool/cron/crontabs/nobody") == 2
    assert "left /tmp/mixed\n" in first
    assert again == "ftcluster-answer: left /tmp/mixed\n"
    assert sorted(left.split()) == [
        "/tmp/mixed", "/tmp/mixed/other", "/tmp/other", "/var/lib/systemd/linger/other",
        "/var/spool/cron/crontabs/other", "0", "0", "0", "1",
    ]  # fmt: skip
