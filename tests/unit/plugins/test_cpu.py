import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.cpu import (
    amx_state,
    call_kernel,
    generation,
)

AVX512 = {"avx2", "fma", "avx512f", "avx512bw", "avx512vl"}
VNNI = AVX512 | {"avx512_vnni"}
BF16 = VNNI | {"avx512_bf16"}
AMX = BF16 | {"amx_tile", "amx_bf16", "amx_int8"}


@pytest.mark.parametrize(
    ("family", "model", "stepping", "flags", "name"),
    [
        (6, 63, 2, {"avx2", "fma"}, "Haswell"),  # E5-2666 v3
        (6, 79, 1, {"avx2", "fma"}, "Broadwell"),  # E5-2686 v4
        (6, 85, 4, AVX512, "Skylake"),  # Platinum 8175M
        (6, 85, 7, VNNI, "Cascade Lake"),  # Platinum 8259CL
        (6, 85, 11, BF16, "Cooper Lake"),  # Platinum 8380H
        (6, 85, 7, {"avx2"}, "Cascade Lake"),  # the hypervisor hides flags
        (6, 85, 11, {"avx2"}, "Cooper Lake"),
        (6, 106, 6, VNNI, "Ice Lake"),  # Platinum 8375C
        (6, 108, 1, VNNI, "Ice Lake"),  # D-2796NT
        (6, 143, 8, AMX, "Sapphire Rapids"),  # Platinum 8488C
        (6, 207, 2, AMX, "Emerald Rapids"),  # Platinum 8592+
        (6, 173, 1, AMX | {"amx_fp16"}, "Granite Rapids"),  # 6980P
        (6, 174, 1, AMX, "Granite Rapids"),  # 6726P-B
        (6, 175, 3, {"avx2", "avx_vnni"}, "Sierra Forest"),  # 6780E
        (6, 221, 1, {"avx2", "avx_vnni"}, "Clearwater Forest"),
        (19, 1, 0, AMX, "Diamond Rapids"),
        (6, 134, 0, AVX512, "Ice Lake"),  # QEMU's Icelake-Server
        (6, 134, 5, {"sse4_2"}, "other"),  # Atom P5942B
        (6, 158, 10, {"avx2"}, "other"),  # Core i7-8700
        (15, 6, 1, set(), "other"),  # qemu64
    ],
)
def test_generations(family: int, model: int, stepping: int, flags: set[str], name: str) -> None:
    assert generation("GenuineIntel", family, model, stepping, flags) == name


def test_other_makers_use_the_same_numbers_for_other_things() -> None:
    assert generation("AuthenticAMD", 25, 17, 1, BF16) == "other"  # EPYC 9R14
    assert generation("CentaurHauls", 6, 63, 2, set()) == "other"


def test_the_kernel_decides_about_amx() -> None:
    calls = []

    def kernel(answer: int):  # type: ignore[no-untyped-def]
        return lambda *arguments: calls.append(arguments) or answer

    assert amx_state(BF16, kernel(0)) == "absent"
    assert calls == []
    assert amx_state(AMX, kernel(0)) == "usable"
    assert amx_state(AMX, kernel(-1)) == "refused"
    assert calls == [(158, 0x1023, 18)] * 2
    assert call_kernel(158, 0xFFFF, 0) == -1  # there is no such operation
    assert call_kernel(39) > 1  # getpid
