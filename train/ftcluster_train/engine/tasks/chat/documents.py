"""Packed or padded batches of documents for decoders, and the trial that chooses between them.

A packed batch has all documents in one row without padding, and our attention kernels keep them
apart. This works only for models whose layers mix tokens exclusively in torch's attention function.
A trial therefore compares the outputs for packed documents with the outputs of unmodified
transformers. If they differ, each document gets its own row, which works for every decoder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from transformers import PretrainedConfig

from ftcluster_kernels.documents import document_mask
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.tasks.base import Batch
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Kernels = Callable[[], AbstractContextManager[Any]]
# substrings in the names of configuration fields that limit how many tokens a token attends to
LIMITS = ("window", "chunk", "block", "local", "original_max_position")
TRIED_TOKENS = 128  # length of the trial's long document if the configuration has no limit
SHORT = (5, 3)  # lengths of the trial's other documents in tokens
# transformers' layer types that attend only to a limited number of previous tokens, and the
# configuration field that sets this number
LIMITED_LAYERS = {
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


def packed(samples: Sequence[Sample]) -> Batch:
    """Return a batch with all documents in one row, without padding."""
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


def padded(samples: Sequence[Sample], padding: int) -> Batch:
    """Return a batch with one row per document, padded on the right with the token id `padding`.

    The targets have the same order as in `packed`. Their positions are indices into the flattened
    batch.
    """
    documents: list[list[int]] = []
    row_of: list[int] = []
    column_of: list[int] = []
    for sample in samples:
        ends = [0]
        for length in sample["documents"]:
            ends.append(ends[-1] + length)
        for begin, end in pairwise(ends):
            targets = [target for target in sample["targets"] if begin <= target < end]
            row_of += [len(documents)] * len(targets)
            column_of += [target - begin for target in targets]
            documents.append(list(sample["input_ids"][begin:end]))
    longest = max(map(len, documents))
    rows = torch.tensor(
        [document + [padding] * (longest - len(document)) for document in documents]
    )
    mask = torch.tensor(
        [[1] * len(document) + [0] * (longest - len(document)) for document in documents]
    )
    row, column = torch.tensor(row_of), torch.tensor(column_of)
    inputs = {"input_ids": rows, "attention_mask": mask, "use_cache": False}
    return Batch(inputs, {"tokens": rows[row, column], "places": row * longest + column - 1})


def why_not_packed(
    model: "PreTrainedModel", longest: int, kernels: Kernels, padding: int, name: str
) -> str:
    """Return why a model cannot keep packed documents apart, or "" if it can.

    Args:
        longest: maximum number of tokens of a document.
        kernels: context that enables the kernels for packed documents.
        padding: token id for the padding in `padded`.
        name: name of the model, for error messages.

    Raises:
        TrainError: the model does not work with padded rows either, so it cannot be trained.
    """
    config = model.config.get_text_config()
    documents = _trial(model, config, longest)
    try:
        alone = [_logits(model, _plain(tokens), KernelMode()) for tokens in documents]
    except Exception as error:  # model code may raise any exception
        raise TrainError(
            f"{name} is a {model.config.model_type} model, which fails even on a single text: "
            f"{first_line(error)}",
            "use a decoder such as Llama, Qwen or GPT-2",
        ) from error
    why = _limited_layer(config, longest) or _difference_of_packed(model, documents, alone, kernels)
    if why:
        _check_padded(model, documents, alone, kernels, padding, name)
    return why


def _difference_of_packed(
    model: "PreTrainedModel",
    documents: Sequence[list[int]],
    alone: Sequence[torch.Tensor],
    kernels: Kernels,
) -> str:
    try:
        logits = _logits(model, packed(_samples(documents)).inputs, kernels())
    except Exception as error:
        return f"it fails on packed documents ({first_line(error)})"
    if logits.shape[1] != sum(map(len, documents)):
        return "it does not return the logits of each token"
    parts = logits[0].split(list(map(len, documents)))
    if all(_alike(*pair) for pair in zip(parts, (output[0] for output in alone), strict=True)):
        return ""
    return "it computes other logits for packed documents than for each document alone"


def _check_padded(
    model: "PreTrainedModel",
    documents: Sequence[list[int]],
    alone: Sequence[torch.Tensor],
    kernels: Kernels,
    padding: int,
    name: str,
) -> None:
    """Check that a model is a decoder: its logits must not depend on later tokens.

    Args:
        alone: logits of each document, computed in a separate batch.

    Raises:
        TrainError: the model is not a decoder.
    """
    try:
        right = True
        for tokens, expected in zip(documents, alone, strict=True):
            longer = [*tokens, *tokens[: SHORT[0]]]
            inputs = padded(_samples([tokens, longer]), padding).inputs
            logits = _logits(model, inputs, kernels())[0, : len(tokens)]
            right &= _alike(logits, expected[0])
        changed = [*documents[1][:-1], documents[2][0]]
        before = _logits(model, _plain(changed), KernelMode())[0, :-1]
        causal = _alike(before, alone[1][0, :-1])
        problem = "whose logits depend on padding"
    except Exception as error:
        right, causal, problem = False, True, f"which cannot read padded rows: {first_line(error)}"
    if right and causal:
        return
    kind = f"{name} is a {model.config.model_type} model"
    problem = (
        problem if causal else "which is not a decoder: it reads the tokens that it should predict"
    )
    raise TrainError(f"{kind}, {problem}", "use a decoder such as Llama, Qwen or GPT-2")


def _limited_layer(config: PretrainedConfig, longest: int) -> str:
    """Describe the layers that attend to fewer than `longest` tokens; "" if there are none."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * bool(window)
    for kind in dict.fromkeys(kinds):
        limit = getattr(config, LIMITED_LAYERS.get(kind, ""), None)
        if isinstance(limit, int) and limit < longest:
            setting = LIMITED_LAYERS[kind]
            return (
                f"some of its layers attend to only {limit} tokens ({setting}), and documents "
                "may be longer"
            )
    return ""


def _trial(model: "PreTrainedModel", config: PretrainedConfig, longest: int) -> list[list[int]]:
    """Return documents for the trial; the first document is longer than each attention limit."""
    limits = [limit for limit in _limits(config.to_dict()) if limit < longest]
    length = min(longest, 2 * max(limits) if limits else TRIED_TOKENS)
    special = {0}
    for name, value in config.to_dict().items():
        if name.endswith("_token_id"):
            special.update(value if isinstance(value, list) else [value])
    vocabulary = model.get_input_embeddings().num_embeddings
    usable = [token for token in range(vocabulary) if token not in special]
    draw = torch.Generator().manual_seed(0)
    lengths = (length, *SHORT)
    drawn = torch.randint(len(usable), (sum(lengths),), generator=draw).tolist()
    tokens = iter([usable[number] for number in drawn])
    return [[next(tokens) for _ in range(length)] for length in lengths]


def _limits(fields: Mapping[str, Any]) -> Iterator[int]:
    """Yield the values of configuration fields that limit attention, in tokens."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _limits(value)
        elif any(part in str(name) for part in LIMITS):
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from (n for n in numbers if type(n) is int and n > 0)


def _samples(documents: Sequence[list[int]]) -> list[Sample]:
    return [
        {"input_ids": document, "targets": [1], "documents": [len(document)]}
        for document in documents
    ]


def _plain(tokens: Sequence[int]) -> dict[str, Any]:
    return {"input_ids": torch.tensor([tokens]), "use_cache": False}


def _logits(
    model: "PreTrainedModel", inputs: Mapping[str, Any], kernels: AbstractContextManager[Any]
) -> torch.Tensor:
    bf16 = model.get_input_embeddings().weight.dtype == torch.bfloat16
    with kernels, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits: torch.Tensor = call_model(model, inputs).logits
    return logits


def _alike(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return True if two tensors of logits, shape (tokens, vocabulary), differ only by rounding.

    In fp32, each token's logits are compared separately. In bf16, all tokens are compared together,
    because rounding may make a router choose other experts for single tokens.
    """
    exact = logits.dtype == torch.float32
    difference, size = (logits.float() - expected.float()), expected.float()
    norms = (
        (difference.norm(dim=-1), size.norm(dim=-1)) if exact else (difference.norm(), size.norm())
    )
    return bool((norms[0] <= (1e-3 if exact else 0.03) * norms[1]).all())
