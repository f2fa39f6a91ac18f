# Apache-2.0 (see LICENSE)
"""Detects the generation of a Xeon, and if this process can use AMX."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any

# Linux, arch/x86/include/asm/intel-family.h (the _X and _D models of family 6);
# also in Intel SDM volume 4, "CPUID Signature Values of DisplayFamily_DisplayModel"
GENERATIONS = {
    63: "Haswell",
    79: "Broadwell",
    85: "Skylake",
    106: "Ice Lake",
    108: "Ice Lake",
    143: "Sapphire Rapids",
    173: "Granite Rapids",
    174: "Granite Rapids",
    175: "Sierra Forest",
    207: "Emerald Rapids",
    221: "Clearwater Forest",
}
# Three generations have the model number 85. Each entry is a generation, a CPU flag that it
# introduced, and its first stepping. A CPU that matches no entry is a Skylake.
OF_MODEL_85 = (("Cooper Lake", "avx512_bf16", 10), ("Cascade Lake", "avx512_vnni", 5))

DIAMOND_RAPIDS = (19, 1)  # family and model
# model of QEMU's Icelake-Server v1 to v3, and of Snow Ridge, which has no AVX
QEMU_ICE_LAKE = 134

GENERATIONS_WITH_AMX = ("Sapphire Rapids", "Emerald Rapids", "Granite Rapids", "Diamond Rapids")

# Linux, arch/x86/entry/syscalls/syscall_64.tbl, arch/x86/include/uapi/asm/prctl.h and
# Documentation/arch/x86/xstate.rst
SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


def generation(vendor: str, family: int, model: int, stepping: int, flags: Collection[str]) -> str:
    """Return the name of an Intel server CPU's generation, or "other".

    The arguments are fields of /proc/cpuinfo; `vendor` is a string such as GenuineIntel.
    """
    if vendor == "GenuineIntel" and (family, model) == DIAMOND_RAPIDS:
        return "Diamond Rapids"
    if vendor != "GenuineIntel" or family != 6:
        return "other"
    if model == QEMU_ICE_LAKE and "avx2" in flags:
        return "Ice Lake"
    if model == 85:
        by_flag = [name for name, flag, _first in OF_MODEL_85 if flag in flags]
        # a hypervisor that hides the flag usually keeps the stepping
        by_stepping = [name for name, _flag, first in OF_MODEL_85 if stepping >= first]
        return [*by_flag, *by_stepping, GENERATIONS[85]][0]
    return GENERATIONS.get(model, "other")


def call_kernel(number: int, *arguments: Any) -> int:
    """Return a system call's result: 0 or more, or -1 on failure."""
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    result: int = call(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
    return result


def amx_state(flags: Collection[str], syscall: Callable[..., int] = call_kernel) -> str:
    """Return the state of AMX for this process: "usable", "refused" or "absent".

    A check of the kernel's version is not enough: distributions backport AMX to older kernels, and
    a sandbox may refuse AMX on a new kernel.
    """
    if "amx_tile" not in flags:
        return "absent"
    granted = syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0
    return "usable" if granted else "refused"
