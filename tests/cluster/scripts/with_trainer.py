"""A Trainer script with the command line of TrainingArguments, like transformers' examples."""

import torch
from tiny import tiny_model
from torch.utils.data import Dataset
from transformers import HfArgumentParser, Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(8) + index
        return {"input_ids": ids % 99, "labels": torch.tensor(index % 2)}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    trainer = Trainer(model=tiny_model(), args=arguments, train_dataset=Rows())
    trainer.train()
    print(
        f"rank {arguments.process_index} of {arguments.world_size} on {arguments.device}: "
        f"{trainer.state.global_step} steps"
    )
    trainer.save_model()


if __name__ == "__main__":
    main()
