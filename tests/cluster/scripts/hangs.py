"""A script whose rank 1 hangs while rank 0 waits for it in a collective."""

import os
import time

import torch
import torch.distributed as dist


def wait_for_nothing() -> None:
    time.sleep(300)


dist.init_process_group(os.environ["FTCLUSTER_BACKEND"])
if dist.get_rank() == 1:
    wait_for_nothing()
dist.all_reduce(torch.ones(1))
