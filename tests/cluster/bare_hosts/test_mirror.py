"""Preflight reports why hosts or control node cannot reach a site's mirror, before any change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.bare_hosts.test_preflight import failures
from tests.cluster.control import HEAD, NAMES, OTHER, THIRD, Control
from tests.cluster.site_mirror import BACK, EXPIRED, NOBODY, REFUSES, SiteMirror, site_mirror
from tests.unit.wheels import write_wheel

REQUIRED = ("-e", "ftcluster_firewall=required")  # by default, the packages are required too


@pytest.fixture(scope="module")
def mirror(bare: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteMirror]:
    folder = tmp_path_factory.mktemp("mirror")
    # a package that is in no stack, in a version that does not exist
    write_wheel(folder / "wheels", "accelerate", "0")
    with site_mirror(bare, folder, folder / "wheels", "bookworm") as site:
        yield site


@pytest.mark.long
def test_each_mirror_that_gives_nothing_is_a_line_with_its_cause(
    bare: Control, mirror: SiteMirror, tmp_path: Path
) -> None:
    inventory = bare.inventory("mirror.ini", NAMES)
    environment = {**mirror.control(EXPIRED), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    before = bare.snapshots()
    changes = {
        HEAD: (mirror.host(trusts=False), BACK),
        OTHER: (mirror.host(REFUSES), BACK),
        THIRD: (mirror.host(NOBODY), BACK),
    }
    with bare.changed(changes):
        done = bare.run("setup", inventory, *REQUIRED, **environment)
        # a cluster can train without tcmalloc, so this is a notice
        free = bare.run("setup", inventory, "--tags", "preflight", "--skip-tags", "stack", "-e",
                        "ftcluster_firewall=false")  # fmt: skip
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    of = failures(done.stderr, 3)
    for name in NAMES:
        assert of[name].count("tcmalloc and nftables cannot be installed here: ") == 1
    assert "the certificate of mirror.site is not signed by a CA that the host trusts" in of[HEAD]
    assert "update-ca-certificates" in of[HEAD]
    assert f"the proxy {REFUSES} does not connect to mirror.site: 403 Forbidden" in of[OTHER]
    assert "does not respond: Connection refused" in of[THIRD]
    assert NOBODY.removeprefix("http://") in of[THIRD]
    said = "the control node cannot download the wheels: the certificate of old.site has expired"
    assert done.stderr.partition("setup failed on")[2].count(said) == 1
    assert free.returncode == 0, free.stderr
    assert free.stderr.count("tcmalloc cannot be installed here: ") == 3
    assert not (tmp_path / "cache").exists()
    assert bare.snapshots() == before


def test_a_mirror_that_all_reach_is_no_problem(
    bare: Control, mirror: SiteMirror, tmp_path: Path
) -> None:
    """The mirror's only wheel is not part of the stack, which the control node reports."""
    inventory = bare.inventory("mirror.ini", NAMES)
    environment = {**mirror.control(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with bare.changed({name: (mirror.host(), BACK) for name in NAMES}):
        done = bare.run("setup", inventory, "--tags", "preflight", *REQUIRED, **environment)
    [(name, said)] = failures(done.stderr, 1).items()
    assert name == HEAD
    assert "No matching distribution found for accelerate==" in said
    assert "cannot be installed" not in done.stderr
