"""A script with the command line of transformers' run_glue.py and run_qa.py, on made-up rows.

It is copied under their names, and obeys the model's folder and the flags as they do.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

ANSWERS = Path(sys.argv[0]).name == "run_qa.py"
LENGTH = 8


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "of a folder or of the Hub"})


@dataclass
class DataTrainingArguments:
    task_name: str | None = field(default=None)
    dataset_name: str | None = field(default=None)
    max_seq_length: int = field(default=384)
    doc_stride: int = field(default=128)


class Rows(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        label = torch.tensor(index % 2)
        labels = (
            {"start_positions": label, "end_positions": label} if ANSWERS else {"labels": label}
        )
        return {"input_ids": torch.arange(LENGTH) + index, **labels}


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_arguments, data, arguments = parser.parse_args_into_dataclasses()
    assert data.dataset_name if ANSWERS else data.task_name
    kind = AutoModelForQuestionAnswering if ANSWERS else AutoModelForSequenceClassification
    model = kind.from_pretrained(model_arguments.model_name_or_path)
    trainer = Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())
    if arguments.do_train:
        trainer.train()
        trainer.save_model()
        trainer.save_state()
    if arguments.do_eval:
        trainer.save_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
