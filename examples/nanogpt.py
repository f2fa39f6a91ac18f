"""A small GPT that learns a text character by character from random weights, like nanoGPT.

ftcluster run -- nanogpt.py --data text.txt

Needs: no packages except those of the stack.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--context", type=int, default=128)
options = parser.parse_args()


class Block(nn.Module):
    """A layer with causal attention (4 heads), followed by two linear layers."""

    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inwards, self.outwards = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """Return the output for `x`; both have the shape (batch, length, width)."""
        batch, length, width = x.shape
        heads = self.inwards(self.norms[0](x)).view(batch, length, 3, 4, width // 4)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outwards(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


class Gpt(nn.Module):
    """A model that predicts the next character at each position."""

    def __init__(self, letters, width, layers, context):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(context, width)
        for embedding in (self.letters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)), nn.LayerNorm(width))

    def forward(self, x):
        """Return scores of shape (batch, length, letters); `x` has shape (batch, length)."""
        x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        return self.blocks(x) @ self.letters.weight.T


dist.init_process_group(os.environ.get("FTCLUSTER_BACKEND", "gloo"))
text = options.data.read_text(encoding="utf-8")
letters = sorted({*text})
data = torch.tensor([letters.index(letter) for letter in text])
train, rest = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]
torch.manual_seed(1)  # all ranks start with the same weights
gpt = Gpt(len(letters), options.width, options.layers, options.context)
model = DistributedDataParallel(gpt)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(dist.get_rank())  # each rank draws different samples


def loss_of(model, data):
    """Return the mean loss on 16 random samples."""
    starts = torch.randint(len(data) - options.context, (16,), generator=generator)
    samples = torch.stack([data[start : start + options.context + 1] for start in starts])
    scores = model(samples[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), samples[:, 1:].flatten())


for step in range(1, options.steps + 1):
    loss = loss_of(model, train)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0 or step == options.steps:
        with torch.no_grad():
            both = torch.stack([loss.detach(), loss_of(gpt, rest)])
        dist.all_reduce(both)
        if dist.get_rank() == 0:
            learned, new = both / dist.get_world_size()
            print(f"step {step}: loss {learned:.3f}, of new text {new:.3f}")
if dist.get_rank() == 0:
    torch.save({"letters": letters, "model": gpt.state_dict()}, "model.pt")  # ftcluster fetch RUN
dist.destroy_process_group()
