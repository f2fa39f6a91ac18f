"""A classifier of numeric rows with torch's DistributedDataParallel alone.

ftcluster run -- ddp.py --data rows.csv

The last column contains the class as an integer, counted from 0. Needs: no packages except those of
the stack.
"""

import argparse
import csv
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

dist.init_process_group(os.environ.get("FTCLUSTER_BACKEND", "gloo"))
torch.manual_seed(1)  # all ranks start with the same weights
with options.data.open(encoding="utf-8", newline="") as file:
    table = torch.tensor([[float(cell) for cell in row] for row in csv.reader(file)])
inputs, classes = table[:, :-1], table[:, -1].long()
data = TensorDataset((inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6), classes)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
count = int(classes.max()) + 1
net = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, count))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(options.epochs):
    sampler.set_epoch(epoch)  # shuffles the rows differently in each epoch
    sums = torch.zeros(2)  # number of correct rows, number of all rows
    for features, labels in loader:
        scores = model(features)
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        sums += torch.tensor([(scores.argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: accuracy {sums[0] / sums[1]:.3f}")
if dist.get_rank() == 0:
    torch.save(net.state_dict(), "model.pt")  # ftcluster fetch RUN copies it
dist.destroy_process_group()
