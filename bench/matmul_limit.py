"""The matmul limit of a training: its operations, and the rate of matmuls between its steps.

A training's share of the limit is its number of operations per second, counted by
`operations_of`, relative to the rate that `Limit` measures.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.lm import MaskedLm
from ftcluster_kernels import products, simd
from ftcluster_kernels.private_torch import has_onednn_linear, onednn_linear
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.health.host_benchmark import matmul_shapes, weights_of

TRAINING = 3  # matmuls of a forward and a backward pass, relative to a forward pass
Matmul = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def operations_of(model: Any, train_set: Samples, recipe: Recipe) -> float:
    """Return the operations of all matmuls in an epoch: forward, gradients of inputs and weights.

    Padding, and attention's second computation of scores in some kernels, do not count. The
    matmuls of attention, query @ key.T and probabilities @ value, count without masked scores.
    """
    weights = 2 * TRAINING * weight_products(model, train_set, recipe)
    return weights + TRAINING * attention_operations(model, train_set)


def weight_products(model: Any, train_set: Samples, recipe: Recipe) -> float:
    """Return the multiplications with weights in a pass over all samples.

    The pooler of an encoder does not count, because it reads one token of each sample at most.
    """
    read = sum(train_set.lengths("input_ids"))
    if not model.config.is_encoder_decoder:
        weights: float = weights_of(matmul_shapes(model))
        if (pooler := getattr(model, "pooler", None)) is not None:
            weights -= weights_of(matmul_shapes(pooler))
        if isinstance(recipe.options, MaskedLm):  # unmasked tokens need no logits
            head = model.get_output_embeddings().weight.numel()
            weights -= (1 - recipe.options.mlm_probability) * head
        return read * weights
    written, total = sum(train_set.lengths("labels")), 0.0
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            # keys and values of the cross-attention belong to the encoder's tokens
            of_source = "decoder" not in name and "lm_head" not in name
            of_source |= name.endswith(("EncDecAttention.k", "EncDecAttention.v"))
            total += layer.weight.numel() * (read if of_source else written)
    return total


def attention_operations(model: Any, train_set: Samples) -> float:
    """Return the operations of attention's matmuls in a forward pass over all samples."""
    config = model.config
    width = config.hidden_size
    if size := getattr(config, "d_kv", 0):  # T5's heads need not be as wide as its hidden states
        width = size * config.num_attention_heads
    read = text_lengths(train_set)
    layers: int = config.num_hidden_layers
    if config.is_encoder_decoder:
        written = train_set.lengths("labels")
        scores = layers * _squares(read)
        crossed = sum(x * y for x, y in zip(read, written, strict=True))
        scores += config.num_decoder_layers * (_triangles(written) + crossed)
    elif "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
        scores = layers * _triangles(read)
    else:
        scores = layers * _squares(read)
    return 4.0 * scores * width  # two matmuls; each score takes `width` multiply-adds in each


def text_lengths(train_set: Samples) -> Sequence[int]:
    """Return the lengths of the texts that the model reads; a row of pairs has several texts."""
    if "lengths" not in train_set.about["kinds"]:
        return train_set.lengths("input_ids")
    return [length for row in train_set for length in row["lengths"]]


def _squares(lengths: Iterable[int]) -> float:
    return float(sum(length * length for length in lengths))


def _triangles(lengths: Iterable[int]) -> float:
    """Return the scores that are not masked in causal attention."""
    return sum(length * (length + 1) / 2 for length in lengths)


class Limit:
    """Matmuls of these shapes, forward only, between the steps of a training.

    On a shared machine the matmuls' rate changes by a tenth within minutes, so it is measured in
    the same seconds as the steps. The kernels are the libraries', with their weights as they are
    in memory, and our own loops; the fastest kernel for each shape counts.

    Args:
        shapes: rows, inner size and columns.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype) -> None:
        self.factors = [
            (torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype))
            for rows, inner, columns in shapes
        ]
        self._work = sum(2.0 * rows * inner * columns for rows, inner, columns in shapes)
        self._kernels = matmuls(dtype)
        self._seconds: list[list[list[float]]] = []  # seconds by step, kernel and shape

    def measure(self) -> None:
        """Compute each matmul once."""
        with torch.no_grad():
            self._seconds.append([[*map(partial(_seconds, kernel), self.factors)]
                                  for kernel in self._kernels])  # fmt: skip

    def rate(self, first: int) -> float:
        """Return the operations per second, from a step on."""
        steps = torch.tensor(self._seconds[first:], dtype=torch.float64)
        best = steps.sum(0).amin(0)  # the best time of each shape
        return self._work * len(steps) / float(best.sum())


def matmuls(dtype: torch.dtype) -> list[Matmul]:
    """Return the functions of this CPU that compute input @ weight.T in a dtype."""
    found: list[Matmul] = [torch.nn.functional.linear]
    if has_onednn_linear(dtype):
        found.append(lambda x, w: onednn_linear(x, w, w.new_zeros(len(w))))
    if dtype == torch.bfloat16 and products.has_amx():
        found.append(lambda x, w: products.product(x, w.T))
    elif simd.is_available() and (dtype == torch.float32 or products.adds_bf16()):
        found.append(lambda x, w: products.product_by_fma(x, w.T))
    return found


def _seconds(kernel: Matmul, factors: tuple[torch.Tensor, torch.Tensor]) -> float:
    began = time.perf_counter()
    kernel(*factors)
    return time.perf_counter() - began
