"""Runs a command as if on an Intel CPU with fewer instructions than this CPU has.

    sudo python3 -m tests.as_cpu avx2 ./test engine

In a mount namespace, /proc/cpuinfo lacks the flags, and variables limit torch's libraries to the
remaining instructions. avx2: Haswell and Broadwell; avx512: Skylake to Ice Lake; avx512_bf16:
Cooper Lake, and later ones in a virtual machine that hides AMX.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CPUINFO = Path("/proc/cpuinfo")


class Cpu(NamedTuple):
    """Features that a CPU lacks.

    Attributes:
        without: prefixes of the flags that it lacks.
        limits: variables of oneDNN, torch and MKL.
    """

    without: tuple[str, ...]
    limits: dict[str, str]


def _limits(onednn: str, aten: str, mkl: str) -> dict[str, str]:
    return {
        "ONEDNN_MAX_CPU_ISA": onednn,
        "ATEN_CPU_CAPABILITY": aten,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
    }


CPUS = {
    "avx2": Cpu(("avx512", "amx", "avx_vnni"), _limits("AVX2", "avx2", "AVX2")),
    "avx512": Cpu(
        ("avx512_bf16", "avx512_fp16", "amx", "avx_vnni"),
        _limits("AVX512_CORE_VNNI", "avx512", "AVX512"),
    ),
    "avx512_bf16": Cpu(
        ("avx512_fp16", "amx", "avx_vnni"), _limits("AVX512_CORE_BF16", "avx512", "AVX512")
    ),
}


def cpuinfo_of(cpu: Cpu, text: str) -> str:
    """Return the text of /proc/cpuinfo for an older CPU, made from this CPU's text."""
    text = re.sub(r"(?m)^(vendor_id\s*:).*", r"\1 GenuineIntel", text)
    return re.sub(
        r"(?m)^(flags\s*:)(.*)",
        lambda line: " ".join(
            [line[1], *(flag for flag in line[2].split() if not flag.startswith(cpu.without))]
        ),
        text,
    )


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(prog="tests.as_cpu", description=__doc__.splitlines()[0])
    parser.add_argument("cpu", choices=CPUS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        # the shell would start without a command and print nothing
        parser.error("a command is needed")
    cpu = CPUS[options.cpu]
    with tempfile.NamedTemporaryFile("w", prefix="cpuinfo-") as file:
        file.write(cpuinfo_of(cpu, CPUINFO.read_text()))
        file.flush()
        mount = f'mount --bind "$0" {CPUINFO} && exec "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mount, file.name, *options.command],
            env={**os.environ, **cpu.limits}, check=False,
        )  # fmt: skip
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
