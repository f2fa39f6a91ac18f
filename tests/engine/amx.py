"""AMX tiles for tests, emulated on any CPU that has AVX512: see amx.c."""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("amx.c")


def emulate(patch: pytest.MonkeyPatch) -> None:
    """Make matmuls and attention use tiles although the CPU has none."""
    from ftcluster_kernels import attention_heads, products

    _catch_instructions()
    for module in (products, attention_heads):
        patch.setattr(module, "has_amx", lambda: True)


@cache
def _catch_instructions() -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "amx.so"
        options = ["-O3", "-mavx512f", "-shared", "-fPIC", "-o", library]
        subprocess.run(["cc", *options, SOURCE], check=True)
        ctypes.CDLL(str(library))
