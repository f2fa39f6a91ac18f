"""Trains a tokenizer on the texts, for models from scratch."""

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ftcluster_train.engine.data.packing import Piece

END = "<|endoftext|>"  # GPT-2's name for it
MAX_CHARACTERS = 100_000_000  # more do not change the frequent tokens


def train_tokenizer(texts: Iterable[Piece], vocab_size: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer, as GPT-2's. The same texts give the same tokenizer on any host.

    Args:
        texts: of which the first 100 million characters are used.
        vocab_size: tokens at most; short texts have fewer frequent pairs.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts, MAX_CHARACTERS), trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        unk_token=END,
        model_input_names=["input_ids", "attention_mask"],
    )


def _first(texts: Iterable[Piece], characters: int) -> Iterator[str]:
    for piece in texts:
        if characters <= 0:
            return
        characters -= len(piece.text)
        yield piece.text
