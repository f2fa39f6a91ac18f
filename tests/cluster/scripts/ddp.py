"""A plain DDP script with env:// that knows nothing of any cluster."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(os.environ.get("FTCLUSTER_BACKEND", "gloo"))
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = [torch.empty_like(model.module.weight) for _ in range(world_size)]
dist.all_gather(weights, model.module.weight.detach())
equal = all(torch.equal(one, weights[0]) for one in weights)
print(f"rank {rank} of {world_size}, local rank {os.environ['LOCAL_RANK']}")
print(f"equal weights: {equal}, threads {torch.get_num_threads()}")
dist.destroy_process_group()
