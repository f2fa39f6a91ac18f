"""Your own task, for --task: an encoder predicts how many words a text has.

    ftcluster train --task word_count.py --data texts.jsonl --model google-bert/bert-base-uncased

Each row of the data is an object that contains a text: {"text": "three short words"}.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow, check_columns
from ftcluster_common.limits import limited
from ftcluster_common.tasks.registry import register
from ftcluster_common.tasks.spec import Options, TaskSpec


# 1. The fields of this task in a recipe, with their defaults.
@dataclass(frozen=True)
class WordCount(Options):
    """Predicts the number of words of a text."""

    text_column: str = "text"
    max_length: int = limited(64, at_least=2)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


# 2. The declaration for the control node, which has no torch: columns, rows and metrics.
class WordCountSpec(TaskSpec[WordCount]):
    """The declaration of the task."""

    name = "word-count"
    fields = WordCount
    pipeline = "text-classification"  # name in transformers, which loads the model

    def columns(self, options: WordCount, columns: Sequence[str], answered: bool) -> Columns:
        return {"text": (options.text_column,)}

    def row_check(self, options: WordCount, answered: bool, columns: Sequence[str]) -> CheckRow:
        return partial(check_columns, [options.text_column], [])

    def row_form(self, options: WordCount, answered: bool) -> str:
        return f"each row has {options.text_column} (text)"

    def metric_names(self, options: WordCount) -> tuple[str, ...]:
        return ("loss", "exact")


register(WordCountSpec())


# 3. The computation. ftcluster calls this function only on the hosts.
def on_hosts() -> None:
    """Register the class of the task."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from ftcluster_train.engine.data.token_samples import SampleWriter
    from ftcluster_train.engine.tasks import registry
    from ftcluster_train.engine.tasks.base import Batch, Task

    @registry.register
    class WordCountTask(Task):
        name = "word-count"
        model_class = AutoModelForSequenceClassification
        options: WordCount

        # data: tokenize the rows and write samples; runs once on each host
        def encode_split(self, rows: Any, split: str, limit: int, folder: Path) -> list[str]:
            writer = SampleWriter(folder, {**self.reader.token_kinds(), "words": "i"})
            for row in rows:
                text = row[self.options.text_column]
                tokens, _ = self.reader.tokenize([[text]], limit)
                sample = {name: column[0] for name, column in tokens.items()}
                writer.add({**sample, "words": [len(text.split())]})
            writer.close()
            return []

        # model: fields of the model's configuration
        def model_settings(self, train_set: Any) -> dict[str, Any]:
            return {"num_labels": 1, "problem_type": "regression"}

        # collation: make a batch of samples
        def collate(self, samples: Sequence[Any]) -> Batch:
            words = torch.tensor([float(sample["words"][0]) for sample in samples])
            return Batch(self.reader.pad(samples), {"words": words})

        # loss: the sum over the samples, in fp32
        def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
            return (outputs.logits[:, 0].float() - targets["words"]).abs().sum()

        # metrics: first plain data for each sample, then the metrics over all samples
        def predictions(self, outputs: Any, samples: Sequence[Any]) -> list[Any]:
            return list(outputs.logits[:, 0].float().tolist())

        def score(self, predictions: Sequence[Any], samples: Any) -> dict[str, float]:
            words = [sample["words"][0] for sample in samples]
            errors = [abs(a - b) for a, b in zip(predictions, words, strict=True)]
            exact = sum(error < 0.5 for error in errors)
            return {"loss": sum(errors) / len(errors), "exact": exact / len(errors)}

        # prediction: the fields that ftcluster predict adds to each row
        def answers(self, predictions: Sequence[Any], samples: Any) -> list[dict[str, Any]]:
            return [{"prediction": round(value, 3)} for value in predictions]
