"""Every parameter's gradient in our bf16 is as exact as that of plain transformers under autocast.

Each architecture takes one step with random weights and without dropout. The reference is plain
transformers in fp32. By default each has one layer of width 512, 2,000 tokens, one thread and
padding on the right: half a minute of CPU time. FTCLUSTER_TEST_GRADIENTS=1 takes two layers of
BERT-base's width, 4,000 tokens, one and two threads and padding on either side: 20 minutes.
"""

import copy
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from ftcluster_train.kernels import Optimizations
from ftcluster_train.optim.flat_params import FlatWeights
from ftcluster_train.optim.gradient_buckets import GradientBuckets
from ftcluster_train.training.models import call_model
from ftcluster_train.training.patch_model import patch_model
from ftcluster_train.training.progress import ProgressLog
from tests.engine.jobs import CLASSES, make_job, make_task_of
from tests.engine.models import MODEL_CLASSES

TIMES, LEAST = 1.5, 0.01  # of the error of plain transformers in bf16, or this
MEDIAN = 1.15  # over all parameters
EVERYTHING = bool(os.environ.get("FTCLUSTER_TEST_GRADIENTS"))
ROWS = 16 if EVERYTHING else 8
LENGTH = 250  # 4,000 or 2,000 tokens
VOCABULARY = 2003
PLACES = ("start", "end")
WIDTH = 768 if EVERYTHING else 512
HEADS = WIDTH // 64
LAYERS = 2 if EVERYTHING else 1
DRAWS = 2 if EVERYTHING else 1  # batches
MANY_DRAWS = 8 if EVERYTHING else 3  # where a single batch's error is chance
WIDE = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {**WIDE, **NO_DROPOUT, "intermediate_size": 2 * WIDTH}
LLAMA = {
    **WIDE,
    "num_key_value_heads": HEADS // 4,
    "intermediate_size": 2 * WIDTH,
    "attention_dropout": 0.0,
}
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """An architecture: its configuration, and what it is trained for."""

    settings: Mapping[str, Any]
    task: str = "text-classification"
    length: int = LENGTH
    draws: int = DRAWS


KINDS = {
    "bert": Kind(BERT),
    "distilbert": Kind(
        {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * WIDTH,
         "dropout": 0.0,
         "attention_dropout": 0.0, "qa_dropout": 0.0},
        # its classifier has a ReLU over few rows: what is rounded there is a matter of chance
        "question-answering",
    ),
    "roberta": Kind({**BERT, "type_vocab_size": 2, "max_position_embeddings": 514}),
    "minilm": Kind({**BERT, "model_type": "bert", "hidden_size": 384}),
    "electra": Kind({**BERT, "embedding_size": WIDTH // 2}),
    "albert": Kind({**BERT, "embedding_size": 128, "classifier_dropout_prob": 0.0}),
    "deberta-v2": Kind(
        {**BERT, "relative_attention": True, "position_buckets": 32, "pos_att_type": ["p2c", "c2p"],
         "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False},
    ),
    "modernbert": Kind(
        {**WIDE, "intermediate_size": 2 * WIDTH, "attention_dropout": 0.0, "mlp_dropout": 0.0,
         "embedding_dropout": 0.0, "local_attention": 64},
    ),
    "mpnet": Kind({**BERT, "max_position_embeddings": 514}),
    "xlnet": Kind(
        {"d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 2 * WIDTH, "dropout": 0.0,
         "summary_last_dropout": 0.0},
        draws=MANY_DRAWS,  # a few tokens' scores make the gradients of segments, and cancel there
    ),
    "t5": Kind(
        {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": LAYERS, "num_decoder_layers": 1,
         "num_heads": 8, "dropout_rate": 0.0, "classifier_dropout": 0.0,
         "decoder_start_token_id": 0},
        draws=8 if EVERYTHING else 1,  # it has a ReLU, where rounding is a matter of chance
    ),
    "gpt2": Kind(
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0},
        "causal-lm",
    ),
    "falcon": Kind(
        {**WIDE, "multi_query": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
         "new_decoder_architecture": False},
        "causal-lm",
    ),
    "llama": Kind(LLAMA, "causal-lm"),
    "qwen2": Kind(LLAMA, "causal-lm"),
    "qwen3": Kind({**LLAMA, "head_dim": 64}, "causal-lm"),
    "gemma2": Kind({**LLAMA, "head_dim": 64, "sliding_window": 64}, "causal-lm"),
    "gemma3_text": Kind({**LLAMA, "head_dim": 64, "sliding_window": 64}, "causal-lm"),
    "mistral": Kind({**LLAMA, "sliding_window": 64}, "causal-lm"),
    "opt": Kind(
        {"hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "num_hidden_layers": LAYERS,
         "num_attention_heads": HEADS, "ffn_dim": 2 * WIDTH, "dropout": 0.0,
         "attention_dropout": 0.0},
        "causal-lm",
    ),
    "mamba": Kind({"hidden_size": 256, "num_hidden_layers": LAYERS}, "causal-lm", length=16),
}  # fmt: skip
CASES = [
    (name, threads, side)
    for name in KINDS
    for threads in ((1, 2) if EVERYTHING else (1,))
    for side in (("right", "left") if EVERYTHING else ("right",))
]


def make(name: str) -> PreTrainedModel:
    kind = KINDS[name]
    settings = {"model_type": name, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
                **kind.settings}  # fmt: skip
    if kind.task == "text-classification":
        settings["num_labels"] = CLASSES
    config = AutoConfig.for_model(vocab_size=VOCABULARY, **settings)
    torch.manual_seed(1)
    model = MODEL_CLASSES[kind.task].from_config(config, dtype=torch.float32)
    with torch.no_grad():  # as after some learning: norms that are not all alike
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.train()


def make_inputs(kind: Kind, side: str, seed: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Inputs of the model and targets of the loss; some tokens are far more frequent."""
    draw, length = torch.Generator().manual_seed(seed), kind.length
    tokens = (4 + (VOCABULARY - 4) * torch.rand(ROWS, length, generator=draw) ** 3).long()
    if kind.task == "causal-lm":
        return {"input_ids": tokens, "use_cache": False}, {"tokens": tokens}
    lengths = torch.randint(length // 3, length, (ROWS, 1), generator=draw)
    lengths[0] = length
    mask = (torch.arange(length) < lengths).long()
    mask = mask.flip(1) if side == "left" else mask
    types = (torch.arange(length).expand(ROWS, -1) > length // 4).long() * mask
    last = (length - 1 - mask.flip(1).argmax(1)).unsqueeze(1)
    tokens.scatter_(1, last, 3)  # an end of text, which T5 looks for
    inputs = {"input_ids": tokens * mask, "attention_mask": mask, "token_type_ids": types}
    if kind.task == "question-answering":
        places = {name: torch.randint(5, length // 3, (ROWS,), generator=draw) for name in PLACES}
        offset = (length - mask.sum(1)) * (side == "left")
        return inputs, {n: p + offset for n, p in places.items()} | {"tokens": mask > 0}
    return inputs, {"labels": torch.randint(CLASSES, (ROWS,), generator=draw)}


def plain(model: PreTrainedModel, task: Any, batch: Any, bf16: bool) -> Gradients:
    inputs, targets = batch
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        outputs = call_model(model, inputs)
    (task.loss(outputs, targets) / ROWS).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def ours(model: PreTrainedModel, task: Any, batch: Any) -> Gradients:
    inputs, targets = batch
    names = {p: name for name, p in model.named_parameters()}
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    model.train()
    weights = FlatWeights(model, torch.bfloat16)
    gradients = GradientBuckets(weights, 1)
    with kernels:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = call_model(model, inputs)
        loss = task.loss(outputs, targets) / ROWS
        gradients.start_backward(last=True)
        loss.backward()
    flat = gradients.wait()
    return {names[p]: flat[place].view(p.shape) for p, place in weights.layout.slices.items()}


def errors(found: Sequence[Gradients], exact: Sequence[Gradients]) -> dict[str, float]:
    """Of each parameter the relative error over all batches.

    Gradients that are 0 but for rounding are left out.
    """
    norms = {name: math.hypot(*(float(of[name].norm()) for of in exact)) for name in exact[0]}
    floor = 1e-6 * max(norms.values())
    return {
        name: math.hypot(
            *(float((a[name] - b[name]).norm()) for a, b in zip(found, exact, strict=True))
        )
        / norm
        for name, norm in norms.items()
        if norm > floor
    }


@pytest.mark.parametrize(("name", "threads", "side"), CASES)
def test_gradients_are_as_exact_as_those_of_autocast(
    tmp_path: Path, name: str, threads: int, side: str
) -> None:
    kind = KINDS[name]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, task = make(name), make_task_of(make_job(tmp_path, kind.task))
        batches = [make_inputs(kind, side, seed) for seed in range(kind.draws)]
        exact = [plain(copy.deepcopy(model), task, batch, bf16=False) for batch in batches]
        stock = errors(
            [plain(copy.deepcopy(model), task, batch, bf16=True) for batch in batches], exact
        )
        mine = errors([ours(copy.deepcopy(model), task, batch) for batch in batches], exact)
    finally:
        torch.set_num_threads(before)
    assert mine.keys() == stock.keys()
    assert len(mine) > 8
    worse = {
        n: f"{error:.4f} instead of {stock[n]:.4f}"
        for n, error in mine.items()
        if error > max(TIMES * stock[n], LEAST)
    }
    assert worse == {}
    assert statistics.median(error / stock[n] for n, error in mine.items()) < MEDIAN
