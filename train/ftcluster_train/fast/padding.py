"""Columns of padding behind the longest sample of a batch, where nothing depends on them.

Scripts such as run_glue pad every batch to the same length. A classifier that looks at its first
token, and whose attention masks the padding, has the same loss and gradients without the columns
behind the longest sample.
"""

from typing import Any

import torch
from torch import nn

# model types whose classifier looks at the first token; only masked attention mixes tokens
FIRST_TOKEN = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
PADDED = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def leave_out_padding(model: nn.Module) -> None:
    """Have a model not compute them in training, if it is one of these classifiers."""
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind in FIRST_TOKEN and type(model).__name__.endswith("ForSequenceClassification"):
        model.register_forward_pre_hook(_cut, with_kwargs=True)


def _cut(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call without these columns; None where it is left as it is."""
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
    ):
        return None
    length = max(1, int((mask.any(0) * torch.arange(1, mask.shape[1] + 1)).amax()))
    if length == mask.shape[1]:
        return None
    cut = {name: kwargs[name][..., :length] for name in PADDED if kwargs.get(name) is not None}
    return args, {**kwargs, **cut}
