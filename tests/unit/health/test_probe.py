import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import Host
from ftcluster_train.health.host_benchmark import kernel_of
from ftcluster_train.health.probe import (
    MARK,
    PIECE,
    ProbeRequest,
    has_address,
    mpi_variables,
    name_and_version,
    other_runs,
    pieces,
    read_answers,
)
from tests.programs import NODE_PATH

EXECUTED = "onednn_verbose,v1,primitive,exec,cpu,matmul,{},undef,src_bf16::blocked:ab,,,256x256,0.1"


def test_the_kernel_is_that_of_the_last_execution() -> None:
    log = [
        "onednn_verbose,v1,info,oneDNN v3.7.1",
        EXECUTED.format("jit:avx2"),
        "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,ref:any,undef,,,,,0.2",
        EXECUTED.format("brg_matmul:avx10_1_512_amx"),
        EXECUTED.format("jit:blk").replace("matmul", "reorder"),
        "another line",
    ]
    assert kernel_of("\n".join(log)) == "brg_matmul:avx10_1_512_amx"
    assert kernel_of(log[0]) == kernel_of("") == ""
    # a truncated line names no link
    whole = EXECUTED.format("brg_matmul:avx10_1_512_amx")
    cut = "onednn_verbose,v1,primitive,exec,cpu,matmul"
    assert kernel_of(f"{whole}\n{cut}") == "brg_matmul:avx10_1_512_amx"
    assert kernel_of(f"{cut}\n{whole}\n{cut.removesuffix('matmul')}") == kernel_of(whole)
    assert kernel_of(cut) == ""


def test_addresses_of_this_host_and_of_others() -> None:
    assert has_address("127.0.0.1")
    assert has_address("localhost")
    assert not has_address("192.0.2.7")  # an address for documentation, which no machine has
    assert not has_address("a name that is none")


def test_names_and_versions_are_those_of_importlib() -> None:
    for package in metadata.distributions():
        expected = (package.metadata["Name"].lower(), package.version)
        assert name_and_version(package) == expected


def test_mpi_uses_the_network_of_a_run() -> None:
    device = {
        "name": "mlx5_0", "driver": "mlx5_core", "iwarp": False, "active": True,
        "interfaces": ["eth0", "eth1"], "opens": True,
    }  # fmt: skip

    def facts(interface: str, **more: Any) -> dict[str, Any]:
        return {
            "network_interface": interface, "network_provider": "auto", "rdma": [device],
            "rdma_libraries": ["libibverbs.so.1", "librdmacm.so.1"], "locks_memory": True,
            "rank_user": "", **more,
        }  # fmt: skip

    hosts = (Host("a", "10.0.0.1"), Host("b", "10.0.0.2"))

    def variables(**networks: dict[str, Any]) -> dict[str, str]:
        return mpi_variables(ProbeRequest(hosts, "", "", networks=networks), 1, "eth7")

    verbs = {"FI_PROVIDER": "verbs;ofi_rxm", "FI_VERBS_IFACE": "eth1"}
    assert variables(a=facts("eth0"), b=facts("eth1")) == verbs
    tcp = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth1"}
    assert variables(a=facts("eth0", rdma=[]), b=facts("eth1")) == tcp
    # --limit excludes the head, then the other host
    assert variables(b=facts("eth1")) == tcp
    assert variables(a=facts("eth0")) == {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth7"}


# --- what the ranks print


def lines(*answers: dict[str, Any]) -> list[str]:
    return [line for answer in answers for line in pieces(answer["rank"], answer)]


def test_answers_are_found_among_other_lines() -> None:
    output = ["a warning\n", *lines({"rank": 1}), f"{MARK} x\n", f"[0] {lines({'rank': 0})[0]}"]
    assert read_answers(output) == [{"rank": 0}, {"rank": 1}]
    assert read_answers([]) == []
    # an answer with a missing or truncated piece is skipped
    first, *rest = lines({"rank": 0, "text": "x" * 2 * PIECE})
    assert read_answers(rest) == []
    assert read_answers([first, *rest[:-1], *lines({"rank": 3})]) == [{"rank": 3}]
    (line,) = lines({"rank": 0, "text": "abc"})
    assert read_answers([line[:-5]]) == []


def test_long_answers_come_in_pieces_that_may_be_mixed() -> None:
    long = [{"rank": rank, "text": f"{rank} " * PIECE} for rank in (0, 1)]
    printed = lines(*long)
    assert all(len(line) < 4096 for line in printed)
    assert len(printed) > 4
    assert read_answers(sorted(printed, key=lambda line: line[::-1])) == long


# --- other runs


def process(folder: Path, pid: int, *variables: str) -> None:
    (folder / str(pid)).mkdir()
    (folder / f"{pid}/environ").write_bytes(b"\0".join(v.encode() for v in variables))


def test_runs_at_work_are_found_by_their_environment(tmp_path: Path) -> None:
    process(tmp_path, 1, "HOME=/")
    process(tmp_path, 2, "HOME=/", "FTCLUSTER_RUN=mrpc-1")
    process(tmp_path, 3, "FTCLUSTER_RUN=mrpc-1")
    process(tmp_path, 4, "FTCLUSTER_RUN=verify-12ab")
    (tmp_path / "5").mkdir()  # this process ended meanwhile
    assert other_runs(tmp_path) == ["mrpc-1"]


# --- the whole program, without torch


def test_a_rank_that_cannot_do_it_says_so_and_ends_well(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1 is missing')")
    request = {"hosts": [{"name": "a", "address": "127.0.0.1"}], "ssh_config": "", "interface": ""}
    environment = {
        **os.environ, "PMI_RANK": "0", "FTCLUSTER_PROBE_REQUEST": json.dumps(request),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), NODE_PATH]),
    }  # fmt: skip
    argv = [sys.executable, "-m", "ftcluster_train.health.probe"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (answer,) = read_answers(done.stdout.splitlines())
    assert answer["error"] == "ImportError: libgomp.so.1 is missing"
    assert answer["has_address"] is True
    assert "pytest" in answer["packages"]


def test_a_request_of_a_later_version_is_understood() -> None:
    text = json.dumps({"hosts": [{"name": "a", "address": "10.0.0.1"}], "ssh_config": "",
                       "interface": "", "later": 1})  # fmt: skip
    assert ProbeRequest.read(text).hosts == (Host("a", "10.0.0.1"),)
