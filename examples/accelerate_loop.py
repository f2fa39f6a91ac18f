"""A text classifier with its own training loop and Accelerate.

ftcluster run -- accelerate_loop.py --data reviews.csv --model distilbert/distilbert-base-uncased

The data need the columns text and label. Needs: no packages except those of the stack.
"""

import argparse
import csv
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--model", default="distilbert/distilbert-base-uncased")
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()

set_seed(1)
with options.data.open(encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
names = sorted({row["label"] for row in rows})
tokenizer = AutoTokenizer.from_pretrained(options.model)


def batch_of(samples):
    """Return a batch of tensors made from rows."""
    texts = [row["text"] for row in samples]
    batch = tokenizer(texts, truncation=True, max_length=128, padding=True, return_tensors="pt")
    batch["labels"] = torch.tensor([names.index(row["label"]) for row in samples])
    return batch


accelerator = Accelerator()
model = AutoModelForSequenceClassification.from_pretrained(
    options.model, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)}
)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=batch_of)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = options.epochs * len(loader)
schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
for epoch in range(options.epochs):
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()  # a prepared schedule would advance once per rank
        optimizer.zero_grad()
        losses.append(loss.detach())
    mean = accelerator.reduce(torch.stack(losses).mean(), "mean")
    accelerator.print(f"epoch {epoch + 1}: loss {mean:.3f}")
if accelerator.is_main_process:
    accelerator.unwrap_model(model).save_pretrained("model")  # ftcluster fetch RUN copies it
    tokenizer.save_pretrained("model")
accelerator.end_training()
