"""Causal language models, trained on blocks of a fixed number of tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from ftcluster_common.data.data_sets import is_train
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.lm import CausalLm
from ftcluster_kernels.cross_entropy import linear_cross_entropy, token_losses
from ftcluster_train.engine.data.pieces import Piece
from ftcluster_train.engine.data.sources import Texts
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.metrics import perplexity
from ftcluster_train.engine.models import (
    call_model,
    router_coefficient,
    unknown_id,
)
from ftcluster_train.engine.tasks.answer_review import AnswerReview, InheritedSettings, texts_in
from ftcluster_train.engine.tasks.base import Batch, Document
from ftcluster_train.engine.tasks.generation_settings import repair_settings
from ftcluster_train.engine.tasks.lm.language_model import LanguageModelTask, batches
from ftcluster_train.engine.tasks.lm.packing import Packer
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.patching.batch_context import sums_for, token_rows_for

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@register
class CausalLmTask(LanguageModelTask):
    """Trains with the cross entropy of all tokens of a block except the first, as in run_clm."""

    name = "causal-lm"
    model_class = AutoModelForCausalLM
    options: CausalLm
    pads = False
    length_field = "block_size"

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self._router_coefficient = 0.0
        self._inherited = InheritedSettings(recipe, tokenizer)

    def inspect_model(self, folder: Path) -> None:
        self._inherited.read(folder)

    def sample_settings(self) -> dict[str, Any]:
        return self._inherited.to_dict()

    def encode_texts(self, texts: Texts, split: str, length: int, folder: Path) -> list[str]:
        writer = SampleWriter(folder, {"input_ids": token_kind(len(self.tokenizer))})
        packer, unknown = Packer(length), unknown_id(self.tokenizer)
        # notices about settings are reported only once
        is_first = is_train(split) or self.purpose != "train"
        end, begins = self.tokenizer.eos_token_id, True
        review = self._inherited.review("texts") if is_first else AnswerReview({})
        count = not_known = 0
        for tokens in self._tokens(texts):
            count += len(tokens)
            not_known += 0 if unknown is None else tokens.count(unknown)
            for ids in packer.add(tokens):
                writer.add({"input_ids": ids})
                review.add(texts_in(ids, end, begins))
                begins = ids[-1] == end
        if not len(writer):
            raise self.too_short(split, len(packer.left), length)
        writer.close()
        notices = []
        if is_first and end is not None:
            notices = self._inherited.notices(split, review, end, [], self.purpose == "train")
        if not not_known:
            return notices
        return [
            *notices,
            f"{split}: NOT KNOWN to the tokenizer: {not_known} of {count} tokens are unknown "
            "tokens, which the model is trained to write; use a model whose tokenizer can "
            "represent these texts",
        ]

    def _tokens(self, texts: Iterable[Piece]) -> Iterator[list[int]]:
        """Yield the token ids of each piece of text.

        An end-of-text token is appended to the last piece of a text.
        """
        end = self.tokenizer.eos_token_id
        for batch in batches((piece.text, piece.last) for piece in texts):
            encoded = self.tokenizer([text for text, _ in batch], add_special_tokens=False)
            self.reader.count_special(text for text, _ in batch)
            for (_, is_last), ids in zip(batch, encoded["input_ids"], strict=True):
                yield [*ids, end] if is_last and end is not None else ids

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        ids = sample["input_ids"]
        return [Document(ids, range(1, len(ids)))]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def check_model(self, model: "PreTrainedModel") -> None:
        """Check that the model is a decoder.

        An encoder also sees the token that it has to predict, so its loss would be near 0.

        Raises:
            TrainError: the model is not a decoder.
        """
        self._router_coefficient = router_coefficient(model.config)
        self._inherited.reset(model)
        model.eval()
        # the rows differ only in the last token
        tokens = torch.tensor([[0, 1, 2, 1], [0, 1, 2, 3]])
        inputs = {"input_ids": tokens, "use_cache": False}
        try:
            logits, changed = call_model(model, inputs).logits[:, :-1].float()
        except Exception as error:  # model code may raise any exception
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which fails even on "
                f"a single text: {first_line(error)}",
                "use a decoder, such as gpt2",
            ) from error
        if not torch.allclose(logits, changed, rtol=1e-3, atol=1e-4):
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which reads text in "
                "both directions, including the tokens that it should predict",
                "use a decoder, such as gpt2; for an encoder: config_overrides.is_decoder=true",
            )

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write a generation configuration that stops generation at the end-of-text token."""
        repair_settings(model, folder, self.tokenizer.eos_token_id, self.tokenizer)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        # blocks are full, so they need neither padding nor a mask
        tokens = torch.tensor([sample["input_ids"] for sample in samples])
        return Batch({"input_ids": tokens, "use_cache": False}, {"tokens": tokens})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss over each block's tokens, summed over the blocks.

        For a mixture-of-experts model with output_router_logits, the router loss is added, as in
        transformers.
        """
        logits, tokens = outputs.logits[:, :-1].flatten(0, 1), targets["tokens"][:, 1:]
        if self.head is not None:  # `logits` are hidden states, see use_fused_loss
            total = linear_cross_entropy(
                logits,
                self.head,
                tokens.flatten(),
                sums=sums_for(self.head),
                rows=token_rows_for(self.head),
            )
        else:
            total = cross_entropy(
                logits.float(), tokens.flatten(), reduction="sum", label_smoothing=self.smoothing
            )
        loss: torch.Tensor = total / tokens.shape[1]
        if self._router_coefficient:
            loss = loss + self._router_coefficient * outputs.aux_loss * len(tokens)
        return loss

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the mean loss of each block.

        The losses are computed one block at a time, because fp32 logits are large.
        """
        if self.evaluation_head is not None:  # the model returned hidden states
            tokens = torch.tensor([sample["input_ids"][1:] for sample in samples])
            hidden = outputs.logits[:, :-1].flatten(0, 1)
            of_tokens = token_losses(hidden, self.evaluation_head, tokens.flatten())
            means: list[float] = of_tokens.view(tokens.shape).mean(1).tolist()
            return means
        losses = []
        for logits, sample in zip(outputs.logits, samples, strict=True):
            tokens = torch.tensor(sample["input_ids"][1:])
            losses.append(cross_entropy(logits[:-1].float(), tokens).item())
        return losses

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        loss = sum(predictions) / len(samples)
        return {"loss": loss, "perplexity": perplexity(loss)}
