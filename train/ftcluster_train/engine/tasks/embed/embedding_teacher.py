"""The base class of tasks that use a teacher's embeddings, which are computed before training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ftcluster_common.data.data_files import DataError
from ftcluster_common.given_files import read_json
from ftcluster_common.models.sentence_modules import LENGTH, MODULES, SentenceModules, read_modules
from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.data.download import hash_of_weights
from ftcluster_train.engine.models import (
    call_model,
    load_config,
    load_model,
    load_tokenizer,
    longest_input,
    new_weights,
)
from ftcluster_train.engine.projections import Projection, project, projections_of
from ftcluster_train.engine.tasks.embed.embedding_task import EmbeddingTask
from ftcluster_train.engine.tasks.embed.vectors import pooled
from ftcluster_train.engine.tasks.tokens import TextReader, check_padding
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HINT = "use a sentence-transformers model, or the model of an embed run"


class TaughtEmbeddingTask(EmbeddingTask):
    """Trains a model with the embeddings of a teacher, which has its own tokenizer."""

    needs_reference = True

    def inspect_teacher(self, folder: Path) -> None:
        """Read the teacher's settings for embeddings, such as pooling.

        Raises:
            TrainError: the teacher is not a sentence-transformers model, or it is not supported.
        """
        name, tokenizer = self.recipe.teacher, load_tokenizer(str(folder))
        config = load_config(self._of_teacher(), str(folder), tokenizer)
        try:
            modules = read_modules(folder)
        except DataError as error:
            raise TrainError(f"the teacher {name}: {error}", HINT) from None
        if modules is None:
            raise TrainError(
                f"the teacher {name} has no {MODULES}, which defines how it makes embeddings", HINT
            )
        if config.is_encoder_decoder or (modules.prompt and not modules.pools_prompt):
            what = "has a decoder" if config.is_encoder_decoder else "does not pool its prompt"
            raise TrainError(f"the teacher {name} {what}, which is not supported", HINT)
        settings = read_json(folder / LENGTH) if (folder / LENGTH).is_file() else {}
        limit = settings.get("max_seq_length") if isinstance(settings, dict) else None
        limits = filter(None, (limit, longest_input(config, tokenizer)))
        self._teacher_limit = min(limits, default=self.options.max_length)
        self._teacher, self._teacher_reader = modules, TextReader(tokenizer)
        check_padding(tokenizer, self.recipe)
        layers = modules.dense
        self._teacher_width = layers[-1].out_features if layers else int(config.hidden_size)

    def load_teacher(self, folder: Path) -> None:
        """Load the teacher, and set `reference_key` to a hash of its weights."""
        self.inspect_teacher(folder)
        config = load_config(self._of_teacher(), str(folder), self._teacher_reader.tokenizer)
        model = load_model(self.model_class, self._of_teacher(), str(folder), config)
        if new := sorted(name for name in new_weights(model) if "pooler" not in name):
            raise TrainError(f"the teacher {self.recipe.teacher} lacks the weights {new[0]}", HINT)
        self.reference_model, self.reference_key = model, f"{hash_of_weights(folder)}-"

    def _of_teacher(self) -> Recipe:
        model = self.recipe.teacher or ""
        return replace(self.recipe, model=model, from_scratch=False, config_overrides={})

    def teacher_vectors(
        self, model: "PreTrainedModel", tokens: Sequence[list[int]], bf16: bool
    ) -> torch.Tensor:
        """Return the teacher's embedding of each text, in fp32.

        Args:
            tokens: token ids of each text, from the teacher's tokenizer.
        """
        inputs = self._teacher_reader.pad([{"input_ids": ids} for ids in tokens])
        with KernelMode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            hidden = call_model(model, inputs).last_hidden_state
        return output_vectors(
            hidden, inputs["attention_mask"], self._teacher, projections_of(model)
        )


def output_vectors(
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    modules: SentenceModules,
    projections: Sequence[Projection],
) -> torch.Tensor:
    """Apply the modules that follow the transformer, and return the embeddings in fp32."""
    vectors = project(pooled(hidden, tokens, modules.pooling), projections)
    return functional.normalize(vectors, dim=-1) if modules.normalize else vectors
