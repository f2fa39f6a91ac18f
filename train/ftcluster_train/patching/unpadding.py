"""Makes an encoder's layers compute only the real tokens of a batch, as a row without padding.

Attention treats the samples as packed sequences in a row; all other parts of a layer compute each
token separately. For padding, the outputs of the layers are 0, so nothing may read them. The
embeddings in front of the layers can skip padding too; their output for padding is then also 0.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from ftcluster_common.protocol.kernel_limits import ATTENTION_TOKENS
from ftcluster_kernels.documents import document_mask
from ftcluster_train.patching.attention import takes_documents
from ftcluster_train.patching.batch_context import current_rows
from ftcluster_train.patching.registry import ObjectPatch
from ftcluster_train.patching.rows import Rows
from ftcluster_train.patching.skipped_rows import why_not_skipped

# keys: model types whose attention uses no positions; values: class of the stack of layers
STACKS = {
    "bert": "BertEncoder",
    "camembert": "CamembertEncoder",
    "distilbert": "Transformer",
    "electra": "ElectraEncoder",
    "roberta": "RobertaEncoder",
    "xlm-roberta": "XLMRobertaEncoder",
}
ATTENTIONS = ("sdpa", "ftcluster")  # implementations that call torch's function, which is patched
POSITIONS = "create_position_ids_from_input_ids"  # function of the relatives of RoBERTa
UNKNOWN = ("encoder_hidden_states", "past_key_values")


def _stacks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the stack of layers of a supported encoder with sdpa as attention.

    Nothing may read padding in the model. This holds for classifiers that read the first token, and
    for recipes whose loss uses only real tokens. The conditions for skipped rows are checked again
    before each call.
    """
    config: Any = getattr(model, "config", None)
    name = STACKS.get(str(getattr(config, "model_type", "")))
    stacks = [module for module in model.modules() if type(module).__name__ == name]
    plain = (
        getattr(config, "_attn_implementation", "") in ATTENTIONS
        # in transformers 4, some of these models may use relative positions
        and getattr(config, "position_embedding_type", None) in (None, "absolute")
        and not getattr(config, "chunk_size_feed_forward", 0)
    )
    if plain and len(stacks) == 1 and _unpad not in stacks[0]._forward_pre_hooks.values():
        yield stacks[0]


def _change(stack: nn.Module) -> None:
    stack.register_forward_pre_hook(_unpad, with_kwargs=True)
    stack.register_forward_hook(_pad)


# for models in which nothing reads the outputs of padding
UNPADDING = ObjectPatch(_stacks, _change)


def skips_padding(model: nn.Module) -> bool:
    """Return True if UNPADDING was applied to a model, and no part of it may read padding."""
    changed = any(_unpad in module._forward_pre_hooks.values() for module in model.modules())
    return changed and not why_not_skipped(model)


def _embeddings(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the embeddings of an encoder whose stack of layers skips padding."""
    for owner in model.modules():
        parts = [part for part in vars(owner)["_modules"].values() if part is not None]
        if any(_unpad in part._forward_pre_hooks.values() for part in parts):
            for part in parts:
                ours = _embed_tokens in part._forward_pre_hooks.values()
                if type(part).__name__.endswith("Embeddings") and not ours:
                    yield part


def _change_embeddings(embeddings: nn.Module) -> None:
    embeddings.register_forward_pre_hook(_embed_tokens, with_kwargs=True)
    embeddings.register_forward_hook(_pad_embeddings)


# apply it after UNPADDING
UNPADDED_EMBEDDINGS = ObjectPatch(_embeddings, _change_embeddings)


class _Chosen(torch.autograd.Function):  # type: ignore[misc]
    """Selects rows of a tensor of shape (rows, columns)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        ctx.count = len(rows)
        ctx.save_for_backward(chosen)
        return rows.index_select(0, chosen)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (chosen,) = ctx.saved_tensors
        return _at(chosen, grad, ctx.count), None


class _Placed(torch.autograd.Function):  # type: ignore[misc]
    """Puts rows at their places in a larger tensor, whose other rows are 0."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(places)
        return _at(places, rows, count)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad.index_select(0, *ctx.saved_tensors), None, None


def _at(places: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)


def _unpad(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call with only the real tokens; None keeps the arguments."""
    rows = current_rows()
    hidden: Any = args[0] if args else kwargs.get("hidden_states")
    if (
        rows is None
        or not _can_skip(rows)
        or type(hidden) is not torch.Tensor
        or "attention_mask" not in kwargs  # some models of transformers 4 use a different name
        or len(args) > 1
        or any(kwargs.get(name) is not None for name in UNKNOWN)
        or hidden.shape[:2] != rows.shape
    ):
        return None
    embedded = rows.take_embedded(hidden)
    if embedded is None:
        embedded = _Chosen.apply(hidden.flatten(0, 1), rows.tokens).unsqueeze(0)
    rows.unpad()
    kwargs = {**kwargs, "attention_mask": document_mask(rows.lengths, causal=False)}
    if args:
        return (embedded,), kwargs
    return (), {**kwargs, "hidden_states": embedded}


def _can_skip(rows: Rows) -> bool:
    """Return True if the layers can skip the padding of a batch, and if there is any."""
    has_padding = not rows.shown and len(rows.tokens) < rows.shape.numel()
    return has_padding and max(rows.lengths) <= ATTENTION_TOKENS and takes_documents()


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _embed_tokens(
    embeddings: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call with only the real tokens; None keeps the arguments."""
    rows = current_rows()
    if rows is None or not _can_skip(rows):
        return None
    signature = _signature(type(embeddings).forward)
    if "position_ids" not in signature.parameters:  # DistilBERT in transformers 4
        return None
    call = signature.bind(embeddings, *args, **kwargs).arguments
    given = {name: value for name, value in list(call.items())[1:] if value is not None}
    tokens, past = given.get("input_ids"), given.pop("past_key_values_length", 0)
    known = given.keys() <= {"input_ids", "token_type_ids", "position_ids"}
    if not known or past or tokens is None:
        return None
    if type(tokens) is not torch.Tensor or tokens.shape != rows.shape:
        return None
    if "position_ids" not in given:
        given["position_ids"] = _positions_of(embeddings, tokens)
    chosen = {
        name: values.expand(rows.shape).flatten()[rows.tokens].unsqueeze(0)
        for name, values in given.items()
    }
    rows.embed_tokens()
    return (), chosen


def _positions_of(embeddings: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the positions that the model itself gives to the tokens of a padded batch."""
    places = embeddings, sys.modules[type(embeddings).__module__]  # transformers 5 and 4
    functions = (getattr(place, POSITIONS, None) for place in places)
    if (function := next(filter(None, functions), None)) is not None:
        positions: torch.Tensor = function(tokens, embeddings.padding_idx)
        return positions
    return torch.arange(tokens.shape[1], dtype=torch.int64, device="cpu").unsqueeze(0)


def _pad_embeddings(_: nn.Module, __: Any, output: Any) -> Any:
    rows = current_rows()
    if rows is None or not rows.embeds:
        return None
    placed: torch.Tensor = _Placed.apply(output[0], rows.tokens, rows.shape.numel())
    padded = placed.view(*rows.shape, -1)
    rows.keep_embedded(padded, output)
    return padded


def _pad(_: nn.Module, __: Any, output: Any) -> Any:
    rows = current_rows()
    if rows is None or rows.padded_shape is None:
        return None
    if isinstance(output, tuple):
        return _padded(output[0], rows), *output[1:]
    output.last_hidden_state = _padded(output.last_hidden_state, rows)
    return output


def _padded(hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
    assert rows.padded_shape is not None
    placed: torch.Tensor = _Placed.apply(hidden[0], rows.tokens, rows.padded_shape.numel())
    return placed.view(*rows.padded_shape, -1)
