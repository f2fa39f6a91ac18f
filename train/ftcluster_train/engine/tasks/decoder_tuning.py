"""What tasks have in common that train a decoder with conversations."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from ftcluster_common.conversations import Conversation
from ftcluster_common.data_files import DataError
from ftcluster_common.given_files import read_json
from ftcluster_common.messages import ASSISTANT, Message
from ftcluster_common.recipe import DecoderTuning, Recipe
from ftcluster_train.engine.data.message_fields import WrittenFields
from ftcluster_train.engine.data.sources import BATCH_ROWS
from ftcluster_train.engine.data.text_samples import (
    LearnedText,
    after_answer,
    learned_texts,
    learned_tokens,
    plain_text,
    with_known_roles,
)
from ftcluster_train.engine.data.token_store import Sample, Samples, SampleWriter
from ftcluster_train.engine.tasks.base import Batch, Document, Task
from ftcluster_train.engine.tasks.target_review import unknown_id
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.kernels.documents import document_mask
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DecoderTuningTask(Task):
    """Computes the loss of the answers' tokens.

    A sample has the tokens of its documents, one after the other; a batch likewise those of its
    samples, in one row without padding. `kernels.attention` keeps the documents apart.
    """

    model_class = AutoModelForCausalLM
    options: DecoderTuning
    large_vocabulary = True
    trains_head = False
    pads = False

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.rows = 0  # of a set
        self._fields = WrittenFields()
        self._answers: Counter[str] = Counter()  # the assistant's messages, and those learned
        self._unknown: Counter[str] = Counter()  # learned tokens that stand for no text
        self.renamed: Counter[str] = Counter()  # roles that the chat template knows by another name

    # data

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        self._check_tokenizer()
        return super().encode(data, longest, folder)

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

    def close_split(
        self, writer: SampleWriter, split: str, limit: int, *, count: int, cut: int, left_out: int
    ) -> list[str]:
        """The notices of a set of `count` samples, of which some were truncated or left out.

        Raises:
            TrainError: none was written.
        """
        if not len(writer):
            raise TrainError(
                f"the data have no samples in {split}"
                + (f": all answers are behind the first {limit} tokens" if count else ""),
                "use longer samples: max_length=N" if count else "",
            )
        writer.close(rows=self.rows, cut=cut, left_out=left_out)
        notices = [f"{split}: the {what}, {n} times" for what, n in self.renamed.items()]
        self.renamed.clear()
        notices += self._fields.notices(split)
        unlearned = self._answers["all"] - self._answers["learned"]
        if unlearned:
            notices.append(
                f"{split}: {unlearned} of {self._answers['all']} messages of the assistant are "
                "read but not learned (weight 0 or train false)"
            )
        self._answers.clear()
        if self._unknown["tokens"]:
            notices.append(
                f"{split}: NOT KNOWN to the tokenizer: {self._unknown['texts']} of {count} texts "
                f"have {self._unknown['tokens']} unknown tokens in what is learned, which the "
                "model cannot write; use a model whose tokenizer knows them"
            )
        self._unknown.clear()
        if cut:
            notices.append(f"{split}: {cut} of {count} samples were truncated to {limit} tokens")
        if left_out:
            notices.append(
                f"{split}: {left_out} of {count} samples were left out, because their answers are "
                f"behind the first {limit} tokens"
            )
        return notices

    def tokens_of(self, texts: Iterator[LearnedText]) -> Iterator[tuple[list[int], list[int]]]:
        """The tokens of each text, and the numbers of those that are learned."""
        template = self.options.chat_template
        self.rows, unknown = 0, unknown_id(self.tokenizer)
        while batch := list(islice(texts, BATCH_ROWS)):
            encoded = self.tokenizer(
                [text.text for text in batch],
                add_special_tokens=not template,  # a template writes them
                return_offsets_mapping=True,
            )
            columns = (encoded["input_ids"], encoded["offset_mapping"])
            for text, tokens, offsets in zip(batch, *columns, strict=True):
                learned = learned_tokens(offsets, text.spans)
                count = sum(tokens[number] == unknown for number in learned)
                self._unknown.update({"tokens": count, "texts": bool(count)})
                yield tokens, learned

    def texts_of(self, where: str, conversation: Conversation) -> list[LearnedText]:
        """The texts of a conversation.

        Args:
            where: in the data it is, for errors.

        Raises:
            TrainError: its chat template does not write it so that answers are found.
        """
        self.look_for_special(str(message.get("content")) for message in conversation.messages)
        later = conversation.messages[conversation.first :]
        self._answers["all"] += sum(message["role"] == ASSISTANT for message in later)
        self._answers["learned"] += len(conversation.learned)
        try:
            if not self.options.chat_template:
                return [plain_text(conversation, self.tokenizer.eos_token)]
            render = self._render(conversation)
            known = with_known_roles(conversation, render)
            for given, written in zip(conversation.messages, known.messages, strict=True):
                if given["role"] != written["role"]:
                    self.renamed[f"role {given['role']} is written as {written['role']}"] += 1
            texts = learned_texts(known, render)
            self._fields.add(known, texts, self._render)
            return texts
        except DataError as error:
            raise TrainError(f"{where}: {error}") from error

    def _render(self, conversation: Conversation) -> Any:
        def render(messages: Sequence[Message], prompt: bool) -> str:
            try:
                text: str = self.tokenizer.apply_chat_template(
                    list(messages),
                    tools=conversation.tools,
                    add_generation_prompt=prompt,
                    tokenize=False,
                )
            except (TemplateError, TypeError, KeyError, ValueError) as error:  # a template's own
                raise DataError(f"the chat template refuses it: {first_line(error)}") from error
            return text

        return render

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        bounds = pairwise(accumulate(sample["documents"], initial=0))
        return [
            Document(
                sample["input_ids"][begin:end],
                [target - begin for target in sample["targets"] if begin <= target < end],
            )
            for begin, end in bounds
        ]

    # model

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def check_model(self, model: "PreTrainedModel") -> None:
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
        vocabulary = model.get_input_embeddings().num_embeddings
        numbers = [number % vocabulary for number in range(1, 6)]
        first, second = numbers[:3], numbers[3:]
        samples: list[Sample] = [
            {"input_ids": tokens, "targets": [1], "documents": [len(tokens)]}
            for tokens in (first, second, [first[0], *second])
        ]
        bf16 = model.get_input_embeddings().weight.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            with self._kernels(None):
                together = model(**_in_one_row(samples[:2]).inputs).logits[0]
                alone = [model(**_in_one_row([sample]).inputs).logits[0] for sample in samples]
            with KernelMode():
                tokens = torch.tensor([samples[2]["input_ids"]])
                plain = model(input_ids=tokens, use_cache=False).logits[0]
        if not _alike(together, torch.cat(alone[:2])) or not _alike(plain, alone[2]):
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which is no decoder, "
                "or whose attention is not torch's: conversations in a row cannot be kept apart",
                "use a decoder of the kind of Llama, Qwen or GPT-2",
            )

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        super().evaluation_kernels(model)
        return self._kernels(self.evaluation_head)

    def _kernels(self, head: torch.Tensor | None) -> KernelMode:
        return KernelMode([Attention(with_dropout=False).patch()], head)

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Have answers end with the token that ends those which are learned.

        A base model only knows the end of a text, behind which its chat template goes on.
        Of adapters the file has nothing else: transformers reads the others from their base.
        """
        end = self._end_of_answer()
        known = model.generation_config.eos_token_id
        ends = known if isinstance(known, list) else [known] * (known is not None)
        if end is None or end in ends:
            return
        path = folder / GENERATION_CONFIG_NAME
        written = read_json(path) if path.exists() else {}
        written["eos_token_id"] = [*ends, end]
        path.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")

    def _end_of_answer(self) -> int | None:
        """The first token behind an answer that no text has; None where the template writes none.

        Others, such as of a blank line, are in answers as well.
        """
        if not self.options.chat_template:
            end: int | None = self.tokenizer.eos_token_id
            return end
        try:
            text, behind = after_answer(self._render(Conversation(())))
        except DataError:  # it only takes other conversations
            return None
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        added = self.tokenizer.added_tokens_decoder
        return next((n for n, (start, _) in pairs if start >= behind and n in added), None)

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """All samples in one row; targets are the learned tokens and the places before them."""
        return _in_one_row(samples)


def _in_one_row(samples: Sequence[Sample]) -> Batch:
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


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether logits differ by no more than roundings."""
    allowed = 1e-3 if one.dtype == torch.float32 else 0.03
    return bool((one.float() - other.float()).norm() <= allowed * other.float().norm())
