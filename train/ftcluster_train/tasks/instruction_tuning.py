"""Instruction tuning: a decoder learns the answers of conversations, and nothing of the rest."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.conversations import (
    Conversation,
    Message,
    conversation_columns,
    read_conversation,
)
from ftcluster_common.data_files import DataError
from ftcluster_common.recipe import InstructionTuning, Recipe
from ftcluster_train.data.chat_samples import (
    LearnedText,
    learned_texts,
    learned_tokens,
    plain_text,
)
from ftcluster_train.data.packing import DocumentPacker
from ftcluster_train.data.sources import BATCH_ROWS, Rows, find_columns
from ftcluster_train.data.token_store import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.kernels.attention import Attention, document_mask, torch_attention
from ftcluster_train.kernels.function_overrides import FunctionOverrides
from ftcluster_train.kernels.linear_cross_entropy import find_head, linear_cross_entropy
from ftcluster_train.metrics.glue import perplexity
from ftcluster_train.tasks.base import Batch, Task


class InstructionTuningTask(Task):
    """Cross entropy of the answers' tokens, the mean over those of all ranks' samples.

    A sample has the tokens of its documents, one after the other; a batch likewise those of its
    samples, in one row without padding. `kernels.attention` keeps the documents apart.
    """

    model_class = AutoModelForCausalLM
    large_vocabulary = True
    has_head = True

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        assert isinstance(recipe.options, InstructionTuning)
        self.options = recipe.options
        self._smoothing = recipe.training.label_smoothing_factor
        self._head: torch.Tensor | None = None

    # data

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        self._check_tokenizer()
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets, drawn = self.sets(data), list[str]()
        if self.purpose == "train" and len(sets) == 1:
            [(_, rows)] = sets.items()
            percent = self.options.validation_split_percentage
            sets, drawn = self.with_validation(sets, lambda: [0 for _ in rows], percent)
        for split, rows in sets.items():
            notices += self._encode_split(rows, split, limit, folder / split)
        return [*notices, *drawn]

    def _check_tokenizer(self) -> None:
        tokenizer, name = self.tokenizer, self.recipe.tokenizer or self.recipe.model
        if not tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer of {name} does not tell which text a token is, so it is not known "
                "which tokens belong to an answer",
                "use one with a tokenizer.json: tokenizer=DIR",
            )
        if self.options.chat_template and not tokenizer.chat_template:
            raise TrainError(
                f"{name} has no chat template",
                "use a model or a tokenizer that has one (tokenizer=DIR); prompts and completions "
                "are also learned without one: chat_template=false",
            )
        if not self.options.chat_template and tokenizer.eos_token is None:
            raise TrainError(
                f"the tokenizer of {name} has no end-of-text token, which ends a completion",
                "use one that has: tokenizer=DIR",
            )

    def _encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set; returns notices."""
        kinds = {
            "input_ids": token_kind(len(self.tokenizer)), "targets": "i", "documents": "i"
        }  # fmt: skip
        writer = SampleWriter(folder, kinds)
        packer = DocumentPacker[Sample](limit)
        packs = self.options.packing and self.purpose == "train"
        count = cut = unlearned = 0
        for tokens, targets in self._documents(rows, split):
            count += 1
            kept = [target for target in targets if target < limit]
            if len(tokens) > limit:
                unlearned += not kept
                cut += bool(kept)
            if not kept:
                continue
            document = {"input_ids": tokens[:limit], "targets": kept}
            size = min(len(tokens), limit)
            for bin_ in packer.add(document, size) if packs else ([document],):
                writer.add(_joined(bin_))
        for bin_ in packer.close():
            writer.add(_joined(bin_))
        if not len(writer):
            raise TrainError(
                f"the data have no samples in {split}"
                + (f": all answers are behind the first {limit} tokens" if count else ""),
                "use longer samples: max_length=N" if count else "",
            )
        writer.close()
        notices = []
        if cut:
            notices.append(f"{split}: {cut} of {count} samples were truncated to {limit} tokens")
        if unlearned:
            notices.append(
                f"{split}: {unlearned} of {count} samples were left out, because their answers are "
                f"behind the first {limit} tokens"
            )
        if packs:
            notices.append(f"{split}: {count - unlearned} conversations in {len(writer)} samples")
        return notices

    def _documents(self, rows: Rows, split: str) -> Iterator[tuple[list[int], list[int]]]:
        """The tokens of each text, and the numbers of those that are learned."""
        texts = self._texts(rows, split)
        template = self.options.chat_template
        while batch := list(islice(texts, BATCH_ROWS)):
            encoded = self.tokenizer(
                [text.text for text in batch],
                add_special_tokens=not template,  # a template writes them
                return_offsets_mapping=True,
            )
            columns = (encoded["input_ids"], encoded["offset_mapping"])
            for text, tokens, offsets in zip(batch, *columns, strict=True):
                yield tokens, learned_tokens(offsets, text.spans)

    def _texts(self, rows: Rows, split: str) -> Iterator[LearnedText]:
        template = self.options.chat_template
        columns = find_columns(rows, split, lambda found: conversation_columns(self.options, found))
        for number, row in enumerate(rows, start=1):
            try:
                conversation = read_conversation(row, columns, template)
                if template:
                    yield from learned_texts(conversation, self._render(conversation))
                else:
                    yield plain_text(conversation, self.tokenizer.eos_token)
            except DataError as error:
                raise TrainError(f"row {number} of {split}: {error}") from error
            except (TemplateError, TypeError, KeyError) as error:  # a template may raise any
                what = f"the chat template refuses it: {first_line(error)}"
                raise TrainError(f"row {number} of {split}: {what}") from error

    def _render(self, conversation: Conversation) -> Any:
        def render(messages: Sequence[Message], prompt: bool) -> str:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                tools=conversation.tools,
                add_generation_prompt=prompt,
                tokenize=False,
            )
            return text

        return render

    # model

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def check_model(self, model: PreTrainedModel) -> None:
        """Make sure that it is a decoder in which documents of a row can be kept apart.

        Raises:
            TrainError: it is not.
        """
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
        if window and "sliding_attention" in kinds and self.options.max_length > window:
            raise TrainError(
                f"{self.recipe.model} attends to the last {window} tokens only, and samples may "
                f"have {self.options.max_length}",
                f"use shorter ones: max_length={window}",
            )
        model.eval()
        known = model.get_input_embeddings().num_embeddings
        one, other = [1 % known, 2 % known, 3 % known], [4 % known, 5 % known]
        samples: list[Sample] = [
            {"input_ids": tokens, "targets": [1], "documents": [len(tokens)]}
            for tokens in (one, other, [one[0], *other])
        ]
        bf16 = model.get_input_embeddings().weight.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            with self._kernels(None):
                together = model(**self.collate(samples[:2]).inputs).logits[0]
                alone = [model(**self.collate([one]).inputs).logits[0] for one in samples]
            with FunctionOverrides():
                tokens = torch.tensor([samples[2]["input_ids"]])
                plain = model(input_ids=tokens, use_cache=False).logits[0]
        if not _alike(together, torch.cat(alone[:2])) or not _alike(plain, alone[2]):
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which is no decoder, "
                "or whose attention is not torch's: conversations in a row cannot be kept apart",
                "use a decoder of the kind of Llama, Qwen or GPT-2",
            )

    def weights(self, samples: Samples) -> list[int] | None:
        return samples.lengths("targets")

    def use_fused_loss(self, model: PreTrainedModel) -> torch.Tensor | None:
        self._head = None if self._smoothing else find_head(model)
        return self._head

    def evaluation_kernels(self, model: PreTrainedModel) -> FunctionOverrides:
        if self.purpose != "train" and self._head is None:
            self._head = find_head(model)  # in training `use_fused_loss` has looked for it
        return self._kernels(self._head)

    def _kernels(self, head: torch.Tensor | None) -> FunctionOverrides:
        return FunctionOverrides({torch_attention: Attention(with_dropout=False)}, head)

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """All samples in one row; targets are the learned tokens and the places before them."""
        tokens: list[int] = []
        lengths: list[int] = []
        places: list[int] = []
        for sample in samples:
            places += [len(tokens) + target - 1 for target in sample["targets"]]
            tokens += sample["input_ids"]
            lengths += sample["documents"]
        row, before = torch.tensor(tokens), torch.tensor(places)
        inputs = {
            "input_ids": row.unsqueeze(0),
            "position_ids": torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0),
            "attention_mask": document_mask(lengths),
            "use_cache": False,
        }
        return Batch(inputs, {"tokens": row[before + 1], "places": before})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum over the learned tokens."""
        return self._loss(outputs.logits[0, targets["places"]], targets["tokens"], self._smoothing)

    def _loss(self, logits: torch.Tensor, tokens: torch.Tensor, smoothing: float) -> torch.Tensor:
        if self._head is not None:  # the model returned hidden states, see use_fused_loss
            return linear_cross_entropy(logits, self._head, tokens)
        return cross_entropy(logits.float(), tokens, reduction="sum", label_smoothing=smoothing)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Of each sample the sum of its learned tokens' losses, and their number."""
        targets = self.collate(samples).targets
        counts = [len(sample["targets"]) for sample in samples]
        rows = zip(targets["places"].split(counts), targets["tokens"].split(counts), strict=True)
        losses = [self._loss(outputs.logits[0, places], tokens, 0.0) for places, tokens in rows]
        return [(loss.item(), count) for loss, count in zip(losses, counts, strict=True)]

    def score(self, predictions: Sequence[Any], _samples: Samples) -> dict[str, float]:
        losses, counts = zip(*predictions, strict=True)
        loss = sum(losses) / sum(counts)
        return {"loss": loss, "perplexity": perplexity(loss)}


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether logits differ by no more than roundings."""
    allowed = 1e-3 if one.dtype == torch.float32 else 0.03
    return bool((one.float() - other.float()).norm() <= allowed * other.float().norm())


def _joined(documents: Sequence[Sample]) -> Sample:
    """Documents as one sample."""
    joined: Sample = {"input_ids": [], "targets": [], "documents": []}
    for document in documents:
        start = len(joined["input_ids"])
        joined["targets"] += [start + target for target in document["targets"]]
        joined["input_ids"] += document["input_ids"]
        joined["documents"].append(len(document["input_ids"]))
    return joined
