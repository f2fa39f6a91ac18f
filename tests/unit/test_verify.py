import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster_train.reach import Host
from ftcluster_train.verify import (
    MARK,
    Request,
    compare,
    differences,
    has_address,
    kernel_of,
    mesh_environment,
    promise,
    read_answers,
    rows,
)

HOSTS = (Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2"), Host("node3", "10.0.0.3"))
REQUEST = Request(hosts=HOSTS, ssh_config="/opt/ftcluster/mesh/ssh_config", interface="eth0")
PACKAGES = {"torch": "2.8.0+cpu", "transformers": "4.57.0", "ftcluster-train": "0.1.0"}
EXECUTED = "onednn_verbose,v1,primitive,exec,cpu,matmul,{},undef,src_bf16::blocked:ab,,,256x256,0.1"


def answer(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "rank": rank, "hostname": f"host{rank}", "has_address": True, "python": "3.11.7",
        "packages": PACKAGES, "flags": ["amx_bf16", "avx512f"],
        "kernel": "brg_matmul:avx10_1_512_amx", "sum_right": True, "all_reduce_ms": 3.0,
        **changes,
    }  # fmt: skip


def test_the_module_needs_no_torch() -> None:
    program = "import sys, ftcluster_train.verify; sys.exit('torch' in sys.modules)"
    train = Path(__file__).parents[2] / "train"
    argv = [sys.executable, "-c", program]
    assert subprocess.run(argv, cwd=train, check=False).returncode == 0


def test_a_request_comes_as_json() -> None:
    text = {
        "hosts": [{"name": host.name, "address": host.address} for host in HOSTS],
        "ssh_config": REQUEST.ssh_config, "interface": "eth0",
    }  # fmt: skip
    assert Request.read(json.dumps(text)) == REQUEST


def test_hosts_that_are_alike_have_no_problems() -> None:
    assert compare(REQUEST, [answer(0), answer(1), answer(2)]) == []
    assert compare(REQUEST, [answer(1)]) == []
    assert compare(REQUEST, []) == []


def test_all_that_is_wrong_comes_together() -> None:
    found = compare(
        REQUEST,
        [
            answer(0, sum_right=False),
            answer(1, has_address=False, kernel="brg_matmul:avx512_core_bf16"),
            answer(2, packages={**PACKAGES, "torch": "2.7.0+cpu"}, kernel=""),
        ],
    )
    assert found == [
        "node1: an all-reduce over all hosts gave a wrong sum",
        "node2: 10.0.0.2 was answered by host1, which does not have this address",
        "node2: its CPU promises amx, but oneDNN computed with brg_matmul:avx512_core_bf16; "
        "see ONEDNN_MAX_CPU_ISA on the host",
        "node3: its CPU promises amx, but oneDNN computed with no kernel of its own; "
        "see ONEDNN_MAX_CPU_ISA on the host",
        "node3 differs from node1: torch 2.7.0+cpu instead of 2.8.0+cpu; run the stage stack again",
    ]


def test_packages_that_only_one_of_two_hosts_has() -> None:
    one = answer(0, packages={"torch": "2.8.0", "only-here": "1"})
    other = answer(2, packages={"torch": "2.8.0", "only-there": "2"})
    assert differences(REQUEST, one, other) == [
        "node3 differs from node1: only-here missing instead of 1, only-there 2 instead of none; "
        "run the stage stack again"
    ]
    assert differences(REQUEST, one, {**one, "rank": 1}) == []


@pytest.mark.parametrize(
    ("flags", "kernel"),
    [
        (["avx2", "avx512f", "avx512_bf16", "amx_bf16"], "amx"),
        (["avx512_bf16", "avx512f"], "avx512_core_bf16"),
        (["avx2", "avx512f"], "avx512_core"),
        (["avx2"], "avx2"),
        ([], ""),
    ],
)
def test_the_best_flag_is_what_a_cpu_promises(flags: list[str], kernel: str) -> None:
    assert promise(flags) == kernel


def test_a_cpu_that_promises_nothing_may_compute_as_it_likes() -> None:
    assert (
        compare(REQUEST, [answer(0, flags=[], kernel="gemm:jit"), answer(1, kernel="x:amx")]) == []
    )


def test_the_kernel_is_that_of_the_last_execution() -> None:
    log = [
        "onednn_verbose,v1,info,oneDNN v3.7.1",
        EXECUTED.format("jit:avx2"),
        "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,ref:any,undef,,,,,0.2",
        EXECUTED.format("brg_matmul:avx10_1_512_amx"),
        "another line",
    ]
    assert kernel_of("\n".join(log)) == "brg_matmul:avx10_1_512_amx"
    assert kernel_of(log[0]) == kernel_of("") == ""


def test_a_line_that_was_cut_tells_of_no_kernel() -> None:
    whole = EXECUTED.format("brg_matmul:avx10_1_512_amx")
    cut = "onednn_verbose,v1,primitive,exec,cpu,matmul"
    assert kernel_of(f"{whole}\n{cut}") == "brg_matmul:avx10_1_512_amx"
    assert kernel_of(f"{cut}\n{whole}\n{cut.removesuffix('matmul')}") == kernel_of(whole)
    assert kernel_of(cut) == ""


def test_answers_are_found_among_other_lines() -> None:
    document = json.dumps({"rank": 1})
    output = f"a warning\n[1] {MARK}{document}\n{MARK}{{broken\n{MARK}{json.dumps({'rank': 0})}\n"
    assert list(read_answers(output)) == [{"rank": 1}, {"rank": 0}]
    assert list(read_answers("")) == []


def test_a_row_has_the_inventorys_name_and_the_versions_that_are_shown() -> None:
    found = rows(REQUEST, [answer(1, packages={"torch": "2.8.0+cpu", "numpy": "2.3"})])
    assert found == [
        {
            "name": "node2", "address": "10.0.0.2", "hostname": "host1", "python": "3.11.7",
            "kernel": "brg_matmul:avx10_1_512_amx",
            "versions": {"torch": "2.8.0+cpu", "transformers": "", "ftcluster-train": ""},
        }
    ]  # fmt: skip


def test_addresses_of_this_host_and_of_others() -> None:
    assert has_address("127.0.0.1")
    assert has_address("localhost")
    assert not has_address("192.0.2.7")  # for documentation: nobody has it
    assert not has_address("a name that is none")


def test_hydra_uses_the_mesh_where_there_is_one() -> None:
    assert mesh_environment("", "eth0") == {}
    found = mesh_environment("/mesh/ssh_config", "eth0")
    assert found["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-F /mesh/ssh_config"
    assert found["I_MPI_HYDRA_IFACE"] == "eth0"
    assert "I_MPI_HYDRA_IFACE" not in mesh_environment("/mesh/ssh_config", "")
