"""The base class of tasks that train a decoder on conversations."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from ftcluster_common.data.conversations import Conversation
from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.data.messages import ASSISTANT, Message
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.chat import DecoderTuning
from ftcluster_train.engine.data.sources import BATCH_ROWS, Rows
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.models import positions_of, router_coefficient, unknown_id
from ftcluster_train.engine.tasks.answer_review import AnswerReview, InheritedSettings, answers_in
from ftcluster_train.engine.tasks.base import Batch, Data, Document, Task
from ftcluster_train.engine.tasks.chat.documents import packed, padded, why_not_packed
from ftcluster_train.engine.tasks.chat.marked_texts import (
    MarkedText,
    after_answer,
    marked_texts,
    plain_text,
    target_tokens,
    with_known_roles,
)
from ftcluster_train.engine.tasks.chat.message_fields import WrittenFields
from ftcluster_train.engine.tasks.generation_settings import repair_settings
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DecoderTuningTask(Task):
    """Trains a decoder with a loss over the answers' tokens.

    A sample contains the concatenated tokens of one or more documents. A batch either packs all
    documents into one row without padding, or has one row for each document, see
    `tasks.chat.documents`.

    Attributes:
        packs_documents: True if a batch packs all documents into one row.
        router_coefficient: weight of the router loss of a mixture-of-experts model; 0 for other
            models.
    """

    model_class = AutoModelForCausalLM
    options: DecoderTuning
    large_vocabulary = True
    trains_head = False
    pads = False

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.rows = 0  # number of rows of the current set
        self._fields = WrittenFields()
        self._answers: Counter[str] = Counter()  # numbers of all assistant messages and of targets
        self._unknown: Counter[str] = Counter()  # unknown tokens among targets
        self.renamed: Counter[str] = Counter()  # renamed roles, by their name in the data
        self.packs_documents, self.router_coefficient = True, 0.0
        self._inherited = InheritedSettings(recipe, tokenizer)
        self._answer_review = AnswerReview({})  # review of the current set
        self._end: int | None = None  # token that ends an answer
        self._after: list[int] = []  # tokens that the chat template writes after an answer

    def inspect_model(self, folder: Path) -> None:
        self._inherited.read(folder)

    def sample_settings(self) -> dict[str, Any]:
        return self._inherited.to_dict()

    # data

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        self._check_tokenizer()
        self._end, self._after = self._end_of_answer()
        return super().encode(data, longest, folder)

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set, and return notices, including ones on generation settings."""
        # notices about settings are reported only once
        is_first = is_train(split) or self.purpose != "train"
        self._answer_review = self._inherited.review() if is_first else AnswerReview({})
        notices = self.write_split(rows, split, limit, folder)
        if is_first:
            trains = self.purpose == "train"
            notices += self._inherited.notices(
                split, self._answer_review, self._end, self._after, trains
            )
        return notices

    @abstractmethod
    def write_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set, each with at most `limit` tokens, and return notices."""

    def review_answers(self, tokens: Sequence[int], targets: Sequence[int]) -> None:
        """Count answers that inherited generation settings keep the model from generating.

        Args:
            tokens: tokens of a conversation.
            targets: indices of the answers' tokens.
        """
        self._answer_review.add(answers_in(tokens, targets, self._end))

    def _check_tokenizer(self) -> None:
        tokenizer, name = self.tokenizer, self.recipe.tokenizer or self.recipe.model
        if not tokenizer.is_fast:
            raise TrainError(
                f"the tokenizer of {name} does not report the positions of tokens in a text, so "
                "the tokens of an answer cannot be determined",
                "use a tokenizer that has a tokenizer.json: tokenizer=DIR",
            )
        if self.options.chat_template and not tokenizer.chat_template:
            raise TrainError(
                f"{name} has no chat template",
                "use a model or a tokenizer that has one (tokenizer=DIR); prompts and completions "
                "can be trained without a chat template: chat_template=false",
            )
        if not self.options.chat_template and tokenizer.eos_token is None:
            raise TrainError(
                f"the tokenizer of {name} has no end-of-text token, which ends a completion",
                "use a tokenizer that has one: tokenizer=DIR",
            )

    def close_split(
        self, writer: SampleWriter, split: str, limit: int, *, count: int, cut: int, left_out: int
    ) -> list[str]:
        """Close a set, and return notices about its truncated and skipped samples.

        Args:
            count: number of texts of the set, including skipped texts.
            cut: number of truncated samples.
            left_out: number of skipped samples.

        Raises:
            TrainError: no sample was written.
        """
        if not len(writer):
            raise TrainError(
                f"the data have no samples in {split}"
                + (f": all answers are behind the first {limit} tokens" if count else ""),
                "use longer samples: max_length=N" if count else "",
            )
        writer.close(rows=self.rows, cut=cut, left_out=left_out)
        notices = [
            f"{split}: the {what}, {count} time{'s' * (count != 1)}"
            for what, count in self.renamed.items()
        ]
        self.renamed.clear()
        notices += self._fields.notices(split)
        without_loss = self._answers["all"] - self._answers["targets"]
        if without_loss:
            notices.append(
                f"{split}: {without_loss} of {self._answers['all']} messages of the assistant are "
                "read but do not contribute to the loss (weight 0 or train false)"
            )
        self._answers.clear()
        if self._unknown["tokens"]:
            notices.append(
                f"{split}: NOT KNOWN to the tokenizer: {self._unknown['texts']} of {count} texts "
                f"have {self._unknown['tokens']} unknown target tokens, which the "
                "model cannot write; use a model whose tokenizer can represent these texts"
            )
        self._unknown.clear()
        if cut:
            notices.append(f"{split}: {cut} of {count} samples were truncated to {limit} tokens")
        if left_out:
            notices.append(
                f"{split}: {left_out} of {count} samples were skipped, because their answers are "
                f"behind the first {limit} tokens"
            )
        return notices

    def tokens_of(self, texts: Iterator[MarkedText]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the token ids of each text, and the indices of its target tokens."""
        template = self.options.chat_template
        self.rows, unknown = 0, unknown_id(self.tokenizer)
        while batch := list(islice(texts, BATCH_ROWS)):
            encoded = self.tokenizer(
                [text.text for text in batch],
                add_special_tokens=not template,  # templates include special tokens
                return_offsets_mapping=True,
            )
            columns = (encoded["input_ids"], encoded["offset_mapping"])
            for text, tokens, offsets in zip(batch, *columns, strict=True):
                targets = target_tokens(offsets, text.spans)
                count = sum(tokens[number] == unknown for number in targets)
                self._unknown.update({"tokens": count, "texts": bool(count)})
                yield tokens, targets

    def texts_of(self, where: str, conversation: Conversation) -> list[MarkedText]:
        """Return a conversation as texts with marked answers.

        Args:
            where: location of the conversation in the data, for error messages.

        Raises:
            TrainError: the chat template rejects the conversation, or changes it so that answers
                cannot be found in the text.
        """
        self.reader.count_special(str(message.get("content")) for message in conversation.messages)
        later = conversation.messages[conversation.first :]
        self._answers["all"] += sum(message["role"] == ASSISTANT for message in later)
        self._answers["targets"] += len(conversation.target_messages)
        try:
            if not self.options.chat_template:
                return [plain_text(conversation, self.tokenizer.eos_token)]
            render = self._render(conversation)
            renamed = with_known_roles(conversation, render)
            for original, written in zip(conversation.messages, renamed.messages, strict=True):
                if original["role"] != written["role"]:
                    self.renamed[f"role {original['role']} is written as {written['role']}"] += 1
            texts = marked_texts(renamed, render)
            self._fields.add(renamed, texts, self._render)
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
            # the template raises these errors
            except (TemplateError, TypeError, KeyError, ValueError) as error:
                raise DataError(
                    f"the chat template rejects the conversation: {first_line(error)}"
                ) from error
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
        """Turn packing off if the model cannot keep packed documents apart.

        Raises:
            TrainError: the model is not a decoder.
        """
        self.router_coefficient = router_coefficient(model.config)
        self._inherited.reset(model)
        model.eval()
        name, longest = self.recipe.model, self.options.max_length
        if (positions := positions_of(model.config)) is not None:
            longest = min(longest, positions)  # longer documents were cut, see `limit_length`
        why = why_not_packed(model, longest, lambda: self._kernels(None), self._padding(), name)
        self.packs_documents = not why
        if why:
            packing = getattr(self.options, "packing", False) and self.purpose == "train"
            self.model_notices = (
                f"{name} is trained WITHOUT PACKING, because {why}: each document is padded to "
                "the longest one of its batch, which takes more time and memory"
                + ("; with packing=false less is padded" if packing else ""),
            )

    def _padding(self) -> int:
        """Return the token id for padding; outputs do not depend on padding."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((number for number in ids if number is not None), 0)

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        super().evaluation_kernels(model)
        return self._kernels(self.evaluation_head)

    def _kernels(self, head: torch.Tensor | None) -> KernelMode:
        return KernelMode([Attention(with_dropout=False).patch()], head)

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write a generation configuration that stops generation at the end of an answer."""
        end, _ = self._end_of_answer()
        repair_settings(model, folder, end, self.tokenizer)

    def _end_of_answer(self) -> tuple[int | None, list[int]]:
        """Return the first special token after an answer, or None, and all tokens after it.

        Only special tokens count: other tokens after an answer, such as a blank line, may also
        occur in answers.
        """
        if not self.options.chat_template:
            end: int | None = self.tokenizer.eos_token_id
            return end, []
        try:
            text, behind = after_answer(self._render(Conversation(())))
        except DataError:  # the template rejects this conversation
            return None, []
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        after = [token for token, (start, _) in pairs if start >= behind]
        added = self.tokenizer.added_tokens_decoder
        return next((token for token in after if token in added), None), after

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Return a batch with all documents packed into one row, or with one row per document.

        The targets contain the ids of the target tokens, and the positions that predict them.
        """
        return packed(samples) if self.packs_documents else padded(samples, self._padding())

    def router_loss(self, outputs: Any) -> torch.Tensor | float:
        """Return the router loss of a mixture-of-experts model, to add to each sample's loss.

        Models return this loss if output_router_logits is set in their configuration. The result is
        0 for all other models.
        """
        return self.router_coefficient * outputs.aux_loss if self.router_coefficient else 0.0
