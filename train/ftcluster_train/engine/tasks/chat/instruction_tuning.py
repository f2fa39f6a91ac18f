"""Instruction tuning: a decoder is trained on the answers in conversations."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ftcluster_common.data.conversations import read_conversation
from ftcluster_common.tasks.chat import InstructionTuning, conversation_columns
from ftcluster_kernels.cross_entropy import linear_cross_entropy
from ftcluster_train.engine.data.sources import Rows, find_columns, read_rows
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.metrics import perplexity
from ftcluster_train.engine.tasks.chat.decoder_tuning import DecoderTuningTask
from ftcluster_train.engine.tasks.chat.marked_texts import MarkedText
from ftcluster_train.engine.tasks.chat.packing import DocumentPacker
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.patching.batch_context import sums_for, token_rows_for


@register
class InstructionTuningTask(DecoderTuningTask):
    """Trains with the mean cross entropy over the answers' tokens."""

    name = "instruction-tuning"
    options: InstructionTuning
    packs = True
    loss_column = "targets"
    shows_answers = True

    def write_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set and return notices."""
        kinds = {
            "input_ids": token_kind(len(self.tokenizer)), "targets": "i", "documents": "i"
        }  # fmt: skip
        writer = SampleWriter(folder, kinds)
        packer = DocumentPacker[Sample](limit)
        packs = self.options.packing and self.purpose == "train"
        count = cut = skipped = read = target_count = 0
        for tokens, targets in self.tokens_of(self._texts(rows, split)):
            count += 1
            self.review_answers(tokens, targets)
            kept = [target for target in targets if target < limit]
            if len(tokens) > limit:
                skipped += not kept
                cut += bool(kept)
            if not kept:
                continue
            read, target_count = read + min(len(tokens), limit), target_count + len(kept)
            document = {"input_ids": tokens[:limit], "targets": kept}
            size = min(len(tokens), limit)
            for bin_ in packer.add(document, size) if packs else ([document],):
                writer.add(_joined(bin_))
        for bin_ in packer.close():
            writer.add(_joined(bin_))
        notices = self.close_split(writer, split, limit, count=count, cut=cut, left_out=skipped)
        if packs:
            notices.append(f"{split}: {count - skipped} conversations in {len(writer)} samples")
        notices.append(f"{split}: {target_count} of {read} tokens are target tokens (the answers)")
        return notices

    def _texts(self, rows: Rows, split: str) -> Iterator[MarkedText]:
        options = self.options
        columns = find_columns(rows, split, lambda names: conversation_columns(options, names))
        conversations = read_rows(
            rows, split, lambda row: read_conversation(row, columns, options.chat_template)
        )
        for where, conversation in conversations:
            self.rows += 1
            yield from self.texts_of(where, conversation)

    def weights(self, samples: Samples) -> Sequence[int] | None:
        return samples.lengths("targets")

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the cross entropy, summed over the target tokens."""
        tokens, logits = targets["tokens"], outputs.logits.flatten(0, 1)[targets["places"]]
        loss = _loss(logits, tokens, self.head, self.smoothing)
        return loss + self.router_loss(outputs) * len(tokens)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each sample's summed loss and its number of target tokens."""
        targets = self.collate(samples).targets
        counts = [len(sample["targets"]) for sample in samples]
        places, tokens = (targets[name].split(counts) for name in ("places", "tokens"))
        logits = outputs.logits.flatten(0, 1)
        losses = [
            _loss(logits[before], target, self.evaluation_head)
            for before, target in zip(places, tokens, strict=True)
        ]
        return [(loss.item(), count) for loss, count in zip(losses, counts, strict=True)]

    def score(self, predictions: Sequence[Any], _samples: Samples) -> dict[str, float]:
        losses, counts = zip(*predictions, strict=True)
        loss = sum(losses) / sum(counts)
        return {"loss": loss, "perplexity": perplexity(loss)}


def _loss(
    logits: torch.Tensor, tokens: torch.Tensor, head: torch.Tensor | None, smoothing: float = 0.0
) -> torch.Tensor:
    if head is not None:  # `logits` are hidden states
        sums, rows = sums_for(head), token_rows_for(head)
        return linear_cross_entropy(logits, head, tokens, sums=sums, rows=rows)
    return cross_entropy(logits.float(), tokens, reduction="sum", label_smoothing=smoothing)


def _joined(documents: Sequence[Sample]) -> Sample:
    """Concatenate documents into one sample."""
    joined: Sample = {"input_ids": [], "targets": [], "documents": []}
    for document in documents:
        start = len(joined["input_ids"])
        joined["targets"] += [start + target for target in document["targets"]]
        joined["input_ids"] += document["input_ids"]
        joined["documents"].append(len(document["input_ids"]))
    return joined
