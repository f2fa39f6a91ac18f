"""The next token from those before it; texts packed into blocks of one length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.recipe import CausalLm, Recipe
from ftcluster_train.data.packing import PIECE, Packer, Piece
from ftcluster_train.data.sources import AT_ONCE, load_texts
from ftcluster_train.data.token_store import Sample, Samples, SampleWriter, move_tail, token_kind
from ftcluster_train.errors import TrainError
from ftcluster_train.kernels.linear_cross_entropy import find_head, linear_cross_entropy
from ftcluster_train.metrics.glue import perplexity
from ftcluster_train.tasks.base import Batch, Task


class CausalLmTask(Task):
    """Cross entropy of each block's tokens but its first, as run_clm has it."""

    model_class = AutoModelForCausalLM
    large_vocabulary = True

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(recipe, tokenizer)
        assert isinstance(recipe.options, CausalLm)
        self.options = recipe.options
        self._smoothing = recipe.training.label_smoothing_factor
        self._head: torch.Tensor | None = None
        self._router_coefficient = 0.0

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        """See Task."""
        block, notices = self.shortest(self.options.block_size, "block_size", longest)
        texts = load_texts(data, self.recipe.data_config, self.options.text_column)
        for split, found in texts.items():
            self._encode_split(found, split, block, folder / split)
        if "validation" not in texts:
            blocks = len(Samples(folder / "train"))
            percent = self.options.validation_split_percentage
            held = max(1, round(blocks * percent / 100))
            if held == blocks:
                raise TrainError(
                    f"the texts fill one block of {block} tokens; one to train on and one to "
                    "validate with are needed",
                    "give more text, or smaller blocks: block_size=128",
                )
            move_tail(folder / "train", folder / "validation", held)
            notices.append(f"validation: the last {held} of {blocks} blocks")
        return notices

    def _encode_split(self, texts: Iterable[Piece], split: str, block: int, folder: Path) -> None:
        writer = SampleWriter(folder, {"input_ids": token_kind(len(self.tokenizer))})
        packer = Packer(block)
        for tokens in self._tokens(texts):
            for ids in packer.add(tokens):
                writer.add({"input_ids": ids})
        if not len(writer):
            raise TrainError(
                f"the texts of {split} have {len(packer.left)} tokens, fewer than one block of "
                f"{block}",
                "give more text, or smaller blocks: block_size=128",
            )
        writer.close()

    def _tokens(self, texts: Iterable[Piece]) -> Iterator[list[int]]:
        """The tokens of each piece, those of a text's last one ending with the eos token."""
        end = self.tokenizer.eos_token_id
        for held in _batches(texts):
            encoded = self.tokenizer([piece.text for piece in held], add_special_tokens=False)
            for piece, ids in zip(held, encoded["input_ids"], strict=True):
                yield [*ids, end] if piece.last and end is not None else ids

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002 - see Task
        """See Task."""
        return {}

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def check_model(self, model: PreTrainedModel) -> None:
        """A model that sees the token it shall predict learns nothing and looks perfect."""
        if getattr(model.config, "output_router_logits", False):
            self._router_coefficient = model.config.router_aux_loss_coef
        model.eval()
        tokens = torch.tensor([[0, 1, 2, 1], [0, 1, 2, 3]])  # differ in their last one only
        one, other = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model that reads a text in "
                "both directions, so it sees the tokens that it shall predict",
                "take a decoder, such as gpt2; for an encoder: config_overrides.is_decoder=true",
            )

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """See Task; blocks are full, so there is no padding and no mask."""
        tokens = torch.tensor([sample["input_ids"] for sample in samples])
        return Batch({"input_ids": tokens, "use_cache": False}, {"tokens": tokens})

    def use_fused_loss(self, model: PreTrainedModel) -> torch.Tensor | None:
        """See Task."""
        self._head = None if self._smoothing else find_head(model)
        return self._head

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The mean over each block's tokens, summed over the blocks.

        A mixture of experts that is configured so (output_router_logits) adds the loss of its
        router to each block's, as transformers does.
        """
        found, tokens = outputs.logits[:, :-1].flatten(0, 1), targets["tokens"][:, 1:]
        if self._head is not None:  # then these are the hidden states
            total = linear_cross_entropy(found, self._head, tokens.flatten())
        else:
            total = cross_entropy(
                found.float(), tokens.flatten(), reduction="sum", label_smoothing=self._smoothing
            )
        loss: torch.Tensor = total / tokens.shape[1]
        if self._router_coefficient:
            loss = loss + self._router_coefficient * outputs.aux_loss * len(tokens)
        return loss

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each block its mean loss, with label smoothing as in transformers.

        Block by block, as fp32 logits take room.
        """
        losses = []
        for logits, sample in zip(outputs.logits, samples, strict=True):
            found, tokens = logits[:-1].float(), torch.tensor(sample["input_ids"][1:])
            losses.append(cross_entropy(found, tokens, label_smoothing=self._smoothing).item())
        return losses

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """See Task."""
        loss = sum(predictions) / len(samples)
        return {"loss": loss, "perplexity": perplexity(loss)}


def _batches(texts: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in batches that are neither too many nor too long."""
    held: list[Piece] = []
    length = 0
    for piece in texts:
        held.append(piece)
        length += len(piece.text)
        if len(held) == AT_ONCE or length >= 4 * PIECE:
            yield held
            held, length = [], 0
    if held:
        yield held
