"""Distillation of embeddings: a small model is trained to reproduce the embeddings of a teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional

from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.embed import embedded_column
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows, find_columns
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.tasks.base import Batch
from ftcluster_train.engine.tasks.embed.embedded_texts import close_set, texts_of
from ftcluster_train.engine.tasks.embed.embedding_task import learns_from_teacher
from ftcluster_train.engine.tasks.embed.embedding_teacher import (
    TaughtEmbeddingTask,
    output_vectors,
)
from ftcluster_train.engine.tasks.embed.prompted_texts import Prompts
from ftcluster_train.engine.tasks.embed.vectors import decoded, encoded
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@register
class EmbeddingDistillationTask(TaughtEmbeddingTask):
    """Trains a model, the student, to reproduce the embeddings of a teacher.

    The loss of a text is either the mean squared difference between the student's embedding and the
    target embedding, or 1 - their cosine. The targets are the teacher's embeddings. They are
    computed once, before the first step, with the teacher's tokenizer. If the teacher's embeddings
    are wider than the student's, they are projected onto their principal components, as in
    sentence-transformers' example model_distillation.py.
    """

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:
        return learns_from_teacher(recipe, purpose)

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        options = replace(self.options, loss="auto")
        self.used_as = replace(recipe, name="embed", options=options, teacher=None)
        self._vectors: dict[int, torch.Tensor] = {}  # target embeddings, by sample id
        self._components: torch.Tensor | None = None  # shape (student's width, teacher's width)
        self._written = 0  # number of samples written so far

    # the teacher

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        if model is not self.reference_model:
            return super().predict(model, samples, bf16)
        tokens = [sample["teacher_ids"] for sample in samples]
        return encoded(self.teacher_vectors(model, tokens, bf16))

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> str:
        vectors, notice = decoded(predictions), ""
        if self._teacher_width > self.width:
            if self._components is None:  # the first set is the training set
                self._components, kept = principal_components(vectors, self.width)
                notice = (
                    f"the teacher's embeddings have {self._teacher_width} elements: the target is "
                    f"their {self.width} principal components, which explain {kept:.1%} of the "
                    "variance"
                )
            vectors = vectors @ self._components.T
        for sample, vector in zip(samples, vectors, strict=True):
            self._vectors[sample["number"][0]] = vector
        return notice

    # data

    def inspect_model(self, folder: Path) -> None:
        modules = self.modules_of(folder)  # tokenize as `SentenceTransformer.encode` does
        self.model_prompts = Prompts(modules.prompt, "", modules.pools_prompt)

    def check_model(self, model: "PreTrainedModel") -> None:
        super().check_model(model)
        plain, normalize = self.modules_of(Path(model.name_or_path)), self.options.normalize
        if normalize == "auto":  # normalize the student's embeddings if the targets are normalized
            normalize = self._teacher.normalize and self._teacher_width == self.width
        self.modules = replace(plain, pooling=self.modules.pooling, normalize=normalize)
        if self._teacher_width < self.width:
            raise TrainError(
                f"embeddings of {self.recipe.model} have {self.width} elements, more than the "
                f"{self._teacher_width} of the teacher {self.recipe.teacher}",
                "use a student that is not wider than its teacher",
            )

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write one sample for each distinct text of a set."""
        teacher_columns = {"teacher_ids": token_kind(len(self._teacher_reader.tokenizer))}
        writer = SampleWriter(folder, {**self.token_columns(), **teacher_columns, "number": "q"})
        texts = iter(dict.fromkeys(texts_of(rows, self.options, split)))
        cut = 0
        while batch := list(islice(texts, BATCH_ROWS)):
            prompted = [text for [text] in self.with_prompts([text] for text in batch)]
            tokens, too_long = self.reader.tokenize([list(map(str, prompted))], limit)
            read = [f"{self._teacher.prompt}{text}" for text in batch]
            of_teacher, _ = self._teacher_reader.tokenize([read], self._teacher_limit)
            cut += too_long
            for number, text in enumerate(prompted):
                writer.add(
                    {
                        "input_ids": tokens["input_ids"][number],
                        "teacher_ids": of_teacher["input_ids"][number],
                        "number": [self._written],
                        **self.skipped_tokens([text], limit),
                    }
                )
                self._written += 1
        [column] = find_columns(rows, split, lambda names: [embedded_column(self.options, names)])
        about = {"columns": {"query_column": column}, "rows": len(writer)}
        return self.truncated(split, close_set(writer, split, cut, **about), limit, "texts")

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        batch, none = super().collate(samples), torch.zeros(self.width)
        vectors = [self._vectors.get(sample["number"][0], none) for sample in samples]
        batch.targets["teacher"] = torch.stack(vectors)
        return batch

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._losses(outputs, targets)[0].sum()

    def _losses(
        self, outputs: Any, targets: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each text's loss, and the cosine between its embedding and its target."""
        student = output_vectors(
            outputs.last_hidden_state, targets["tokens"], self.modules, self.projections
        )
        teacher = targets["teacher"]
        cosines = functional.cosine_similarity(student, teacher, dim=-1)
        if self.options.loss == "mse":
            return (student - teacher).square().mean(-1), cosines
        return 1 - cosines, cosines

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each text's loss, and the cosine between its embedding and its target."""
        losses, cosines = self._losses(outputs, self.collate(samples).targets)
        return list(zip(losses.tolist(), cosines.tolist(), strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:  # noqa: ARG002
        losses, cosines = (
            torch.tensor(values).double() for values in zip(*predictions, strict=True)
        )
        return {"cosine": cosines.mean().item(), "loss": losses.mean().item()}


def principal_components(vectors: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
    """Return principal components as rows, and the fraction of the variance that they explain.

    All ranks get the components of rank 0, because their signs may differ between CPUs.

    Args:
        vectors: vectors to analyse, shape (vectors, width).
        count: number of components.

    Raises:
        TrainError: there are fewer vectors than components.
    """
    if len(vectors) < count:
        raise TrainError(
            f"{count} principal components of the teacher's embeddings need as many texts, but the "
            f"training set has {len(vectors)}",
            "add texts, or use a teacher as wide as the student",
        )
    centered = vectors.double() - vectors.double().mean(0)
    variances, directions = torch.linalg.eigh(centered.T @ centered)  # ascending
    components = directions.T[-count:].flip(0)
    largest = components.gather(1, components.abs().argmax(1, True))
    components = (components * largest.sign()).float().contiguous()  # fix the signs
    dist.broadcast(components, 0)
    return components, float(variances[-count:].sum() / variances.sum())
