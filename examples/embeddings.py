"""An embedding model with sentence-transformers' own trainer.

ftcluster run --requirements requirements.txt -- embeddings.py --data pairs.jsonl

Example of a row: {"query": "a question", "text": "its answer"}. Needs: sentence-transformers in
requirements.txt. The command `ftcluster train embed` needs no packages and is faster.
"""

import argparse
import json
from pathlib import Path

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
parser.add_argument("--epochs", type=float, default=1)
options = parser.parse_args()

rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
data = Dataset.from_list([{"anchor": row["query"], "positive": row["text"]} for row in rows])
model = SentenceTransformer(options.model, device="cpu")
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        "checkpoints",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=2e-5,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=data,
    loss=MultipleNegativesRankingLoss(model),  # negatives: other texts in a rank's batch
)
trainer.train()
if trainer.is_world_process_zero():
    model.save_pretrained("model")  # ftcluster fetch RUN copies it
