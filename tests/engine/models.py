"""Tiny models with random weights, made from configurations."""

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import BertProcessing
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BartConfig,
    BertConfig,
    BloomConfig,
    DistilBertConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    T5Config,
)

VOCABULARY = 97
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LONGEST = 48  # tokens
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}

Settings = dict[str, Any]


def _bert(dropout: float, **changes: Any) -> Settings:
    return {
        **SIZES,
        "intermediate_size": 64,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": LONGEST + 2,
        **changes,
    }


# for each model: the class of its configuration, and the fields with this dropout
KINDS: dict[str, tuple[Any, Callable[[float], Settings]]] = {
    "bert": (BertConfig, _bert),
    "minilm": (
        BertConfig,
        lambda dropout: _bert(
            dropout, hidden_size=48, num_attention_heads=12, intermediate_size=192
        ),
    ),
    "roberta": (RobertaConfig, lambda dropout: _bert(dropout, type_vocab_size=1)),
    "distilbert": (
        DistilBertConfig,
        lambda dropout: {
            "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dropout": dropout,
            "attention_dropout": dropout, "seq_classif_dropout": dropout, "qa_dropout": dropout,
            "max_position_embeddings": LONGEST,
        },
    ),
    "modernbert": (
        ModernBertConfig,
        # the first layer attends to all tokens, the second to a window
        lambda dropout: {
            **SIZES, "intermediate_size": 64, "local_attention": 8, "attention_dropout": dropout,
            "mlp_dropout": dropout, "embedding_dropout": dropout, "bos_token_id": 2,
            "cls_token_id": 2, "sep_token_id": 3, "eos_token_id": 3,
        },
    ),
    "gpt2": (
        GPT2Config,
        lambda dropout: {
            "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LONGEST,
            "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
            "bos_token_id": 2, "eos_token_id": 2,
        },
    ),
    "bloom": (  # its positions are part of attention
        BloomConfig,
        lambda dropout: {
            "hidden_size": 32, "n_layer": 2, "n_head": 2, "hidden_dropout": dropout,
            "attention_dropout": dropout, "bos_token_id": 2, "eos_token_id": 2,
        },
    ),
    "llama": (
        LlamaConfig,
        lambda dropout: {
            **SIZES, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
            "attention_dropout": dropout,
        },
    ),
    "gemma3": (  # can be made bidirectional, as EmbeddingGemma is
        Gemma3TextConfig,
        lambda dropout: {
            **SIZES, "intermediate_size": 64, "num_key_value_heads": 1, "head_dim": 16,
            "attention_dropout": dropout, "query_pre_attn_scalar": 16, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"], "bos_token_id": 2,
            "eos_token_id": 3,
        },
    ),
    "t5": (
        T5Config,
        lambda dropout: {
            "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
            "dropout_rate": dropout, "decoder_start_token_id": 0, "eos_token_id": 3,
        },
    ),
    "bart": (
        BartConfig,
        lambda dropout: {
            "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
            "dropout": dropout, "attention_dropout": dropout, "decoder_start_token_id": 3,
            "bos_token_id": 2, "eos_token_id": 3, "forced_eos_token_id": None,
            "max_position_embeddings": LONGEST,
        },
    ),
}  # fmt: skip
MODEL_CLASSES = {
    "text-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "sentence-similarity": AutoModel,
    "sparse-encoding": AutoModelForMaskedLM,
    "multi-vector-encoding": AutoModel,
    "text-ranking": AutoModelForSequenceClassification,
    "few-shot-classification": AutoModel,
    "instruction-tuning": AutoModelForCausalLM,
    "preference-tuning": AutoModelForCausalLM,
    "unpaired-preference-tuning": AutoModelForCausalLM,
    "seq2seq-lm": AutoModelForSeq2SeqLM,
    "text-distillation": AutoModelForSequenceClassification,
}


def make_model(
    kind: str, task: str = "text-classification", dropout: float = 0.0, **changes: Any
) -> PreTrainedModel:
    """Return a model of `kind` for a task; the weights are always the same."""
    config_class, settings = KINDS[kind]
    config = config_class(vocab_size=VOCABULARY, pad_token_id=0, **{**settings(dropout), **changes})
    if task == "text-classification":
        config.num_labels, config.problem_type = 3, "single_label_classification"
    torch.manual_seed(1)
    return MODEL_CLASSES[task].from_config(config, dtype=torch.float32)


# template of messages with special tokens: [CLS] begins each message, [SEP] begins an answer, and
# [PAD] ends both
CHAT = (
    "{% for m in messages %}[CLS] {{ '[SEP] ' if m.role == 'assistant' else '' }}{{ m.content }} "
    "[PAD] {% endfor %}{% if add_generation_prompt %}[CLS] [SEP] {% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the words w4, w5, ... and special tokens as in BERT."""
    words = [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), VOCABULARY))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", eos_token="[SEP]", mask_token="[UNK]", model_max_length=LONGEST,
    )  # fmt: skip
