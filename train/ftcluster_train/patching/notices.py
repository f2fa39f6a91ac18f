"""What does not fit is said once, by rank 0."""

import os
import sys
from functools import cache
from pathlib import Path

from ftcluster_common.launch import own_rank

BF16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}


@cache
def say_once(text: str) -> None:
    """Write a line to stderr, if this process has not yet."""
    if own_rank({"PMI_RANK": "0", **os.environ}) == 0:
        print(f"fast: {text}", file=sys.stderr, flush=True)


@cache
def say_fp32() -> None:
    """Say that bf16 would be faster, where it would be."""
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    if flags := [name for flag, name in BF16_FLAGS.items() if flag in words]:
        say_once(
            f"the script trains in fp32; with {flags[0]} this CPU is faster in bf16: --bf16 of "
            'Trainer, mixed_precision="bf16" of Accelerate, or torch.autocast'
        )
