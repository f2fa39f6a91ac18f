"""Masked language models, which predict masked tokens from the tokens around them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.lm import MaskedLm
from ftcluster_kernels.cross_entropy import linear_cross_entropy, token_losses
from ftcluster_train.engine.data.sets import SEED
from ftcluster_train.engine.data.sources import Texts
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.data.windows import windows
from ftcluster_train.engine.metrics import perplexity
from ftcluster_train.engine.tasks.base import COMPARED_TOKENS, Batch, Document
from ftcluster_train.engine.tasks.lm.language_model import LanguageModelTask, batches
from ftcluster_train.engine.tasks.lm.masking import SPECIAL, Masks, kinds_of
from ftcluster_train.engine.tasks.lm.packing import Packer
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import sums_for, token_rows_for
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@register
class MaskedLmTask(LanguageModelTask):
    """Trains with the cross entropy of masked tokens, averaged over all ranks, as in run_mlm.

    The last layer computes logits only for masked tokens.
    """

    name = "masked-lm"
    model_class = AutoModelForMaskedLM
    options: MaskedLm
    draws = True
    reads_padding = False
    biased_head = True
    loss_column = "input_ids"  # the number of masked tokens is proportional to its length

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self._bias: torch.Tensor | None = None
        name = recipe.tokenizer or recipe.model
        if tokenizer.mask_token_id is None:
            raise TrainError(
                f"the tokenizer of {name} has no mask token, which replaces the tokens to predict",
                "use the tokenizer of an encoder, or train a decoder: the recipe clm",
            )
        if not tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer of {name} does not report the positions of tokens in a text",
                "use a tokenizer that has a tokenizer.json: tokenizer=DIR",
            )
        self._masks = Masks(
            tokenizer.mask_token_id, len(tokenizer), self.options.mlm_probability,
            self.options.whole_word_mask,
        )  # fmt: skip

    # data

    def encode_texts(self, texts: Texts, split: str, length: int, folder: Path) -> list[str]:
        kinds = {"input_ids": token_kind(len(self.tokenizer)), "kinds": "b"}
        writer = SampleWriter(folder, kinds)
        packers = {name: Packer(length) for name in kinds}
        documents = long = 0
        for document in self._documents(texts):
            documents += 1
            if self.options.line_by_line:
                parts = [*_cut(document, length)]
                long += len(parts) > 1
            else:
                blocks = (packers[name].add(values) for name, values in document.items())
                parts = [
                    dict(zip(kinds, values, strict=True)) for values in zip(*blocks, strict=True)
                ]
            for part in parts:
                if any(part["kinds"]):
                    writer.add(part)
        remaining = len(packers["input_ids"].left)
        if not len(writer):
            raise self.too_short(split, remaining, length)
        writer.close(rows=documents)
        notices = [f"{split}: {documents} texts in {len(writer)} samples"]
        if long:
            notices.append(f"{split}: {long} texts have more than {length} tokens and were split")
        return notices

    def _documents(self, texts: Texts) -> Iterator[Sample]:
        """Yield each text's tokens, including special tokens, and their kinds."""
        for batch in batches((text, None) for text in texts.documents(self.options.paragraphs)):
            strings = [text for text, _ in batch]
            self.reader.count_special(strings)
            encoded = self.tokenizer(strings, return_offsets_mapping=True)
            for number, ids in enumerate(encoded["input_ids"]):
                special = [text is None for text in encoded.sequence_ids(number)]
                offsets = encoded["offset_mapping"][number]
                yield {"input_ids": ids, "kinds": kinds_of(strings[number], special, offsets)}

    def draw(self, sample: Sample, number: int, epoch: int | None) -> Sample:
        seed = SEED if epoch is None else self.recipe.training.seed
        key = f"{seed} {epoch} {number}"
        ids, places = self._masks.draw(sample["input_ids"], sample["kinds"], key)
        tokens = [sample["input_ids"][place] for place in places]
        return {"input_ids": ids, "targets": places, "tokens": tokens}

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        drawn = self.draw(sample, 0, 0)
        return [Document(sample["input_ids"], drawn["targets"])]

    # model

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self._bias = getattr(model.get_output_embeddings(), "bias", None)
        return super().use_fused_loss(model)

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        self._bias = getattr(model.get_output_embeddings(), "bias", None)
        return super().evaluation_kernels(model)

    def inputs_to_compare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return {"input_ids": torch.tensor([samples[0]["input_ids"][:COMPARED_TOKENS]])}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.reader.pad(samples)
        width = inputs["input_ids"].shape[1]
        places = [row * width + at for row, s in enumerate(samples) for at in s["targets"]]
        tokens = [token for sample in samples for token in sample["tokens"]]
        return Batch(inputs, {"places": torch.tensor(places), "tokens": torch.tensor(tokens)})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss, summed over the masked tokens."""
        masked, tokens = outputs.logits.flatten(0, 1)[targets["places"]], targets["tokens"]
        if self.head is not None:  # the model returned hidden states
            return linear_cross_entropy(
                masked,
                self.head,
                tokens,
                self._bias,
                sums_for(self.head),
                token_rows_for(self.head),
            )
        return cross_entropy(
            masked.float(), tokens, reduction="sum", label_smoothing=self.smoothing
        )

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each sample's summed loss and its number of masked tokens."""
        targets = self.collate(samples).targets
        masked, tokens = outputs.logits.flatten(0, 1)[targets["places"]], targets["tokens"]
        if self.evaluation_head is not None:
            losses = token_losses(masked, self.evaluation_head, tokens, self._bias)
        else:
            losses = cross_entropy(masked.float(), tokens, reduction="none")
        counts = [len(sample["targets"]) for sample in samples]
        sums = [of_sample.sum().item() for of_sample in losses.split(counts)]
        return [*zip(sums, counts, strict=True)]

    def score(self, predictions: Sequence[Any], _samples: Samples) -> dict[str, float]:
        losses, counts = zip(*predictions, strict=True)
        loss = sum(losses) / sum(counts)
        return {"loss": loss, "perplexity": perplexity(loss)}


def _cut(document: Sample, length: int) -> Iterator[Sample]:
    """Divide a text into samples of at most `length` tokens; each includes the special tokens."""
    content = [at for at, kind in enumerate(document["kinds"]) if kind != SPECIAL]
    if not content:
        return
    first, behind = content[0], content[-1] + 1
    room = length - (len(document["kinds"]) - (behind - first))
    for window in windows(behind - first, room, 0):
        part = slice(first + window.own_begin, first + window.own_end)
        yield {
            name: values[:first] + values[part] + values[behind:]
            for name, values in document.items()
        }
