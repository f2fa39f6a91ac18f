"""A user's folder with scripts, for `ftcluster run` on several hosts."""

import shutil
from pathlib import Path

from tests.programs import ROOT

SUM = """\
import os
import socket

import torch
import torch.distributed as dist
from beside import total

dist.init_process_group(os.environ["FTCLUSTER_BACKEND"])
rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world_size} on {socket.gethostname()}: {total(torch.tensor([rank + 1.0]))}")
dist.destroy_process_group()
"""
BESIDE = """\
import torch
import torch.distributed as dist


def total(value: torch.Tensor) -> int:
    dist.all_reduce(value)
    return int(value.item())
"""


def write_scripts(folder: Path) -> Path:
    """sum.py with a module beside it, and ends.py, which ends as its arguments say."""
    folder.mkdir()
    (folder / "sum.py").write_text(SUM)
    (folder / "beside.py").write_text(BESIDE)
    shutil.copy(ROOT / "tests/cluster/scripts/ends.py", folder)
    return folder
