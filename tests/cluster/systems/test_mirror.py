"""Hosts and a control node that reach packages only by a proxy at a mirror with its own CA."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control import HEAD, OTHER, Control, bare_hosts
from tests.cluster.site_mirror import SiteMirror, site_mirror
from tests.programs import CACHE, FTCLUSTER

pytestmark = pytest.mark.long
PAIR = (HEAD, OTHER)
INSTALLED = "command -v nft; ls /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheels of the default stack from the tests' cache; download missing wheels."""
    bundle = tmp_path_factory.mktemp("bundle") / "native.ftbundle"
    made = subprocess.run(
        [FTCLUSTER, "bundle", "--python", "3.11", "--glibc", "2.36", "-o", bundle],
        env=os.environ | {"XDG_CACHE_HOME": str(CACHE)}, capture_output=True, text=True,
        timeout=1200,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    bundle.unlink()
    [folder] = (CACHE / "ftcluster/wheels").glob("native-*-cp311-glibc2.36-x86_64")
    return folder


@pytest.fixture(scope="module")
def site(
    wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Control, SiteMirror]]:
    folder = tmp_path_factory.mktemp("site")
    with (
        bare_hosts("bookworm", folder, PAIR) as control,
        site_mirror(control, folder, wheels, "bookworm") as mirror,
    ):
        for name in PAIR:
            control.shell(name, mirror.host())
        yield control, mirror


def test_a_cluster_is_set_up_through_a_proxy_from_a_mirror_with_its_own_ca(
    site: tuple[Control, SiteMirror], tmp_path: Path
) -> None:
    control, mirror = site
    environment = {**mirror.control(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    inventory = control.inventory("site.ini", PAIR)
    sources = json.dumps({"torch_stack_indexes": {"torch": ""}})
    done = control.run(
        "setup", inventory, "-e", sources, "-e", "ftcluster_firewall=required", **environment
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be installed" not in done.stderr
    for name in PAIR:
        control.shell(name, INSTALLED)
    assert [*(tmp_path / "cache/ftcluster/wheels").glob("native-*/torch-*.whl")]
    check = control.run("check", **environment)
    assert check.returncode == 0, check.stdout + check.stderr
