"""A script that adds a number of each rank and imports a module from its own folder."""

import os
import socket

import torch
import torch.distributed as dist
from beside import total

dist.init_process_group(os.environ["FTCLUSTER_BACKEND"])
rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world_size} on {socket.gethostname()}: {total(torch.tensor([rank + 1.0]))}")
dist.destroy_process_group()
