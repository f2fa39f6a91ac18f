"""A classifier of numeric rows with Lightning Fabric.

ftcluster run --requirements requirements.txt -- fabric.py --data rows.csv

The last column contains the class as an integer, counted from 0. Needs: lightning in
requirements.txt.
"""

import argparse
import csv
import os
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

local = int(os.environ["LOCAL_WORLD_SIZE"])
fabric = Fabric(
    accelerator="cpu",
    strategy="ddp",
    devices=local,
    num_nodes=int(os.environ["WORLD_SIZE"]) // local,
    plugins=TorchElasticEnvironment(),  # ranks are already running, as with torchrun
)
fabric.launch()
fabric.seed_everything(1)
with options.data.open(encoding="utf-8", newline="") as file:
    table = torch.tensor([[float(cell) for cell in row] for row in csv.reader(file)])
inputs, classes = table[:, :-1], table[:, -1].long()
data = TensorDataset((inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6), classes)
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=32, shuffle=True))
count = int(classes.max()) + 1
net = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, count))
model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
for epoch in range(options.epochs):
    right = rows = 0
    for features, labels in loader:
        scores = model(features)
        fabric.backward(nn.functional.cross_entropy(scores, labels))
        optimizer.step()
        optimizer.zero_grad()
        right, rows = right + int((scores.argmax(1) == labels).sum()), rows + len(labels)
    sums = fabric.all_reduce(torch.tensor([right, rows]), reduce_op="sum")
    fabric.print(f"epoch {epoch + 1}: accuracy {sums[0] / sums[1]:.3f}")
if fabric.is_global_zero:
    torch.save(net.state_dict(), "model.pt")  # ftcluster fetch RUN copies it
