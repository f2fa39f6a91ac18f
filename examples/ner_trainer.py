"""Token classification (NER) with transformers' Trainer.

ftcluster run -- ner_trainer.py --data tags.jsonl --model distilbert/distilbert-base-cased

Example of a row: {"tokens": ["Ada", "lives", "here"], "tags": ["B-PER", "O", "O"]}. The
script uses a tenth of the rows for validation. Needs: no packages except those of the stack.
"""

import argparse
import json
from pathlib import Path

from datasets import Dataset
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--model", default="distilbert/distilbert-base-cased")
parser.add_argument("--epochs", type=float, default=3)
options = parser.parse_args()

rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
names = sorted({tag for row in rows for tag in row["tags"]})
tokenizer = AutoTokenizer.from_pretrained(options.model)


def encoded(row):
    """Return tokens and labels: the tag for the first token of a word, -100 for other tokens."""
    tokens = tokenizer(row["tokens"], is_split_into_words=True, truncation=True, max_length=256)
    words = tokens.word_ids()
    before = [None, *words[:-1]]
    tokens["labels"] = [
        -100 if word is None or word == last else names.index(row["tags"][word])
        for word, last in zip(words, before, strict=True)
    ]
    return tokens


def accuracy(prediction):
    """Return the fraction of the words whose tag is predicted correctly."""
    is_labelled = prediction.label_ids != -100
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(right[is_labelled].mean())}


data = Dataset.from_list(rows).map(encoded, remove_columns=["tokens", "tags"])
data = data.train_test_split(0.1, seed=1)
model = AutoModelForTokenClassification.from_pretrained(
    options.model, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)}
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "checkpoints",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        learning_rate=5e-5,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
    ),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorForTokenClassification(tokenizer),
    compute_metrics=accuracy,
)
trainer.train()
print(trainer.evaluate())
trainer.save_model("model")  # written by rank 0; ftcluster fetch RUN copies it
