"""Interfaces and RDMA devices, from files like the kernel's in /sys."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.links import (
    drivers,
    link_speed,
    rdma_devices,
)


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def interface(net: Path, name: str, speed: str = "", driver: str = "", below: str = "") -> Path:
    """Make an interface with a device if it has a driver, or above others separated by spaces."""
    folder = net / name
    folder.mkdir(parents=True)
    if speed:
        write(folder / "speed", f"{speed}\n")
    if driver:
        link(folder / "device/driver", net.parent / "drivers" / driver)
    for lower in below.split():
        (folder / f"lower_{lower}").symlink_to(net / lower)
        (net / lower / f"upper_{name}").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("speed", "mbits"),
    [("25000", 25000), ("-1", None), ("4294967295", None), ("0", None), ("", None)],
)
def test_a_speed_that_the_driver_does_not_know(
    tmp_path: Path, speed: str, mbits: int | None
) -> None:
    assert link_speed(interface(tmp_path, "eth0", speed, "virtio_net")) == mbits


def test_an_interface_without_hardware_has_no_speed(tmp_path: Path) -> None:
    """veth claims 10000, and tun 10."""
    assert link_speed(interface(tmp_path, "veth0", "10000")) is None
    assert drivers(tmp_path / "veth0") == ""
    assert link_speed(tmp_path / "gone") is None


def test_one_over_others_has_the_speed_of_the_fastest_below(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "10000", "ice")
    interface(tmp_path, "eth1", "1000", "igb")
    interface(tmp_path, "eth2", "-1", "ice")  # its cable is unplugged
    interface(tmp_path, "veth0", "10000")
    bond = interface(tmp_path, "bond0", "11000", below="eth0 eth1 eth2")
    assert (link_speed(bond), drivers(bond)) == (10000, "ice+igb")
    assert link_speed(interface(tmp_path, "bond0.5", "11000", below="bond0")) == 10000
    assert link_speed(interface(tmp_path, "br0", "10000", below="veth0 eth1")) == 1000
    assert link_speed(interface(tmp_path, "br1", "10000", below="veth0")) is None


def device(
    sys: Path, name: str, driver: str, interface: str = "", verbs: str = "uverbs0", **more: str
) -> None:
    """Make an RDMA device with one port, whose files in /dev every account may open."""
    folder = sys / "infiniband" / name
    link(folder / "device/driver", sys / "drivers" / driver)
    write(folder / "node_type", more.get("node_type", "1: CA\n"))
    write(folder / "ports/1/state", more.get("state", "4: ACTIVE\n"))
    if interface:
        link(folder / "device/net" / interface, sys / "net" / interface)
    if verbs:
        link(folder / "device/infiniband_verbs" / verbs, sys / "verbs" / verbs)
        special(sys / "dev/infiniband" / verbs)
        special(sys / "dev/infiniband/rdma_cm")


def special(path: Path, mode: int = 0o666) -> None:
    write(path)
    path.chmod(mode)


def found(sys: Path) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = rdma_devices(sys / "infiniband", sys / "dev")
    return devices


def test_a_device_of_software_has_no_driver(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    write(tmp_path / "infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
    [one] = found(tmp_path)
    assert (one["driver"], one["interfaces"], one["opens"]) == ("", [], False)


def test_rdma_devices(tmp_path: Path) -> None:
    net = tmp_path / "net"
    for name in ("eth0", "eth1"):
        interface(net, name, "100000", "mlx5_core")
    interface(net, "bond0", below="eth0 eth1")
    interface(net, "bond0.7", below="bond0")
    (interface(net, "br0", below="eth1") / "bridge").mkdir()
    device(tmp_path, "mlx5_0", "mlx5_core", "eth0")
    device(tmp_path, "mlx5_1", "mlx5_core", "eth1", state="1: DOWN\n", verbs="uverbs1")
    device(tmp_path, "rdmap0s6", "efa", verbs="uverbs2", node_type="7: unspecified\n")
    device(tmp_path, "rocep1", "ice", "eth0", verbs="uverbs3", node_type="4: RNIC\n")
    first = {
        "name": "mlx5_0", "driver": "mlx5_core", "iwarp": False, "active": True,
        "interfaces": ["eth0", "bond0", "bond0.7"], "opens": True,
    }  # fmt: skip
    second = {"name": "mlx5_1", "active": False, "interfaces": ["eth1", "bond0", "bond0.7"]}
    efa = {"name": "rdmap0s6", "driver": "efa", "interfaces": []}
    iwarp = {"name": "rocep1", "driver": "ice", "iwarp": True}
    expected = [first, first | second, first | efa, first | iwarp]
    assert found(tmp_path) == expected


def test_what_every_account_may_open(tmp_path: Path) -> None:
    def opens() -> bool:
        [one] = found(tmp_path)
        return bool(one["opens"])

    device(tmp_path, "mlx5_0", "mlx5_core", "eth0")
    assert opens()
    special(tmp_path / "dev/infiniband/rdma_cm", 0o600)
    assert not opens()
    (tmp_path / "dev/infiniband/rdma_cm").unlink()
    assert not opens()


def test_omni_path_has_files_of_its_own(tmp_path: Path) -> None:
    device(tmp_path, "hfi1_0", "hfi1", "ib0")
    assert not found(tmp_path)[0]["opens"]
    special(tmp_path / "dev/hfi1_0")
    assert found(tmp_path)[0]["opens"]
