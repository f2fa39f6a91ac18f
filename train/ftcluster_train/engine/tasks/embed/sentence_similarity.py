"""Embeddings of texts: those of a query and the text that belongs to it are alike."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.nn import functional
from transformers import AutoModel

from ftcluster_common.data.data_files import DataError
from ftcluster_common.models.sentence_modules import (
    DOCUMENTS,
    QUERY,
    SentenceModules,
    module_files,
    read_modules,
)
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.tasks.embed import SCORE_LOSSES
from ftcluster_train.engine.data.sampler import length_groups
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.metrics import constant_notice
from ftcluster_train.engine.models import longest_input
from ftcluster_train.engine.tasks.base import Batch, Forward
from ftcluster_train.engine.tasks.embed.embedded_texts import EmbeddedTexts, texts_in
from ftcluster_train.engine.tasks.embed.in_batch_negatives import (
    BatchTexts,
    gather_texts,
    ranking_loss,
)
from ftcluster_train.engine.tasks.embed.metrics import recall, retrieval_metrics
from ftcluster_train.engine.tasks.embed.mined_negatives import with_hard_negatives
from ftcluster_train.engine.tasks.embed.pair_losses import correlations, score_loss
from ftcluster_train.engine.tasks.embed.prompted_texts import Prompts
from ftcluster_train.engine.tasks.embed.vectors import decoded, encoded, pooled
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.comm.traffic import Traffic
    from ftcluster_train.comm.world import World
    from ftcluster_train.engine.progress import ProgressLog

RECALLS = (10, 100)
SCORED = 1024  # queries that are compared with all texts at once
DIGITS = 8  # of a number of an embedding that is predicted, behind the point


@register
class SentenceSimilarityTask(EmbeddedTexts):
    """Contrastive training; the negatives are those of the batch of all ranks.

    So a step computes all embeddings before the loss, see `engine.step.GradientCacheStep`.
    """

    name = "sentence-similarity"
    compares_batch = True
    model_class = AutoModel
    has_head = False
    # a batch has random rows: rows of one length are often about the same text, so not negatives
    group_by_length = False
    reads_padding = False

    modules = SentenceModules("mean", normalize=True)

    def look_at_model(self, folder: Path) -> None:
        modules = self._modules_of(folder)
        query, text = modules.search_prompts
        if self.purpose == PREDICT:
            query = modules.prompt
        given = self.options.query_prompt, self.options.text_prompt
        self.prompts = Prompts(
            query if given[0] is None else given[0],
            text if given[1] is None else given[1],
            modules.pools_prompt,
        )

    def _modules_of(self, folder: Path) -> SentenceModules:
        """What follows the transformer of a folder, without the recipe's own settings."""
        try:
            return (read_modules(folder) if folder.is_absolute() else None) or self.modules
        except DataError as error:
            if self.options.pooling == "auto" or self.options.normalize == "auto":
                raise TrainError(
                    str(error), "train another way: pooling=mean normalize=true"
                ) from None
            return self.modules

    def check_model(self, model: "PreTrainedModel") -> None:
        if model.config.is_encoder_decoder:
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which has a decoder "
                "beside its encoder",
                "use an encoder, such as microsoft/mpnet-base",
            )
        folder = Path(model.name_or_path)
        self.look_at_model(folder)
        modules = self._modules_of(folder)
        named = {QUERY: self.prompts.query, DOCUMENTS[0]: self.prompts.text}
        if self.options.query_prompt is not None or self.options.text_prompt is not None:
            modules = replace(modules, prompts=named, default_prompt=None)
        elif any(named.values()):  # both by name, as the model is trained, whatever has no name
            modules = replace(modules, prompts={**modules.prompts, **named})
        pooling, normalize = self.options.pooling, self.options.normalize
        self.modules = replace(
            modules,
            pooling=modules.pooling if pooling == "auto" else pooling,
            normalize=modules.normalize if normalize == "auto" else normalize,
        )
        self.width = model.config.hidden_size
        dims = self.options.matryoshka_dims
        if dims and max(dims) != self.width:
            raise TrainError(
                f"matryoshka_dims are {', '.join(map(str, dims))}, and embeddings of "
                f"{self.recipe.model} have {self.width} numbers",
                f"the largest is all of them, or these are not trained: {self.width}",
            )
        # no embedding depends on it, and the exchange of gradients would wait for its own
        pooler = getattr(model, "pooler", None)
        if isinstance(pooler, torch.nn.Module):
            pooler.requires_grad_(False)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.reader.pad(samples)
        tokens = inputs["attention_mask"].clone()
        for mask, sample in zip(tokens, samples, strict=True):
            mask[: sample.get("skipped", [0])[0]] = 0
        return Batch(inputs, {"tokens": tokens})

    def prepare_train_set(
        self, model: "PreTrainedModel", train_set: Samples, world: "World", bf16: bool,
        log: "ProgressLog",
    ) -> Samples:  # fmt: skip
        if not self.options.hard_negatives:
            return train_set
        return with_hard_negatives(self, model, train_set, world, bf16, log)

    def gather_batch(self, samples: Sequence[Sample], traffic: "Traffic") -> BatchTexts:
        return gather_texts(samples, traffic)

    def vectors(self, samples: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """Return the embeddings of rows' texts, of length 1, shape (texts, width)."""
        groups, places = self.group_texts(samples)
        pooled_texts = [self.pool(*forward(group)) for group in groups]
        return functional.normalize(torch.cat(pooled_texts), dim=-1)[places]

    def group_texts(self, rows: Sequence[Sample]) -> tuple[list[list[Sample]], torch.Tensor]:
        """The texts of rows, of about the same length in each group.

        Returns:
            The groups, and the place of each text in all groups one after the other.
        """
        texts = [ids for row in rows for ids in texts_in(row)]
        groups = length_groups(list(map(len, texts)))
        places = torch.tensor(list(chain.from_iterable(groups))).argsort()
        skipped = [count for row in rows for count in row.get("skipped", ())]
        samples = [{"input_ids": ids} for ids in texts]
        for sample, count in zip(samples, skipped, strict=bool(skipped)):
            sample["skipped"] = [count]
        return [[samples[i] for i in group] for group in groups], places

    def batch_loss(self, vectors: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
        options = self.options
        weights = options.matryoshka_weights or [1.0] * len(options.matryoshka_dims)
        by_width = dict(zip(options.matryoshka_dims, weights, strict=True)) or {self.width: 1.0}
        # auto has been found where the data were read
        loss = options.loss if options.loss in SCORE_LOSSES else "cosent"
        scored = not batch.labels.isnan().any()
        total = torch.zeros(())
        for width, weight in by_width.items():
            first = _first(vectors, width)
            if scored:
                total = total + weight * score_loss(first, batch, loss, options.scale)
            else:
                part = ranking_loss(first, batch, options.scale, options.symmetric)
                total = total + weight * part
        return total

    def pool(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One vector for each text, in fp32.

        Args:
            targets: `tokens` of shape (texts, length), 0 for padding and for what is not pooled.
        """
        return pooled(outputs.last_hidden_state, targets["tokens"], self.modules.pooling)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """The embedding of each text, as base64 of its fp32 numbers."""
        embeddings = self.pool(outputs, self.collate(samples).targets)
        if self.modules.normalize:
            embeddings = functional.normalize(embeddings, dim=-1)
        return encoded(embeddings)

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """How well the queries find their texts among all texts of the set, by the cosine.

        Or how well cosines and scores of pairs correlate. Where the first numbers of embeddings are
        trained as well, names have how many: ndcg_at_10_dim_64.
        """
        embeddings, about = decoded(predictions), samples.about
        whole = embeddings.shape[1]
        metrics: dict[str, float] = {}
        for width in sorted({whole, *self.options.matryoshka_dims}, reverse=True):
            first = _first(embeddings, width, True)
            if "pairs" in about:
                left, right = torch.tensor(about["pairs"]).T
                found = correlations(first[left], first[right], about["labels"])
            else:
                found = search(first, about)
            ending = "" if width == whole else f"_dim_{width}"
            metrics |= {f"{name}{ending}": value for name, value in found.items()}
        return metrics

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:
        about = samples.about
        if "pairs" not in about:
            return ""
        embeddings = functional.normalize(decoded(predictions), dim=-1)
        left, right = torch.tensor(about["pairs"]).T
        cosines = (embeddings[left] * embeddings[right]).sum(1).tolist()
        return constant_notice(cosines, about["labels"])

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """The embedding of each row's text, as a list of numbers."""
        return [
            {"prediction": [round(number, DIGITS) for number in numbers]}
            for numbers in decoded(predictions).tolist()
        ]

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """What sentence-transformers needs to load the model."""
        length = longest_input(model.config, self.tokenizer) or self.options.max_length
        documents = module_files(
            self.modules,
            self.width,
            min(length, self.options.max_length),
            {"transformers": transformers.__version__, "pytorch": torch.__version__},
        )
        for name, document in documents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def saved_problems(self, folder: Path) -> list[str]:
        saved = read_modules(folder)
        trained = f"its files say {saved}, it was trained with {self.modules}"
        return [] if saved == self.modules else [trained]


def _first(embeddings: torch.Tensor, width: int, whole: bool = False) -> torch.Tensor:
    """The first numbers of embeddings, as embeddings of length 1; `whole`: all may not be so."""
    if width == embeddings.shape[1] and not whole:
        return embeddings
    return functional.normalize(embeddings[:, :width], dim=-1)


def search(embeddings: torch.Tensor, about: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of queries that look for their texts; `about` is `Search.about`."""
    documents = torch.tensor(about["documents"])
    retrieved: list[list[int]] = []
    for queries in torch.tensor(about["queries"]).split(SCORED):
        scores = embeddings[queries] @ embeddings[documents].T
        retrieved += documents[scores.topk(min(RECALLS[-1] + 1, len(documents))).indices].tolist()
    # a query may be one of the texts itself
    others = [
        [text for text in texts if text != same]
        for same, texts in zip(about["same"], retrieved, strict=True)
    ]
    recalls = {f"recall_at_{depth}": recall(others, about["relevant"], depth) for depth in RECALLS}
    return {**retrieval_metrics(others, about["relevant"]), **recalls}
