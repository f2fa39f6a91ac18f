"""A site with LDAP accounts, homes on NFS, a noexec /tmp and a Latin-1 locale.

Login shells are csh. One host has its sshd at another port, and a package source that does not
respond. There are two Debian 12 hosts. The first host runs slapd, which both ask through nslcd for
names and accounts.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.brought_python import brought_python
from tests.cluster.cluster import FEW_PAIRS, TWO
from tests.cluster.control import ADDRESS, HEAD, OTHER, Control, bare_hosts

pytestmark = pytest.mark.long
PAIR = (HEAD, OTHER)
PACKAGES = (
    *("slapd", "nslcd", "libnss-ldapd", "libpam-ldapd", "locales", "python3-fusepy", "tcsh"),
)
DOTTED, OF_DOMAIN = "jane.doe", r"CORP\joe.roe"
ENTRY = """
dn: uid={dn},BASE
objectClass: account
objectClass: posixAccount
objectClass: shadowAccount
uid: {name}
cn: {name}
uidNumber: {number}
gidNumber: 100
homeDirectory: /home/{home}
loginShell: /bin/tcsh
gecos: {gecos}
userPassword: *
"""
FILL = """
set -e
systemctl stop slapd
base=$(slapcat | sed -n '1s/^dn: //p')
sed "s/BASE/$base/" <<'END' | runuser -u openldap -- slapadd
{people}
END
systemctl start slapd
"""
JOIN = f"""
set -e
printf 'uid nslcd\\ngid nslcd\\nuri ldap://{ADDRESS[HEAD]}/\\n' > /etc/nslcd.conf
slapcat | sed -n '1s/^dn:/base/p' >> /etc/nslcd.conf # each host has one, of the same name
sed -i -E 's/^(passwd|group|shadow):.*/\\1: files ldap/' /etc/nsswitch.conf
systemctl restart nslcd
printf '%s ALL=(ALL) NOPASSWD: ALL\\n' '{DOTTED}' 'CORP\\\\joe.roe' > /etc/sudoers.d/site
mount -o remount,noexec /tmp
localedef -i de_DE -f ISO-8859-1 de_DE
printf 'LANG=de_DE\\n' >> /etc/environment
sed -i '/^LANG=C.UTF-8/d' /etc/environment
"""
# homes on a file system that behaves like NFS with root_squash
HOMES = """
set -e
install -d /srv/homes
for pair in jane.doe:20001 joe.roe:20002; do
  home=/srv/homes/${pair%:*}
  install -d -m 0700 -o ${pair#*:} -g 100 $home $home/.ssh
  install -m 0600 -o ${pair#*:} -g 100 /home/ops/.ssh/authorized_keys $home/.ssh
done
mknod /dev/fuse c 10 229
install -d /home/nfs
systemd-run --quiet --unit=homes python3 /root/root_squash.py /srv/homes /home/nfs
until mountpoint -q /home/nfs; do sleep 0.1; done
! ls /home/nfs/jane.doe 2> /dev/null
"""
# a port that only the operator's ssh knows, and keys in a folder that belongs to root
SSHD = """
printf '%s\n' 'Port 2302' 'Match User trainer' 'AuthorizedKeysFile /etc/ssh/keys/%u' \
  > /etc/ssh/sshd_config.d/site.conf && systemctl restart ssh
"""
# one of the package sources does not respond
SOURCE = "echo deb http://198.18.0.99/vendor bookworm main > /etc/apt/sources.list.d/vendor.list"
OF_SSH_CONFIG = f"ansible_ssh_extra_args='-o Port=2302 -o HostKeyAlias={ADDRESS[OTHER]}'"
OWN_DISK = "ansible_remote_tmp=/var/tmp"
SCRIPT = """
import json, os, sys
name = json.loads(open(sys.argv[1]).readline())["sentence2"]
print(f"{os.environ['LANG']}: {name} é 中")
"""


def entry(name: str, number: int, home: str, gecos: str = "of the site") -> str:
    return ENTRY.format(dn=name.replace("\\", r"\5C"), name=name, number=number, home=home,
                        gecos=gecos)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    folder = tmp_path_factory.mktemp("site")
    people = [
        entry(DOTTED, 20001, "nfs/jane.doe"),
        entry(OF_DOMAIN, 20002, "nfs/joe.roe"),
        entry("trainer", 20003, "trainer"),
    ]
    squash = Path(__file__).with_name("root_squash.py").read_text()
    python = brought_python("bookworm")
    with bare_hosts("bookworm", folder, PAIR, python, PACKAGES) as control:
        control.shell(HEAD, FILL.format(people="".join(people)))
        for name in PAIR:
            control.shell(name, f"cat > /root/root_squash.py <<'END'\n{squash}\nEND")
            control.shell(name, JOIN + HOMES)
        control.shell(OTHER, SSHD + SOURCE)
        yield control


def of_people(host: str, line: str) -> str:
    """Log in to each host as a user of the directory."""
    if host == HEAD:
        return f"{line} ansible_user='{DOTTED}'"
    return f"{line} ansible_user='{OF_DOMAIN}' {OF_SSH_CONFIG}"


def test_what_a_site_refuses_is_a_line_before_anything_is_changed(site: Control) -> None:
    inventory = site.inventory("refused.ini", PAIR, of_people)
    before = site.snapshots()
    read_only = "mount --bind {0} {0} && mount -o remount,ro,bind {0}"
    with site.changed({
        HEAD: ("mount -t tmpfs -o noexec tmpfs /opt", "umount /opt"),
        OTHER: (read_only.format("/opt"), "umount /opt"),
    }):  # fmt: skip
        done = site.run("setup", inventory, "-e", "ftcluster_user=trainer")
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    head, _, other = done.stderr.partition(f"\n  {OTHER}: ")
    assert "/opt/ftcluster is on a file system that is mounted noexec" in head
    for text in (head, other):
        assert "the account trainer, which would train, comes from a directory" in text
        assert "root may not write to the folder for Ansible's files" in text
    assert "root may not write to /opt/ftcluster" in other
    assert "site.conf:3: AuthorizedKeysFile /etc/ssh/keys/%u" in other
    assert site.snapshots() == before


def test_a_site_is_set_up_and_trains(site: Control, tmp_path: Path) -> None:
    def with_own_disk(host: str, line: str) -> str:
        return f"{of_people(host, line)} {OWN_DISK}"

    inventory = site.inventory("site.ini", PAIR, with_own_disk)
    first = site.run("setup", inventory)
    assert first.returncode == 0, first.stderr
    for missing in ("root is not available here", "cannot be installed", "nftables cannot be used"):
        assert missing not in first.stderr
    assert "Port 2302" in site.shell(HEAD, "cat /opt/ftcluster/mesh/ssh_config")
    again = site.run("setup", "--json")
    assert again.returncode == 0, again.stderr
    hosts = json.loads(again.stdout)["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys(PAIR, 0)
    check = site.run("check")
    assert check.returncode == 0, check.stdout + check.stderr
    rows = [
        {"sentence1": f"größe {n}", "sentence2": ("gerade", "übrig")[n % 2], "label": n % 2}
        for n in range(200)
    ]
    data = tmp_path / "größen"
    data.mkdir()
    for split, part in (("train", rows[:160]), ("validation", rows[160:])):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
        (data / f"{split}.jsonl").write_text(text, encoding="utf-8")
    trained = site.run("train", "quickstart", "--data", str(data), "batch_size=8", *TWO, "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["state"] == "done"
    (tmp_path / "prüfe.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "names.jsonl").write_text(
        json.dumps(rows[1], ensure_ascii=False) + "\n", encoding="utf-8"
    )
    told = site.run("run", *TWO, "--", str(tmp_path / "prüfe.py"), "names.jsonl")
    assert told.returncode == 0, told.stderr
    assert "de_DE: übrig é 中" in told.stdout


def test_an_account_of_ad_with_a_home_of_nfs_trains_without_root(site: Control) -> None:
    """The home has the key, caches and records, and a folder of the host has the stack."""
    where = {HEAD: "", OTHER: OF_SSH_CONFIG}
    inventory = site.inventory(
        "home.ini", PAIR, lambda host, line: f"{line} ansible_user='{OF_DOMAIN}' {where[host]}"
    )
    options = (inventory, "-e", "ftcluster_root=false")
    read_only, again = (f"mount -o remount,{how} /home/nfs" for how in ("ro", "rw"))
    with site.changed({HEAD: (read_only, again)}):
        refused = site.run("setup", *options)
    assert refused.returncode == 1
    assert "nothing was changed" in refused.stderr
    assert "/home/nfs/joe.roe/.local/share/ftcluster is not writable" in refused.stderr
    roots = site.inventory(
        "roots.ini", PAIR, lambda host, line: f"{of_people(host, line)} {OWN_DISK}"
    )
    ruled = site.run("setup", roots, "--tags", "preflight,system")
    assert ruled.returncode == 0, ruled.stderr
    shut_out = site.run("setup", *options, "--tags", "preflight")
    assert shut_out.returncode == 1
    assert r"so CORP\joe.roe cannot train here" in shut_out.stderr
    gone = site.run("teardown", roots, "-e", "ftcluster_remove_runs=true")
    assert gone.returncode == 0, gone.stderr
    for name in PAIR:
        site.shell(name, "install -d -o 20002 -g 100 /srv/scratch")
    done = site.run("setup", *options, "-e", "ftcluster_prefix=/srv/scratch/ftcluster")
    assert done.returncode == 0, done.stderr
    trained = site.run("train", "quickstart", *FEW_PAIRS, *TWO, "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["model"].startswith("/srv/scratch/ftcluster/")
