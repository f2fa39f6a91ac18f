"""Training of multi-vector encoders (ColBERT), in the format of sentence-transformers."""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional
from transformers import AddedToken

from ftcluster_common.data.data_files import DataError
from ftcluster_common.models.sentence_modules import (
    IDENTITY,
    MASK,
    Dense,
    SentenceModules,
    TokenVectors,
    dense_folders,
    kept_prefixes,
    read_modules,
    read_multi_vector,
)
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.multi_vector import MultiVectorEncoding
from ftcluster_train.comm.gather_rows import count_rows, gather_rows
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.models import longest_input
from ftcluster_train.engine.projections import Layers, model_class_with, project
from ftcluster_train.engine.tasks.base import Batch, Forward
from ftcluster_train.engine.tasks.embed.corpus_search import Comparison
from ftcluster_train.engine.tasks.embed.in_batch_negatives import (
    QUERY,
    BatchTexts,
    gather_texts,
    matching_loss,
)
from ftcluster_train.engine.tasks.embed.pair_losses import teacher_loss
from ftcluster_train.engine.tasks.embed.prompted_texts import PromptedText, Prompts
from ftcluster_train.engine.tasks.embed.sentence_similarity import DIGITS, SentenceSimilarityTask
from ftcluster_train.engine.tasks.multi_vector.token_vectors import (
    comparison,
    decoded,
    encoded,
    max_similarities,
)
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ftcluster_train.comm.traffic import Traffic

DIMENSION = 128  # number of elements in a new model's vectors, as in sentence-transformers
NO_QUERY = -1  # value in the column `expansion` for a text that is not a query


class BatchTokens(NamedTuple):
    """The texts in the rows of a batch, from all ranks, and the number of vectors per text.

    Attributes:
        texts: texts of the batch.
        lengths: number of vectors of each text.
        counts: number of vectors of each rank.
    """

    texts: BatchTexts
    lengths: Sequence[int]
    counts: Sequence[int]


def layers_for(dimension: int | None) -> Layers:
    """Return a function that returns the layers that follow the transformer in this task.

    They are the Dense modules in the model's folder or, if there are none, a new linear layer
    without a bias.
    """

    def layers(folder: Path, hidden: int) -> tuple[Sequence[Dense], Sequence[Path]]:
        modules = None
        if folder.is_absolute():
            modules = read_multi_vector(folder) or read_modules(folder)
        if modules and modules.dense:
            return modules.dense, dense_folders(folder)
        return (Dense(hidden, dimension or DIMENSION, bias=False, activation=IDENTITY),), ()

    return layers


@register
class MultiVectorEncodingTask(SentenceSimilarityTask):
    """Trains a vector for each token, compared by MaxSim.

    Rows, samples and negatives are the same as in the task sentence-similarity. `options` contains
    the fields of that task, and `fields` contains the fields of the recipe. The column `expansion`
    of a sample contains a value for each text: the number of mask tokens appended to a query, or
    NO_QUERY for other texts.
    """

    name = "multi-vector-encoding"
    trains_head = False
    predicted_kind = "document"
    compared_queries = 32
    modules = SentenceModules(MASK, normalize=True)

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        assert isinstance(recipe.options, MultiVectorEncoding)
        self.fields = recipe.options
        pairs: dict[str, Any] = {}
        for name, options in self._options.items():
            assert isinstance(options, MultiVectorEncoding)
            pairs[name] = options.pairs
        self._options, self.options = pairs, pairs[self._data_set]
        self.model_class = model_class_with(layers_for(self.fields.dimension), first=1)
        self._tokens = TokenVectors(self.fields.query_length, self.fields.max_length)
        self._skipped = torch.empty(0, dtype=torch.int64)  # token ids that are ignored in documents

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:  # noqa: ARG003
        return True

    # model

    def modules_of(self, folder: Path) -> SentenceModules:
        """Return the modules in a model's folder, with the settings of the recipe."""
        try:
            saved = read_multi_vector(folder) if folder.is_absolute() else None
            embedder = read_modules(folder) if folder.is_absolute() and not saved else None
        except DataError as error:
            raise TrainError(
                str(error), "use an encoder without modules, or a ColBERT model of this kind"
            ) from None
        modules = saved or self.modules
        if embedder:  # only its prompts are used, not its pooling
            prompts, default = embedder.prompts, embedder.default_prompt
            modules = replace(modules, prompts=prompts, default_prompt=default)
        fields, of_model = self.fields, modules.tokens
        expands = of_model.expands if of_model else False
        skipped = of_model.skipped if of_model else ()
        if fields.query_expansion != "auto":
            expands = fields.query_expansion
        if fields.skip_punctuation != "auto":
            skipped = tuple(string.punctuation) if fields.skip_punctuation else ()
        attends = bool(of_model and of_model.attends and expands)
        lengths = fields.query_length, fields.max_length
        prefixes = of_model.prefixes if of_model else None
        tokens = TokenVectors(*lengths, expands, attends, skipped, prefixes)
        return replace(modules, tokens=tokens)

    def inspect_model(self, folder: Path) -> None:
        super().inspect_model(folder)
        self._use(self.modules_of(folder))

    def _use(self, modules: SentenceModules) -> None:
        assert modules.tokens is not None
        self._tokens, tokenizer = modules.tokens, self.tokenizer
        _make_special(tokenizer, modules.tokens.prefixes or ())
        ids = [tokenizer.convert_tokens_to_ids(word) for word in modules.tokens.skipped]
        unknown = tokenizer.unk_token_id
        self._skipped = torch.tensor(
            [number for number in ids if number is not None and number != unknown],
            dtype=torch.int64,
        )
        if self._tokens.expands and self._mask_token is None:
            raise TrainError(
                f"the tokenizer of {self.recipe.model} has no mask token to fill queries with",
                "train without: query_expansion=false",
            )

    @property
    def _mask_token(self) -> int | None:
        tokenizer = self.tokenizer
        token = tokenizer.mask_token_id
        token = tokenizer.eos_token_id if token is None else token
        return None if token is None else int(token)

    def check_model(self, model: "PreTrainedModel") -> None:
        super().check_model(model)
        wanted, layers = self.fields.dimension, self.projections
        width = layers[-1].linear.out_features
        if wanted not in (None, width):
            raise TrainError(
                f"vectors of {self.recipe.model} have {width} elements, not {wanted}",
                "remove dimension, or start from a model without a projection",
            )
        of_layers = tuple(
            Dense(
                layer.linear.in_features, layer.linear.out_features,
                layer.linear.bias is not None, _activation(layer.activation),
            )
            for layer in layers
        )  # fmt: skip
        longest = longest_input(model.config, self.tokenizer) or self.fields.max_length
        self._tokens = replace(
            self._tokens,
            query_length=min(longest, self._tokens.query_length),
            document_length=min(longest, self._tokens.document_length),
        )
        if prefixes := self._tokens.prefixes:  # the recipe may set other prompts
            kept = kept_prefixes(self.modules.prompts, prefixes)
            self._tokens = replace(self._tokens, prefixes=kept)
        self.width = width
        self.modules = replace(self.modules, dense=of_layers, tokens=self._tokens)
        # without attention to mask tokens, their vectors are the model's outputs for padding
        self.reads_padding = self._tokens.expands and not self._tokens.attends

    def saved_modules(self, folder: Path) -> SentenceModules | None:
        return read_multi_vector(folder)

    # data

    @property
    def prompts(self) -> Prompts:
        """The prompts of queries and of other texts; texts to predict are documents."""
        prompts = super().prompts
        return prompts._replace(query=prompts.text) if self.purpose == PREDICT else prompts

    def sample_settings(self) -> dict[str, Any]:
        tokens = self._tokens
        return {
            **super().sample_settings(),
            "query_length": tokens.query_length,
            "expands": tokens.expands,
        }

    def prompted(self, prompt: str, text: str, is_query: bool) -> PromptedText:
        """Return a text with its prompt; a query and an equal document get different tokens."""
        return PromptedText(prompt, text, is_query)

    def token_columns(self) -> dict[str, str]:
        return {**super().token_columns(), "expansion": "i"}

    def tokens_of(
        self, texts: Sequence[PromptedText], limit: int
    ) -> tuple[Iterator[Mapping[str, list[int]]], int]:
        cut = 0
        found: list[Mapping[str, list[int]]] = [{}] * len(texts)
        tokens = self._tokens
        for kind, longest in ((True, min(tokens.query_length, limit)), (False, limit)):
            places = [number for number, text in enumerate(texts) if text.is_query == kind]
            if not places:
                continue
            columns, too_long = self.reader.tokenize([[str(texts[n]) for n in places]], longest)
            cut += too_long
            for place, ids in zip(places, columns["input_ids"], strict=True):
                missing = longest - len(ids) if kind and tokens.expands else 0
                found[place] = {
                    "input_ids": [*ids, *[self._mask_token or 0] * missing],
                    "expansion": [missing if kind else NO_QUERY],
                }
        return iter(found), cut

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.reader.pad(samples)
        compared = inputs["attention_mask"].clone()
        for row, sample in enumerate(samples):
            expansion, length = sample["expansion"][0], len(sample["input_ids"])
            if expansion == NO_QUERY:
                compared[row] *= ~torch.isin(inputs["input_ids"][row], self._skipped)
            elif not self._tokens.attends:
                inputs["attention_mask"][row, length - expansion :] = 0
        return Batch(inputs, {"tokens": compared})

    # training

    def gather_batch(self, samples: Sequence[Sample], traffic: "Traffic") -> BatchTokens:  # type: ignore[override]
        texts = gather_texts(samples, traffic)
        groups, places = self.group_texts(samples)
        lengths = [self.collate(group).targets["tokens"].sum(1) for group in groups]
        mine = torch.cat(lengths)[places] if lengths else torch.empty(0, dtype=torch.int64)
        every = gather_rows(mine[:, None], texts.counts, traffic)[:, 0]
        return BatchTokens(texts, every.tolist(), count_rows(int(mine.sum()), traffic))

    def vectors(self, samples: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """Return the vectors of the compared tokens of all rows, shape (tokens, width)."""
        groups, places = self.group_texts(samples)
        of_texts = [one for group in groups for one in self._vectors(*forward(group))]
        return torch.cat([of_texts[place] for place in places.tolist()])

    def _vectors(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return each text's vectors for the comparison, normalized to length 1."""
        compared = targets["tokens"].bool()
        vectors = project(outputs.last_hidden_state[compared], self.projections)
        of_texts: Sequence[torch.Tensor] = functional.normalize(vectors, dim=-1).split(
            compared.sum(1).tolist()
        )
        return of_texts

    def batch_loss(self, vectors: torch.Tensor, batch: BatchTokens) -> torch.Tensor:  # type: ignore[override]
        of_texts = vectors.split(list(batch.lengths))
        texts, own, fields = batch.texts, batch.texts.rows, self.fields
        is_query = texts.kinds == QUERY
        queries = [of_texts[number] for number in is_query.nonzero()[own, 0].tolist()]
        if not queries:
            return vectors.sum() * 0
        if self.options.reads_margins:

            def scores_of(row: slice) -> torch.Tensor:
                query, *documents = of_texts[row]
                return max_similarities([query], documents)[0]

            return teacher_loss(
                fields.loss, scores_of, texts, fields.temperature, fields.normalize_scores
            )
        documents = [of_texts[number] for number in texts.documents.tolist()]
        return matching_loss(self.options.scale * max_similarities(queries, documents), texts)

    # predictions

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the vectors of each text, as base64 of their fp32 values."""
        return encoded(self._vectors(outputs, self.collate(samples).targets))

    def compare(self, documents: Sequence[Any]) -> Comparison:
        """Return the comparison of queries with the documents that have these predictions."""
        return comparison(documents, self.width)

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:  # noqa: ARG002
        return ""

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """Return the vectors for the text in each row, as lists of numbers."""
        return [
            {
                "prediction": [
                    [round(number, DIGITS) for number in vector]
                    for vector in decoded(prediction, self.width).tolist()
                ]
            }
            for prediction in predictions
        ]


def _make_special(tokenizer: "PreTrainedTokenizerBase", prefixes: Sequence[str]) -> None:
    """Let a tokenizer recognize the tokens that PyLate inserts, also if it changes their text.

    PyLate adds "[Q] " to the tokenizer as text that is normalized, so a tokenizer that lowercases
    its input would split "[Q] ". sentence-transformers 6 changes the token in the same way.
    """
    added = [
        AddedToken(prefix, normalized=False, special=True)
        for prefix in prefixes
        if prefix in tokenizer.get_vocab() and tokenizer.tokenize(prefix) != [prefix]
    ]
    if added:
        tokenizer.add_special_tokens({"additional_special_tokens": added})


def _activation(module: torch.nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__name__}"
