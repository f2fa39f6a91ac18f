"""Redirects calls of torch's attention to the kernel, and converts their arguments.

A row may contain packed sequences, whose tokens attend only to tokens of the same sequence, see
`ftcluster_kernels.documents`. The mask of such a row is a `DocumentMask` with the lengths of the
sequences.
"""

from typing import Any, NamedTuple, TypeGuard

import torch
from torch.nn import functional

from ftcluster_common.protocol.kernel_limits import ATTENTION_TOKENS
from ftcluster_kernels import simd
from ftcluster_kernels.attention import (
    MASKED,
    NO_MASK,
    Masked,
    attention,
    attention_of_documents,
    biased,
    masked,
)
from ftcluster_kernels.attention_heads import takes
from ftcluster_kernels.biased_mask import BiasedMask
from ftcluster_kernels.documents import (
    CausalDocumentMask,
    DocumentMask,
    Group,
    document_mask,
    join_documents,
    layout_of,
    split_row,
)
from ftcluster_kernels.dropout import MOST_DROPPED
from ftcluster_train.patching.registry import FunctionPatch

DTYPES = {torch.bfloat16, torch.float32}
torch_attention = functional.scaled_dot_product_attention


def cast_as_torch(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors in autocast's dtype, as torch's function casts its arguments.

    This is needed because rotary positions and norms in fp32 return queries and keys in fp32, but
    values stay in autocast's dtype.
    """
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(x.to(dtype) if x.dtype == torch.float32 else x for x in tensors)


class _Call(NamedTuple):
    """A call of torch's function."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


class Attention:
    """The guard, the kernel and the fallback function for `scaled_dot_product_attention`.

    Args:
        with_dropout: False to disable dropout.
        max_length: maximum length in tokens; longer sequences use torch's function. 0 means that
            all sequences use torch's function, without a notice.
        exact_dropout: True to use the exact dropout probability instead of a rounded one.
        longer_with_dropout: True to ignore `max_length` for calls with dropout, so that only the
            limit of the loop in C applies. With dropout, torch's function also keeps the whole
            attention matrix, even in fp32.
        without_gradients: True to use the kernel in passes without gradients too.
    """

    def __init__(
        self,
        with_dropout: bool,
        max_length: int = ATTENTION_TOKENS,
        exact_dropout: bool = False,
        longer_with_dropout: bool = False,
        without_gradients: bool = False,
    ) -> None:
        self._without_gradients = without_gradients
        self._longer_with_dropout = longer_with_dropout
        self._with_dropout, self._max_length = with_dropout, max_length
        self._exact_dropout = exact_dropout
        # all layers of a model get the same mask, so the result for the last mask is kept
        self._last = NO_MASK

    def patch(self) -> FunctionPatch:
        """Return the entry that replaces torch's function."""
        return FunctionPatch(functional, torch_attention, self.guard, self._kernel, self._fallback)

    def guard(self, *args: Any, **kwargs: Any) -> str | None:
        """Accept calls with four dimensions, in fp32 or bf16, within the maximum length.

        Passes without gradients and dropout are refused unless the kernel is used for them too.
        The guard also accepts the first pass of a gradient checkpoint, which keeps no graph.
        """
        query, key, value, mask, dropout_p, causal, _, shared = _Call(*args, **kwargs)
        trained = query.requires_grad or key.requires_grad or value.requires_grad
        trained = trained and torch.is_grad_enabled()
        p = self._p(dropout_p)
        if not (p or trained or self._without_gradients):
            return ""
        if not self._max_length or p > MOST_DROPPED or not simd.is_available():
            return ""
        lengths = query.shape[-2], key.shape[-2]
        if _is_documents(mask):
            lengths, mask, causal = (int(mask.max()),) * 2, None, True
        dtypes = {x.dtype for x in (query, key, value)}
        if torch.is_autocast_enabled("cpu"):
            cast = torch.get_autocast_dtype("cpu")
            dtypes = {cast if dtype == torch.float32 else dtype for dtype in dtypes}
        masks: list[torch.Tensor] = [] if mask is None else [mask]
        if isinstance(mask, BiasedMask):
            masks = [mask.bias, mask.seen]
        why_not = ""
        if not query.ndim == key.ndim == value.ndim == 4:
            why_not = "tensors without a dimension for heads"
        elif len(dtypes) > 1:
            why_not = "tensors of different types"
        elif not dtypes <= DTYPES:
            why_not = f"tensors of {dtypes.pop()}"
        elif masks and masks[0].ndim != 4:
            why_not = f"a mask with {masks[0].ndim} dimensions"
        elif not all(_fits(query, key, value, one, causal, shared) for one in masks or [None]):
            return ""
        elif causal and lengths[0] != lengths[1]:
            why_not = "a causal mask and different numbers of queries and keys"
        elif max(lengths) > self._longest(p):
            why_not = f"more than {self._longest(p)} tokens"
        return f"torch computes attention with {why_not}" if why_not else None

    def _kernel(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        query, key, value, mask, dropout_p, causal, scale, shared = _Call(*args, **kwargs)
        p, heads = self._p(dropout_p), query.shape[1]
        query, key, value = cast_as_torch(query, key, value)
        if _is_documents(mask):
            return self._of_documents(query, key, value, mask, p, scale)
        if shared:
            key, value = (_for_all_heads(x, heads) for x in (key, value))
        # all heads may share the keys of one head (Falcon's multi_query), and all samples one batch
        key, value = (x.expand(*query.shape[:2], -1, -1) for x in (key, value))
        skips, last = takes(query, key, value), self._last  # another thread may replace `_last`
        if isinstance(mask, BiasedMask):
            converted, self._last = biased(mask, query, key.shape[2], last, skips)
        else:
            self._last = converted = masked(mask, query, key.shape[2], last, skips)
        return attention(
            query, key, value, mask=converted, causal=causal, scale=scale, p=p,
            exact=self._exact_dropout,
        )  # fmt: skip

    def _fallback(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        call = _Call(*args, **kwargs)
        query, key, value, mask, dropout_p, _, scale, shared = call
        p = self._p(dropout_p)
        if _is_documents(mask):
            query, key, value = cast_as_torch(query, key, value)
            return self._of_documents(query, key, value, mask, p, scale)
        if shared and mask is not None:  # torch's kernels do not support both
            key, value = (_for_all_heads(x, query.shape[1]) for x in (key, value))
            call = call._replace(key=key, value=value, enable_gqa=False)
        output: torch.Tensor = torch_attention(**call._replace(dropout_p=p)._asdict())
        return output

    def _longest(self, p: float) -> int:
        return simd.LONGEST if p and self._longer_with_dropout else self._max_length

    def _p(self, dropout_p: float) -> float:
        return dropout_p if self._with_dropout else 0.0

    def _of_documents(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        p: float,
        scale: float | None,
    ) -> torch.Tensor:
        """Return attention within packed sequences; inputs have shape (1, heads, all tokens, size).

        Queries of heads that share keys are rows of one matrix, so keys need not be repeated.
        """
        lengths, causal = mask.flatten().tolist(), isinstance(mask, CausalDocumentMask)
        exact = self._exact_dropout
        if self.guard(query, key, value, mask, p, enable_gqa=True) is None:
            output = attention_of_documents(query, key, value, lengths, scale, p, exact, causal)
            if output is not None:
                return output
        layout = layout_of(tuple(lengths), self._max_length)
        per_key = query.shape[1] // key.shape[1]
        parts = (split_row(x, layout, n) for x, n in ((query, per_key), (key, 1), (value, 1)))
        outputs = []
        for group, q, k, v in zip(layout.groups, *parts, strict=True):
            bias = None if causal else _bias_of(group, q.dtype)
            converted = NO_MASK if bias is None else Masked(None, (), bias, None, None)
            of_a_head = q[:, :, : k.shape[2]]  # the first queries, as many as keys
            if self.guard(of_a_head, k, v, dropout_p=p) is None:
                outputs.append(
                    attention(q, k, v, mask=converted, causal=causal, scale=scale, p=p, exact=exact)
                )
            else:
                q = q.unflatten(2, (-1, per_key)).permute(0, 3, 1, 2, 4)
                k, v = (x.unsqueeze(1).expand(-1, per_key, -1, -1, -1) for x in (k, v))
                of_group = torch_attention(
                    *(x.flatten(0, 1) for x in (q, k, v)), bias, p, causal, scale=scale
                )
                of_group = of_group.unflatten(0, (-1, per_key)).permute(0, 2, 3, 1, 4).flatten(2, 3)
                outputs.append(of_group)
        return join_documents(outputs, layout, per_key)


def takes_documents() -> bool:
    """Return True if torch's function is replaced by a function that supports document masks."""
    x = torch.zeros(1, 1, 1, 1, dtype=torch.float32, device="cpu")
    try:
        functional.scaled_dot_product_attention(x, x, x, document_mask([1], causal=False))
    except RuntimeError:
        return False
    return True


def _fits(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    shared: bool,
) -> bool:
    """Return True if the kernel supports the shapes.

    All tensors must have four dimensions. Keys and values must have the queries' batch size and
    number of heads, or size 1 in these dimensions. If `shared`, several heads of queries may also
    share a head of keys. A mask contains values to add, or is boolean.
    """
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    if min(query.shape) == 0 or min(key.shape) == 0 or min(value.shape) == 0:
        return False
    if mask is not None:
        whole = zip(mask.shape, (batch, heads, queries, keys), strict=True)
        has_dtype = mask.dtype is torch.bool or mask.dtype in DTYPES
        if causal or not has_dtype or any(n not in (1, most) for n, most in whole):
            return False
    if shared:
        few = key.shape[1]
        if value.shape[1] != few or heads % few or key.shape[0] != batch:
            return False
    elif not {key.shape[1], value.shape[1]} <= {1, heads}:
        return False
    return (
        key.shape[3] == size
        and value.shape[2] == keys
        and {key.shape[0], value.shape[0]} <= {1, batch}
    )


def _is_documents(mask: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Return True if a mask contains the lengths of packed sequences."""
    return isinstance(mask, DocumentMask)


def _bias_of(group: Group, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the bias that masks a group's padding, shape (1, documents, 1, longest)."""
    if group.padding is None:
        return None
    hidden = group.padding.view(1, group.count, 1, -1)
    return torch.zeros(hidden.shape, dtype=dtype, device="cpu").masked_fill_(hidden, MASKED)


def _for_all_heads(keys: torch.Tensor, heads: int) -> torch.Tensor:
    return keys.repeat_interleave(heads // keys.shape[1], 1)
