"""The base class of tasks that train embeddings, with prompts, pooling and model files."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from ftcluster_common.data.data_files import DataError
from ftcluster_common.models.sentence_modules import (
    DOCUMENTS,
    QUERY,
    Dense,
    SentenceModules,
    dense_folders,
    module_files,
    read_modules,
)
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.protocol.kernel_limits import ATTENTION_TOKENS
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.embed import GIST, SentenceSimilarity
from ftcluster_train.engine.data.sampler import length_groups
from ftcluster_train.engine.data.token_samples import Sample, token_kind
from ftcluster_train.engine.models import longest_input
from ftcluster_train.engine.projections import Projection, model_class_with, projections_of
from ftcluster_train.engine.tasks.base import Batch, Task
from ftcluster_train.engine.tasks.embed.prompted_texts import PromptedText, Prompts
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.unpadding import skips_padding

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def learns_from_teacher(recipe: Recipe, purpose: Purpose) -> bool:
    """Return True if a recipe trains a model to reproduce the embeddings of a teacher."""
    guided = recipe.options.loss == GIST  # type: ignore[attr-defined]
    return bool(recipe.teacher) and purpose == "train" and not guided


def saved_layers(folder: Path, _hidden: int) -> tuple[Sequence[Dense], Sequence[Path]]:
    """Return the Dense modules of a model saved by sentence-transformers or by ftcluster."""
    modules = read_modules(folder) if folder.is_absolute() else None
    return (modules.dense, dense_folders(folder)) if modules else ((), ())


class EmbeddingTask(Task):
    """Trains a model that computes text embeddings, in the format of sentence-transformers.

    Attributes:
        model_prompts: the model's prompts for queries and for other texts.
        modules: pooling and normalization that follow the transformer in the saved model.
        projections: Dense modules of the current model.
        predicted_kind: kind of text that a prediction embeds, for the notice about its prompt.
    """

    name = "sentence-similarity"
    model_class = model_class_with(saved_layers, first=2)
    has_head = False
    reads_padding = False

    options: SentenceSimilarity
    separates_sets = True  # data sets may have different losses and negatives
    model_prompts = Prompts()
    modules = SentenceModules("mean", normalize=True)
    projections: Sequence[Projection] = ()
    predicted_kind = "query"
    _skips_padding = False  # True if the layers of the trained model skip padding
    _prompted = 0  # number of texts in the data that already begin with their prompt

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tokens_of: dict[str, int] = {}  # number of tokens of each unpooled prompt

    @property
    def prompts(self) -> Prompts:
        """The prompts of the data set in use; the recipe's fields override the model's prompts."""
        query, text = self.options.query_prompt, self.options.text_prompt
        prompts = self.model_prompts
        return prompts._replace(
            query=prompts.query if query is None else query,
            text=prompts.text if text is None else text,
        )

    @property
    def compares_dots(self) -> bool:
        """True if the loss compares embeddings by dot product, without normalizing them.

        It is False with matryoshka_dims, because sentence-transformers' MatryoshkaLoss normalizes
        the embeddings of each width.
        """
        options = self.options
        dots = options.reads_margins and not options.matryoshka_dims
        return dots and not self.modules.normalize

    def sample_settings(self) -> dict[str, Any]:
        return {"prompts": self.prompts}

    def notices(self) -> list[str]:
        notices: list[str] = []
        for name in self._options:
            with self.using(name):
                query, text, pooled = self.prompts
            used = {"query": query, "text": text}
            if self.purpose == PREDICT:
                used = {self.predicted_kind: query}
            written = [f"{prompt!r} before each {kind}" for kind, prompt in used.items() if prompt]
            apart = "" if pooled else ", whose tokens are not pooled"
            of_set = f" of {name}" * bool(name)
            notices += [f"prompts{of_set}: {', '.join(written)}{apart}"] if written else []
        if self._prompted:
            notices.append(
                f"{self._prompted} texts already begin with their prompt, so they contain it twice"
            )
        return [*super().notices(), *notices]

    def inspect_model(self, folder: Path) -> None:
        modules = self.modules_of(folder)
        query, text = modules.search_prompts
        if self.purpose == PREDICT:
            query = modules.prompt
        self.model_prompts = Prompts(query, text, modules.pools_prompt)

    def modules_of(self, folder: Path) -> SentenceModules:
        """Return the modules in a model's folder; the recipe's settings are ignored.

        If the folder has no modules, the default modules are returned. For a teacher's scores they
        do not normalize embeddings, because the teacher's margins may exceed 2, the largest
        difference between two cosines.
        """
        try:
            modules = read_modules(folder) if folder.is_absolute() else None
            if modules is None and self.options.reads_margins:
                return replace(self.modules, normalize=False)
            return modules or self.modules
        except DataError as error:
            if self.options.pooling == "auto" or self.options.normalize == "auto":
                raise TrainError(
                    str(error), "set the modules in the recipe: pooling=mean normalize=true"
                ) from None
            return self.modules

    def check_model(self, model: "PreTrainedModel") -> None:
        if model.config.is_encoder_decoder:
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which has a decoder "
                "in addition to its encoder",
                "use an encoder, such as microsoft/mpnet-base",
            )
        folder = Path(model.name_or_path)
        self.inspect_model(folder)
        modules = self.modules_of(folder)
        named = {QUERY: self.prompts.query, DOCUMENTS[0]: self.prompts.text}
        if self.options.query_prompt is not None or self.options.text_prompt is not None:
            modules = replace(modules, prompts=named, default_prompt=None)
        elif any(named.values()):  # the model is trained with both prompts, so both get names
            modules = replace(modules, prompts={**modules.prompts, **named})
        pooling, normalize = self.options.pooling, self.options.normalize
        self.modules = replace(
            modules,
            pooling=modules.pooling if pooling == "auto" else pooling,
            normalize=modules.normalize if normalize == "auto" else normalize,
        )
        if self.purpose == "train":
            self.modules = replace(
                self.modules, similarity="dot" if self.compares_dots else "cosine"
            )
        self.projections = projections_of(model)
        layers = self.modules.dense
        self.width = layers[-1].out_features if layers else model.config.hidden_size
        dims = self.options.matryoshka_dims
        if dims and max(dims) != self.width:
            raise TrainError(
                f"matryoshka_dims are {', '.join(map(str, dims))}, but embeddings of "
                f"{self.recipe.model} have {self.width} elements",
                f"make the largest dimension the whole width: {self.width}",
            )
        # freeze the pooler: it gets no gradient, so the gradient exchange would wait for it
        pooler = getattr(model, "pooler", None)
        if isinstance(pooler, torch.nn.Module):
            pooler.requires_grad_(False)

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self.projections = projections_of(model)
        self._skips_padding = skips_padding(model) and not self.has_head  # a head computes padding
        return super().use_fused_loss(model)

    def length_groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Divide the texts of a batch into groups, one for each pass through the model."""
        skips = self._skips_padding and max(lengths) <= ATTENTION_TOKENS
        return length_groups(lengths, skips)

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        self.projections = projections_of(model)
        return super().evaluation_kernels(model)

    def with_prompts(self, rows: Iterable[list[str]]) -> Iterator[list[PromptedText]]:
        """Yield the texts of rows with their prompts; the first text of a row is the query."""
        query, text, _ = self.prompts
        for first, *others in rows:
            self._prompted += bool(query) and first.startswith(query)
            self._prompted += sum(bool(text) and other.startswith(text) for other in others)
            yield [
                self.prompted(query, first, self.purpose != PREDICT),
                *(self.prompted(text, other, False) for other in others),
            ]

    def prompted(self, prompt: str, text: str, is_query: bool) -> PromptedText:  # noqa: ARG002
        """Return a text with its prompt.

        Args:
            is_query: True for a query, False for another text and for a text to predict.
        """
        return PromptedText(prompt, text)

    def tokens_of(
        self, texts: Sequence[PromptedText], limit: int
    ) -> tuple[Iterator[Mapping[str, list[int]]], int]:
        """Return the token columns of each text, and the number of truncated texts.

        Args:
            limit: maximum number of tokens of a text.
        """
        tokens, cut = self.reader.tokenize([list(map(str, texts))], limit)
        return ({"input_ids": ids} for ids in tokens["input_ids"]), cut

    def token_columns(self) -> dict[str, str]:
        """Return the columns of single-text samples, with their array type codes."""
        skipped = {} if self.prompts.pooled else {"skipped": "i"}
        return {"input_ids": token_kind(len(self.tokenizer)), **skipped}

    def skipped_tokens(self, texts: Iterable[PromptedText], limit: int) -> dict[str, list[int]]:
        """Return a column with each text's number of prompt tokens that are not pooled."""
        if self.prompts.pooled:
            return {}
        for prompt in self.prompts[:2]:
            if prompt and prompt not in self._tokens_of:
                ids = self.tokenizer(prompt, truncation=True, max_length=limit)["input_ids"]
                special = ids[-1] in self.tokenizer.all_special_ids
                self._tokens_of[prompt] = len(ids) - special
        return {"skipped": [self._tokens_of.get(text.prompt, 0) for text in texts]}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.reader.pad(samples)
        tokens = inputs["attention_mask"].clone()
        for mask, sample in zip(tokens, samples, strict=True):
            mask[: sample.get("skipped", [0])[0]] = 0
        return Batch(inputs, {"tokens": tokens})

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the files that sentence-transformers needs to load the model."""
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

    def saved_modules(self, folder: Path) -> SentenceModules | None:
        """Return the modules in the folder of a saved model."""
        return read_modules(folder)

    def saved_problems(self, folder: Path) -> list[str]:
        saved = self.saved_modules(folder)
        trained = f"its files have {saved}, but it was trained with {self.modules}"
        return [] if saved == self.modules else [trained]
