"""What nothing reads in a classifier that looks at the first token of each sample.

Its attention masks padding, and tokens meet nowhere else. So rows of padding need no products, nor
does the last layer behind its attention but for first tokens, and columns of padding behind the
longest sample of a batch, which scripts such as run_glue have, need not exist. Loss and gradients
are the same to rounding.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# model types whose classifier looks at the first token; only masked attention mixes tokens
FIRST_TOKEN = (
    "albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta",
    "xlm-roberta",
)  # fmt: skip
SHARED_LAYERS = ("albert",)  # the last layer's weights are those of the others
PADDED = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
# in the last layer, by names of transformers; DeBERTa's query is that of positions as well
OF_ALL_TOKENS = {"key", "value", "k_lin", "v_lin", "Wqkv", "query_proj", "key_proj", "value_proj"}
MANY_ROWS = 0.75  # of all: with more it costs as much to select them as it saves


class _Rows:
    """Of the batch that such a model computes now, the rows that are read.

    Attributes:
        shape: (samples, tokens), of inputs whose rows these are.
        real: their numbers, without padding; None if most rows are real.
        first: those of first tokens.
        read: the ones that the present layer's output is read of.
    """

    def __init__(self, mask: torch.Tensor) -> None:
        self.shape = mask.shape
        self.first = torch.arange(len(mask)) * mask.shape[1]
        self.real: torch.Tensor | None = mask.flatten().nonzero().flatten()
        # a single sample has no padding behind it, and the shape of DeBERTa's table of positions
        if len(mask) == 1 or len(self.real) > MANY_ROWS * mask.numel():
            self.real = None
        self.read = self.real


_rows: _Rows | None = None


def rows_read(input: torch.Tensor) -> torch.Tensor | None:
    """The numbers of the rows of a layer's output that are read; None if all are to be computed.

    Args:
        input: of the layer, shape (..., columns).
    """
    return _rows.read if _rows is not None and input.shape[:-1] == _rows.shape else None


def leave_out_unread(model: nn.Module) -> None:
    """Have a model not compute it in training, if it is one of these classifiers."""
    config: Any = getattr(model, "config", None)
    if not type(model).__name__.endswith("ForSequenceClassification") or not _is_fit(config):
        return
    model.register_forward_pre_hook(_begin, with_kwargs=True)
    model.register_forward_hook(_end, always_call=True)
    if config.model_type not in SHARED_LAYERS:
        for layer in _behind_last_attention(model):
            layer.register_forward_pre_hook(_read_first)
            layer.register_forward_hook(_read_real, always_call=True)


def _is_fit(config: Any) -> bool:
    return (
        getattr(config, "model_type", "") in FIRST_TOKEN
        and getattr(config, "classifier_pooling", "cls") == "cls"  # of ModernBERT
        and not getattr(config, "conv_kernel_size", 0)  # of DeBERTa: neighbours meet in it
    )


def _behind_last_attention(model: nn.Module) -> Iterator[nn.Module]:
    """The linear layers of the last block that compute nothing for other tokens."""
    blocks = next((m for m in model.modules() if isinstance(m, nn.ModuleList)), None)
    for name, module in blocks[-1].named_modules() if blocks else ():
        if isinstance(module, nn.Linear) and OF_ALL_TOKENS.isdisjoint(name.split(".")):
            yield module


def _begin(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call without columns of padding; None where it is left as it is."""
    global _rows
    _rows = None
    mask: Any = kwargs.get("attention_mask")
    tokens: Any = kwargs.get("input_ids")
    config: Any = model.config
    by_token = ("output_attentions", "output_hidden_states")
    if (
        not model.training
        or args
        or any(kwargs.get(name) or getattr(config, name, False) for name in by_token)
        or kwargs.get("inputs_embeds") is not None
        or type(mask) is not torch.Tensor
        or type(tokens) is not torch.Tensor
        or mask.ndim != 2
        or mask.shape != tokens.shape
        or torch.compiler.is_compiling()
        or not mask[:, 0].all()  # attention of padding may be that of padding
    ):
        return None
    length = int((mask.any(0) * torch.arange(1, mask.shape[1] + 1)).amax())
    _rows = _Rows(mask[:, :length])
    if length == mask.shape[1]:
        return None
    cut = {name: kwargs[name][..., :length] for name in PADDED if kwargs.get(name) is not None}
    return args, {**kwargs, **cut}


def _end(*_: Any) -> None:
    global _rows
    _rows = None


def _read_first(*_: Any) -> None:
    if _rows is not None:
        _rows.read = _rows.first


def _read_real(*_: Any) -> None:
    if _rows is not None:
        _rows.read = _rows.real
