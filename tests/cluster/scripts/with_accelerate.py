"""A script as in Accelerate's documentation; a module in its folder makes the model."""

from pathlib import Path

import torch
from accelerate import Accelerator
from tiny import tiny_model
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(7)
tokens = torch.randint(0, 99, (32, 8))
loader = DataLoader(TensorDataset(tokens, tokens[:, 0] % 2), batch_size=4)
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
batches = 0
for ids, labels in loader:
    loss = model(input_ids=ids, labels=labels).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    batches += 1
accelerator.print(f"{accelerator.distributed_type} on {accelerator.device}")
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {batches} batches")
seen = accelerator.gather(torch.tensor([batches])).sum().item()
accelerator.print(f"{seen} batches in all")
if accelerator.is_main_process:
    Path("made.txt").write_text("by the script\n")
accelerator.end_training()
