"""Supervised fine-tuning of a chat model with TRL.

ftcluster run --requirements requirements.txt -- sft_trl.py --data chats.jsonl --model MODEL

Example of a row: {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant",
"content": "Hello!"}]}. Needs: trl in requirements.txt. The command `ftcluster train sft` needs
no packages and is faster.
"""

import argparse
import json
from pathlib import Path

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
parser.add_argument("--epochs", type=float, default=1)
options = parser.parse_args()

rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
trainer = SFTTrainer(
    model=options.model,
    args=SFTConfig(
        "checkpoints",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=2,
        learning_rate=2e-5,
        max_length=512,
        bf16=False,  # TRL needs a GPU for bf16; with AMX, use ftcluster run --fast
        use_cpu=True,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Dataset.from_list([{"messages": row["messages"]} for row in rows]),
)
trainer.train()
trainer.save_model("model")  # written by rank 0; ftcluster fetch RUN copies it
