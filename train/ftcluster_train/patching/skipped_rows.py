"""Skips rows of a padded batch that nothing reads in an encoder.

Attention masks padding, so nothing reads the keys and values of padding. In a classifier that reads
the first token of each sample:

- Nothing reads padding at all, because tokens interact only in attention.
- After the last layer's attention, only the first token is read.
- Columns of padding after a batch's longest sample can be cut off. Scripts such as run_glue make
  such columns.

Loss and gradients are the same up to rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ftcluster_train.patching.batch_context import BatchContext, current_context, current_rows
from ftcluster_train.patching.registry import HOOKS, ObjectPatch
from ftcluster_train.patching.rows import Rows

# model types in which only masked attention mixes tokens; their classifier reads the first token
FIRST_TOKEN = (
    "albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta",
    "xlm-roberta",
)  # fmt: skip
# model types that have separate layers for keys and values, which can skip padding
MASKED_KEYS = (
    "albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta",
)  # fmt: skip
SHARED_LAYERS = ("albert",)  # all layers share their weights
PADDED = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
# names of layers in transformers
KEYS_AND_VALUES = {"key", "value", "k_lin", "v_lin"}
# Linear layers of the last block whose output is read only at the first token. Layers with other
# names are not checked yet; DeBERTa's query_proj is also used for positions.
OF_FIRST_TOKEN = {"query", "q_lin", "dense", "out_lin", "lin1", "lin2", "Wo", "Wi"}
# torch's modules in these models: their result for a token depends on no other token. DistilBERT
# also has its loss as a module.
TORCH_MODULES = (
    nn.Linear, nn.Dropout, nn.LayerNorm, nn.Embedding, nn.ModuleList, nn.Tanh, nn.Identity, nn.GELU,
    nn.CrossEntropyLoss,
)  # fmt: skip
# packages whose hooks and wrappers do not read hidden states
LIBRARIES = ("accelerate", "ftcluster_train", "torch", "transformers")


def rows_read(input: torch.Tensor) -> torch.Tensor | None:
    """Return the indices of the rows of a layer's output that are read; None means all.

    Args:
        input: input of the layer, shape (..., columns).
    """
    rows = current_rows()
    return rows.read if rows is not None and input.shape[:-1] == rows.shape else None


def _skips_rows(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model if it is a supported encoder whose classes are all from transformers.

    Each call of the model checks again for forward passes and hooks that other code has added.
    """
    fits = reads_only_first_token(model) or _model_type(model) in MASKED_KEYS
    if fits and _is_stock(type(model)) and _begin not in model._forward_pre_hooks.values():
        yield model


def why_not_skipped(model: nn.Module) -> str:
    """Return why a model of a supported type computes all rows; "" if it skips rows."""
    if _model_type(model) not in {*FIRST_TOKEN, *MASKED_KEYS}:
        return ""
    part = _foreign_part(model)
    return f"{part} may read any token, so layers also compute the rows of padding" if part else ""


def _model_type(model: nn.Module) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def _is_stock(kind: type) -> bool:
    # the package transformers_modules contains models with custom code. ftcluster's own classes add
    # only layers that transform single tokens behind a model, see engine.projections
    own = ("transformers.", "ftcluster_train.")
    return kind.__module__.startswith(own) or kind in TORCH_MODULES


def _foreign_part(model: nn.Module) -> str:
    """Return a part of a model that is not from transformers and may read any token, or ""."""
    for name, module in model.named_modules():
        kind = type(module)
        where = f"{name} ({kind.__name__})" if name else kind.__name__
        forward = vars(module).get("forward")
        if not _is_stock(kind):
            return where
        if not _of_library(kind.forward) or (forward is not None and not _of_library(forward)):
            return f"the forward pass of {where}"
        if not all(_of_library(hook) for hooks in HOOKS for hook in vars(module)[hooks].values()):
            return f"a hook on {where}"
    return ""


def _of_library(function: Any) -> bool:
    # functools.wraps copies the __module__ of the wrapped function
    of_method = getattr(function, "__func__", function)
    place = getattr(of_method, "__globals__", {}).get("__name__") or type(of_method).__module__
    return bool(str(place).partition(".")[0] in LIBRARIES)


def _skip_rows(model: nn.Module) -> None:
    """Make the model skip unread rows in training and in predictions of the engine."""
    model.register_forward_pre_hook(_begin, with_kwargs=True)
    model.register_forward_hook(_end, always_call=True)
    if not reads_only_first_token(model):
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in KEYS_AND_VALUES:
                _set_around(layer, _read_real)
    elif getattr(model.config, "model_type", "") not in SHARED_LAYERS:
        for layer in _behind_last_attention(model):
            _set_around(layer, _read_last)


SKIPPED_ROWS = ObjectPatch(_skips_rows, _skip_rows)


def reads_only_first_token(model: nn.Module) -> bool:
    """Return True for a classifier that reads only the first token of each sample."""
    config: Any = getattr(model, "config", None)
    return (
        _is_stock(type(model))
        and type(model).__name__.endswith("ForSequenceClassification")
        and _model_type(model) in FIRST_TOKEN
        and getattr(config, "classifier_pooling", "cls") == "cls"  # ModernBERT
        and not getattr(config, "conv_kernel_size", 0)  # DeBERTa: a convolution mixes neighbours
    )


def _behind_last_attention(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the linear layers of the last block whose output is read only at the first token."""
    blocks = next((m for m in model.modules() if isinstance(m, nn.ModuleList)), None)
    for name, module in blocks[-1].named_modules() if blocks else ():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in OF_FIRST_TOKEN:
            yield module


def _begin(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call without columns of padding; None keeps the arguments."""
    outer = current_context()
    if outer is not None and outer.rows is not None:
        if _is_part(model, outer.rows.model):
            return None
        outer.__exit__()  # an interrupted call has left its context open
    mask: Any = kwargs.get("attention_mask")
    tokens: Any = kwargs.get("input_ids")
    config: Any = model.config
    if (
        not (model.training or (outer is not None and outer.predicts))
        or args
        or kwargs.get("inputs_embeds") is not None
        or type(mask) is not torch.Tensor
        or type(tokens) is not torch.Tensor
        or mask.ndim != 2
        or mask.shape != tokens.shape
        or torch.compiler.is_compiling()
        or _foreign_part(model)  # checked at each call, because hooks may be added later
    ):
        return None
    by_token = ("output_attentions", "output_hidden_states")
    shown = any(kwargs.get(name) or getattr(config, name, False) for name in by_token)
    if not reads_only_first_token(model):
        # a sample without real keys attends to padding; a decoder returns its keys to the caller
        if mask.any(1).all() and not getattr(config, "is_decoder", False):
            _enter(Rows(model, mask, classifies=False, shown=shown))
        return None
    if (
        shown or not mask[:, 0].all()  # a first token that is padding may attend to padding
    ):
        return None
    numbers = torch.arange(1, mask.shape[1] + 1, dtype=torch.int64, device="cpu")
    length = int((mask.any(0) * numbers).amax())
    _enter(Rows(model, mask[:, :length], classifies=True, shown=False))
    if length == mask.shape[1]:
        return None
    cut = {name: kwargs[name][..., :length] for name in PADDED if kwargs.get(name) is not None}
    return args, {**kwargs, **cut}


def _enter(rows: Rows) -> None:
    """Enter a context for a call of a model, which `_end` leaves."""
    replace(current_context() or BatchContext(), rows=rows).__enter__()


def _is_part(model: nn.Module, whole: nn.Module) -> bool:
    return model is not whole and any(part is model for part in whole.modules())


def _end(model: nn.Module, *_: Any) -> None:
    context = current_context()
    if context is not None and context.rows is not None and context.rows.model is model:
        context.__exit__()


def _set_around(layer: nn.Module, hook: Callable[..., None]) -> None:
    layer.register_forward_pre_hook(hook)
    layer.register_forward_hook(_read_usual, always_call=True)


def _read_last(*_: Any) -> None:
    if (rows := current_rows()) is not None:
        rows.read_last()


def _read_real(*_: Any) -> None:
    if (rows := current_rows()) is not None:
        rows.read_real()


def _read_usual(*_: Any) -> None:
    if (rows := current_rows()) is not None:
        rows.read_usual()
