"""Few-shot classification (SetFit): contrastive training of embeddings, then a logistic head."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ftcluster_common.data.class_names import as_word, find_labels
from ftcluster_common.data.data_files import TRAIN, DataError
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.models.sentence_modules import SentenceModules
from ftcluster_common.protocol.class_report import ClassReport, report_of_classes
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.few_shot import (
    FewShotClassification,
    drawn_shots,
    few_shot_columns,
    problem_of_shots,
)
from ftcluster_train.engine.data.sampler import length_groups
from ftcluster_train.engine.data.sets import draw_rows
from ftcluster_train.engine.data.sources import Rows, column_batches, find_columns
from ftcluster_train.engine.data.splits import RowKeys, RowNumbers
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.tasks.base import Document
from ftcluster_train.engine.tasks.class_numbers import names_of_model, numbered
from ftcluster_train.engine.tasks.classify.class_choice import class_answer
from ftcluster_train.engine.tasks.classify.labels import ClassLabels, labels_of_model
from ftcluster_train.engine.tasks.classify.metrics import default_metrics, measure
from ftcluster_train.engine.tasks.embed.embedded_texts import close_set, number_of_text
from ftcluster_train.engine.tasks.embed.prompted_texts import Prompts
from ftcluster_train.engine.tasks.embed.sentence_similarity import SentenceSimilarityTask
from ftcluster_train.engine.tasks.embed.vectors import decoded
from ftcluster_train.engine.tasks.few_shot.contrastive_pairs import contrastive_pairs
from ftcluster_train.engine.tasks.few_shot.logistic_head import LogisticHead, fit_head
from ftcluster_train.engine.tasks.few_shot.setfit_files import (
    read_head,
    write_head,
    write_setfit_head,
)
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.world import World
    from ftcluster_train.engine.progress import ProgressLog


@register
class FewShotClassificationTask(SentenceSimilarityTask):
    """Trains like SetFit (Tunstall et al. 2022), with the cosine loss of sentence-similarity.

    A training sample is a pair of rows. The target for their cosine is 1 if the rows have the same
    class, and 0 otherwise. The head is a logistic regression on the embeddings of the training
    rows. Each evaluation and each saved model fits a new head to the current embeddings. To provide
    these embeddings, each validation set begins with the training rows.
    """

    name = "few-shot-classification"
    options: FewShotClassification  # type: ignore[assignment]
    modules = SentenceModules("mean", normalize=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: LogisticHead | None = None  # head of a trained model
        self._shots: Mapping[str, Any] = {}  # tokens and classes of the training rows
        # the last predictions, and the log-probabilities of classes computed from them
        self._scored: tuple[Sequence[Any], torch.Tensor] = ((), torch.empty(0))

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:  # noqa: ARG003
        return True

    # data

    def inspect_rows(self, rows: Rows) -> None:
        """Read the classes from a trained model or, for a training run, from the rows."""
        if self.purpose == PREDICT:
            return
        _, labels = self._cells(rows, TRAIN)
        try:
            words = find_labels(labels, self.options.label_column, self.purpose == "train")
        except DataError as error:
            raise TrainError(str(error)) from error
        if self.trained:
            self._labels = labels_of_model(words, self.trained.label2id, self.recipe.model)
            self._names = names_of_model(self.trained)
        else:
            self._labels = ClassLabels({word: number for number, word in enumerate(words)})
            self._names = words

    def inspect_model(self, folder: Path) -> None:
        """Use the model's default prompt for all texts, as SetFit does."""
        modules = self.modules_of(folder)
        self.model_prompts = Prompts(
            query=modules.prompt, text=modules.prompt, pooled=modules.pools_prompt
        )

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[RowNumbers, str]:
        _, labels = self._cells(rows, TRAIN)
        drawn = draw_rows(map(as_word, labels), percent, seed)  # same fraction of each class
        return drawn, f"{len(drawn)} rows"

    def keys_of_rows(self, rows: Rows) -> RowKeys:
        """Return the class of each row, for stratified splits."""
        _, label = self._column_names(rows, TRAIN)
        return RowKeys(label, [*map(as_word, self._cells(rows, TRAIN)[1])])

    def _cells(self, rows: Rows, split: str) -> tuple[list[str], list[Any]]:
        """Return the texts and the labels of a set."""
        text, label = self._column_names(rows, split)
        texts: list[str] = []
        labels: list[Any] = []
        for batch in column_batches(rows, [text, *filter(None, [label])], split):
            texts += batch[text]
            labels += batch[label] if label else []
        return texts, labels

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        texts, labels = self._cells(rows, split)
        classes = [self._labels.read(label, split) for label in labels]
        notices: list[str] = []
        if is_train(split):
            kept = drawn_shots([*map(as_word, labels)], self.options.num_samples)
            if len(kept) < len(texts):
                notices.append(
                    f"train: {len(kept)} of {len(texts)} rows are used, at most "
                    f"{self.options.num_samples} of each class (num_samples)"
                )
            texts, classes = [texts[n] for n in kept], [classes[n] for n in kept]
            if problem := problem_of_shots([self._names[number] for number in classes]):
                raise TrainError(f"{split}: {problem}")
        tokenized, cut = self._tokenize(texts, limit)
        text, label = self._column_names(rows, split)
        columns = {"text_columns": (text,)} | ({"label_column": label} if label else {})
        if is_train(split):
            self._shots = {"samples": tokenized, "classes": classes, "names": self._names}
            self._write_pairs(texts, folder, cut, columns)
            pairs = len(Samples(folder))
            notices.append(f"train: {pairs} pairs of {len(texts)} rows")
        else:
            shots = self._shots or {"samples": [], "classes": []}
            writer = SampleWriter(folder, self.token_columns())
            for sample in (*shots["samples"], *tokenized):
                writer.add(sample)
            close_set(
                writer, split, cut, classes=classes, shots=shots["classes"],
                names=getattr(self, "_names", []), columns=columns, rows=len(texts),
            )  # fmt: skip
        return [*notices, *self.truncated(split, cut, limit, "texts")]

    def _column_names(self, rows: Rows, split: str) -> tuple[str, str]:
        """Return the text column and the label column, which is "" for rows to predict."""
        labelled = self.purpose != PREDICT
        text, label = find_columns(
            rows, split, lambda names: few_shot_columns(self.options, names, labelled)
        )
        return text, label if labelled else ""

    def _tokenize(self, texts: Sequence[str], limit: int) -> tuple[list[Sample], int]:
        """Return a sample for each text, and the number of truncated texts."""
        prompted = [text for [text] in self.with_prompts([text] for text in texts)]
        tokens, cut = self.reader.tokenize([[*map(str, prompted)]], limit)
        samples = [
            {"input_ids": list(ids), **self.skipped_tokens([text], limit)}
            for text, ids in zip(prompted, tokens["input_ids"], strict=True)
        ]
        return samples, cut

    def _write_pairs(
        self, texts: Sequence[str], folder: Path, cut: int, columns: Mapping[str, Any]
    ) -> None:
        options, training = self.options, self.recipe.training
        samples = self._shots["samples"]
        seed = training.seed if training.data_seed is None else training.data_seed
        writer = SampleWriter(
            folder, {**self.token_columns(), "lengths": "i", "texts": "q", "label": "d"}
        )
        numbers = [*map(number_of_text, texts)]
        pairs = contrastive_pairs(
            self._shots["classes"], options.sampling_strategy, options.num_iterations, seed
        )
        for first, second, score in pairs:
            pair = [samples[first], samples[second]]
            writer.add(
                {
                    name: [value for sample in pair for value in sample[name]]
                    for name in self.token_columns()
                }
                | {
                    "lengths": [len(sample["input_ids"]) for sample in pair],
                    "texts": [numbers[first], numbers[second]],
                    "label": [score],
                }
            )
        close_set(writer, TRAIN, cut, shots=self._shots, columns=columns, rows=len(texts))

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        documents = super().documents(sample, samples)
        if "lengths" not in sample:
            return documents
        label = "same class" if sample["label"][0] else "other class"
        return [documents[0]._replace(label="text"), documents[1]._replace(label=label)]

    # model

    def check_model(self, model: "PreTrainedModel") -> None:
        super().check_model(model)
        if self.trained:
            self._head = read_head(Path(model.name_or_path))

    def prepare_train_set(
        self, model: "PreTrainedModel", train_set: Samples, world: "World", bf16: bool,  # noqa: ARG002
        log: "ProgressLog",  # noqa: ARG002
    ) -> Samples:  # fmt: skip
        """Store the training rows, to which each head is fitted."""
        self._shots = train_set.about["shots"]
        return train_set

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the files of sentence-transformers and SetFit, and the class names."""
        super().write_files(model, folder)
        names = self._shots["names"]
        config = copy.deepcopy(model.config)
        config.update(numbered(names))
        config.save_pretrained(folder)
        embeddings = self._embeddings(model, self._shots["samples"])
        head = fit_head(embeddings, self._shots["classes"], len(names))
        write_head(head, folder)
        if self.options.setfit_head:
            write_setfit_head(head, names, folder)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _embeddings(self, model: "PreTrainedModel", samples: Sequence[Sample]) -> torch.Tensor:
        trains = model.training
        model.eval()
        by_number: dict[int, Any] = {}
        for group in length_groups([len(sample["input_ids"]) for sample in samples]):
            with context_of(model):
                predicted = self.predict(model, [samples[n] for n in group], bf16=False)
            by_number |= zip(group, predicted, strict=True)
        model.train(trains)
        return decoded([by_number[number] for number in range(len(samples))])

    # results

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the head's accuracy, F1 and mean cross entropy."""
        likely, classes = self._likely(predictions, samples), samples.about["classes"]
        report = self.class_report(predictions, samples)
        chosen = likely.argmax(1).tolist()
        metrics = measure(default_metrics(len(samples.about["names"])), chosen, classes, report)
        loss = -likely[torch.arange(len(classes)), torch.tensor(classes)].mean().item()
        return {**metrics, "loss": loss}

    def class_report(self, predictions: Sequence[Any], samples: Samples) -> ClassReport:
        chosen = self._likely(predictions, samples).argmax(1).tolist()
        return report_of_classes(chosen, samples.about["classes"], samples.about["names"])

    def _likely(self, predictions: Sequence[Any], samples: Samples) -> torch.Tensor:
        """Return the class log-probabilities of a set's rows, without the training rows."""
        if self._scored[0] is not predictions:
            embeddings, about = decoded(predictions), samples.about
            shots = about["shots"]
            head = self._head
            if shots:
                head = fit_head(embeddings[: len(shots)], shots, len(about["names"]))
            assert head is not None, "an evaluation without training rows has a trained model"
            self._scored = (predictions, head.log_probabilities(embeddings[len(shots) :]))
        return self._scored[1]

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:  # noqa: ARG002
        return ""

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """Return each row's predicted class with its probability."""
        assert self.trained is not None
        names = names_of_model(self.trained)
        likely = self._likely(predictions, samples)
        sure, chosen = likely.exp().max(dim=1)
        return [
            class_answer(names, [number], probability, [], several=False, every=False)
            for number, probability in zip(chosen.tolist(), sure.tolist(), strict=True)
        ]
