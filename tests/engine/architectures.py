"""Models of many architectures with random weights, of any size."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from tests.engine.jobs import CLASSES
from tests.engine.models import MODEL_CLASSES

VOCABULARY = 2003
# one architecture for each kind of attention, norm and activation
FEW = ("minilm", "distilbert", "modernbert", "deberta-v2", "t5", "gpt2", "gemma2", "llama")


def long_but(few: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Return the names as parameters of tests; all but a few have the mark `long`."""
    long = pytest.mark.long
    return [name if name in few else pytest.param(name, marks=long) for name in names]


@dataclass(frozen=True)
class Size:
    """The size of a model; `window` is the number of tokens that a local attention layer sees."""

    width: int
    heads: int
    layers: int
    window: int
    dropout: float = 0.0


@dataclass(frozen=True)
class Kind:
    """An architecture: its usual name, its configuration, and what it is trained for."""

    title: str
    settings: Mapping[str, Any]
    task: str = "text-classification"


def kinds(size: Size) -> dict[str, Kind]:
    """The architectures by the name of their type in transformers."""
    width, heads, p = size.width, size.heads, size.dropout
    plain = {"hidden_size": width, "num_hidden_layers": size.layers, "num_attention_heads": heads}
    bert = {
        **plain,
        "hidden_dropout_prob": p,
        "attention_probs_dropout_prob": p,
        "intermediate_size": 2 * width,
    }
    llama = {
        **plain,
        "num_key_value_heads": heads // 4,
        "intermediate_size": 2 * width,
        "attention_dropout": p,
    }
    sized_heads = {**llama, "head_dim": width // heads}
    t5 = {
        "d_model": min(width, 512), "d_kv": min(width, 512) // min(heads, 8),
        "d_ff": min(2 * width, 1024), "num_layers": size.layers, "num_decoder_layers": 1,
        "num_heads": min(heads, 8), "dropout_rate": p, "classifier_dropout": p,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    return {
        "bert": Kind("BERT", bert),
        "distilbert": Kind(
            "DistilBERT",
            {"dim": width, "n_layers": size.layers, "n_heads": heads, "hidden_dim": 2 * width,
             "dropout": p, "attention_dropout": p, "qa_dropout": p},
            # the ReLU of its classifier sees few rows, so rounding decides by chance
            "question-answering",
        ),
        "roberta": Kind(
            "RoBERTa", {**bert, "type_vocab_size": 2, "max_position_embeddings": 514}
        ),
        "minilm": Kind("MiniLM", {**bert, "model_type": "bert", "hidden_size": min(width, 384)}),
        "electra": Kind("ELECTRA", {**bert, "embedding_size": width // 2}),
        "albert": Kind(
            "ALBERT",
            {**bert, "embedding_size": min(width, 128), "classifier_dropout_prob": p},
        ),
        "deberta-v2": Kind(
            "DeBERTa-v3",
            {**bert, "relative_attention": True, "position_buckets": size.window // 2,
             "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True,
             "position_biased_input": False},
        ),
        "modernbert": Kind(
            "ModernBERT",
            {**plain, "intermediate_size": 2 * width, "attention_dropout": p, "mlp_dropout": p,
             "embedding_dropout": p, "local_attention": size.window},
        ),
        "mpnet": Kind("MPNet", {**bert, "max_position_embeddings": 514}),
        "xlnet": Kind(
            "XLNet",
            {"d_model": width, "n_layer": size.layers, "n_head": heads, "d_inner": 2 * width,
             "dropout": p, "summary_last_dropout": p},
        ),
        "t5": Kind("T5", t5),
        "gpt2": Kind(
            "GPT-2",
            {"n_embd": width, "n_layer": size.layers, "n_head": heads, "resid_pdrop": p,
             "embd_pdrop": p, "attn_pdrop": p},
            "causal-lm",
        ),
        "falcon": Kind(
            "Falcon",
            {**plain, "multi_query": True, "hidden_dropout": p, "attention_dropout": p,
             "new_decoder_architecture": False},
            "causal-lm",
        ),
        "llama": Kind("Llama", llama, "causal-lm"),
        "qwen2": Kind("Qwen2", llama, "causal-lm"),
        "qwen3": Kind("Qwen3", sized_heads, "causal-lm"),
        "gemma2": Kind("Gemma 2", {**sized_heads, "sliding_window": size.window}, "causal-lm"),
        "gemma3_text": Kind(
            "Gemma 3", {**sized_heads, "sliding_window": size.window}, "causal-lm"
        ),
        "mistral": Kind("Mistral", {**llama, "sliding_window": size.window}, "causal-lm"),
        "opt": Kind(
            "OPT",
            {"hidden_size": width, "word_embed_proj_dim": width, "num_hidden_layers": size.layers,
             "num_attention_heads": heads, "ffn_dim": 2 * width, "dropout": p,
             "attention_dropout": p},
            "causal-lm",
        ),
        "mamba": Kind(
            "Mamba",
            {"hidden_size": min(width, 256), "num_hidden_layers": size.layers}, "causal-lm",
        ),
    }  # fmt: skip


def make_kind(name: str, kind: Kind) -> PreTrainedModel:
    """Return a model in training mode; the weights are always the same."""
    settings = {"model_type": name, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
                **kind.settings}  # fmt: skip
    if kind.task == "text-classification":
        settings["num_labels"] = CLASSES
    config = AutoConfig.for_model(vocab_size=VOCABULARY, **settings)
    torch.manual_seed(1)
    model = MODEL_CLASSES[kind.task].from_config(config, dtype=torch.float32)
    with torch.no_grad():  # make the norms' weights differ, as after some training
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.train()
