"""Computes cross entropy over many classes for a few rows at a time, to save memory.

torch keeps the log-softmax of all rows and its gradient in fp32: 0.8 GB for 2,048 tokens of GPT-2.
In this module, a block of rows that fits in the cache is read once for the loss and once for the
gradient. The gradient has the dtype of the logits.

This module also fuses a model's last layer with the loss. transformers keeps the logits of all
tokens in bf16 and fp32, their log-softmax and its gradient: 1.6 GB for 2,048 tokens of GPT-2. The
fused function computes logits only in bf16, at most LOGITS elements at once. It overwrites the
logits with their gradients, a few rows at a time, within the cache.
"""

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import products, simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.gradient_sums import GradientSums, unless_hooked
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.token_rows import TokenRows

CHUNK = 1 << 20  # maximum elements converted to fp32 at once: 4 MB
ROWS = 16  # tokens converted to fp32 at once: 3 MB with GPT-2's vocabulary
# approximate rows per matmul: oneDNN is a quarter slower with some larger sizes, such as 766
PRODUCT_ROWS = 256
# of the arguments of the fused losses: of hidden, weight, tokens, bias, sums, values and ids
Gradients = tuple[
    torch.Tensor | None, torch.Tensor | None, None, torch.Tensor | None, None, torch.Tensor | None,
    None,
]  # fmt: skip
torch_cross_entropy = functional.cross_entropy  # `ftcluster_train.fast` may have replaced it
LOGITS = 1 << 27  # maximum logits at once: 268 MB in bf16, 2,670 tokens with GPT-2's vocabulary
ALIGNMENT = 64  # in columns: matmuls are up to a third faster if rows begin on a cache line


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """The loss of each row, in fp32, shape (rows,); 0 if the row's target is `ignored`."""

    kernel = "cross_entropy"

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, ignored: int
    ) -> torch.Tensor:
        # kept separately: their sum would lose digits of log(total) if all logits are large
        largest, totals = simd.empty(2, len(logits))
        for rows in _row_chunks(logits):
            part = logits[rows].float()
            torch.amax(part, -1, out=largest[rows])
            torch.sum((part - largest[rows].unsqueeze(1)).exp_(), -1, out=totals[rows])
        counted = targets != ignored
        chosen = targets.where(counted, 0)
        ctx.save_for_backward(logits, chosen, counted, largest, totals)
        of_target = logits.gather(1, chosen.unsqueeze(1)).squeeze(1).float() - largest
        return (totals.log() - of_target).where(counted, 0)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        logits, chosen, counted, largest, totals = ctx.saved_tensors
        if needs_torch(grad_output):
            (grad_logits,) = by_torch(
                lambda logits: torch_cross_entropy(
                    logits.float(), chosen, reduction="none"
                ).where(counted, 0),
                (logits,),
                grad_output,
            )  # fmt: skip
            return grad_logits, None, None
        grad_logits = torch.empty_like(logits)
        factors = grad_output.where(counted, 0)
        shares = (factors / totals).unsqueeze(1)
        for rows in _row_chunks(logits):
            part = logits[rows].float() - largest[rows].unsqueeze(1)
            part.exp_().mul_(shares[rows])
            part.scatter_add_(1, chosen[rows].unsqueeze(1), -factors[rows].unsqueeze(1))
            grad_logits[rows] = part
        return grad_logits, None, None


def _row_chunks(logits: torch.Tensor) -> list[slice]:
    size = max(1, CHUNK // logits.shape[1])
    return [slice(begin, begin + size) for begin in range(0, len(logits), size)]


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignored: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    """Return the same loss as torch's cross entropy, computed in fp32.

    Args:
        logits: shape (rows, classes), bf16 or fp32.
        targets: class of each row, shape (rows,).
        ignored: class of rows that do not contribute to the loss.
        reduction: "mean", "sum" or "none".
    """
    if is_transformed() or not simd.are_alike(logits):
        output: torch.Tensor = torch_cross_entropy(
            logits.float(), targets, ignore_index=ignored, reduction=reduction
        )
        return output
    losses: torch.Tensor = _CrossEntropy.apply(logits, targets, ignored)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / (targets != ignored).sum() if reduction == "mean" else total


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """The fused loss; the forward pass also computes the gradients, so no logits are kept."""

    kernel = "cross_entropy"

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor,
        bias: torch.Tensor | None, sums: GradientSums | None, values: torch.Tensor | None,
        ids: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        ctx.sums = sums
        of_hidden, of_weight, _, of_bias, _, of_values, _ = ctx.needs_input_grad
        padded = _with_aligned_rows(weight)
        grad_hidden = torch.empty_like(hidden) if of_hidden else None
        grad_weight: torch.Tensor | None = None
        grad_bias = simd.zeros(len(weight)) if of_bias else None
        grad_values = simd.zeros(*values.shape) if values is not None and of_values else None
        size = chunk_size(len(weight))
        loss = simd.zeros()
        for begin in range(0, len(tokens), size):
            part = slice(begin, begin + size)
            logits = _logits(hidden[part], padded, bias)
            loss += _replace_by_gradients(logits, tokens[part], len(weight)).sum()
            if grad_hidden is not None:
                _product(logits, padded, grad_hidden[part])
            if grad_bias is not None:
                _add_rows(grad_bias, logits)
            if grad_values is not None:
                grad_values += logits[:, ids].float().T @ hidden[part].float()
            if of_weight:
                whole = len(tokens) <= size
                grad_weight = _add_product(grad_weight, logits, hidden[part], whole)
            del logits  # otherwise the next part's logits would be allocated beside these
        ctx.save_for_backward(
            grad_hidden, grad_weight, grad_bias, grad_values, hidden, weight, tokens, bias, values,
            ids,
        )  # fmt: skip
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Gradients:
        grad_hidden, grad_weight, grad_bias, grad_values, *inputs = ctx.saved_tensors
        if needs_torch(grad_output):
            return _by_torch(*inputs, reduction="sum", grad_output=grad_output)
        _, weight, _, bias, values, _ = inputs
        if grad_hidden is not None:
            grad_hidden = grad_hidden * grad_output
        if grad_weight is not None:
            grad_weight = _of_weight(grad_weight, weight, ctx.sums, grad_output)
        if grad_bias is not None:
            grad_bias = (grad_bias * grad_output).to(bias.dtype)
        if grad_values is not None:
            grad_values = (grad_values * grad_output).to(values.dtype)
        return grad_hidden, grad_weight, None, grad_bias, None, grad_values, None


class _TokenLosses(torch.autograd.Function):  # type: ignore[misc]
    """The fused loss of each token.

    The upstream gradient of each token's loss is known only in the backward pass.
    If only the hidden state needs a gradient, the forward pass computes the unscaled gradient, and
    the backward pass scales each token's row. If the weight or the bias needs a gradient, the
    backward pass recomputes the logits, because these gradients are sums over tokens with different
    upstream gradients.
    """

    kernel = "cross_entropy"

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor,
        bias: torch.Tensor | None, sums: GradientSums | None, values: torch.Tensor | None,
        ids: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        ctx.sums = sums
        of_hidden, of_weight, _, of_bias, _, of_values, _ = ctx.needs_input_grad
        padded = _with_aligned_rows(weight)
        frozen = of_hidden and not (of_weight or of_bias)
        grad_hidden = torch.empty_like(hidden) if frozen else None
        columns = simd.empty(len(tokens), len(ids)) if ids is not None and of_values else None
        losses = simd.empty(len(tokens))
        for part in _chunks(tokens, weight):
            logits = _logits(hidden[part], padded, bias)
            losses[part] = _replace_by_gradients(logits, tokens[part], len(weight))
            if columns is not None:
                columns[part] = logits[:, ids]
            if grad_hidden is not None:
                _product(logits, padded, grad_hidden[part])
            del logits
        ctx.save_for_backward(grad_hidden, columns, hidden, weight, tokens, bias, values, ids)
        return losses

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Gradients:
        grad_hidden, columns, *inputs = ctx.saved_tensors
        if needs_torch(grad_output):
            return _by_torch(*inputs, reduction="none", grad_output=grad_output)
        hidden, weight, tokens, bias, values, _ = inputs
        grad_values = None
        if columns is not None:
            grad_values = (columns * grad_output.unsqueeze(1)).T @ hidden.float()
            grad_values = grad_values.to(values.dtype)
        if grad_hidden is not None:
            grad_hidden = (grad_hidden * grad_output.unsqueeze(1)).to(hidden.dtype)
            return grad_hidden, *[None] * 4, grad_values, None
        grad_output = grad_output.resolve_neg()
        padded = _with_aligned_rows(weight)
        grad_hidden = torch.empty_like(hidden)
        grad_bias = None if bias is None else simd.zeros(len(weight))
        grad_weight: torch.Tensor | None = None
        for part in _chunks(tokens, weight):
            logits = _logits(hidden[part], padded, bias)
            _replace_by_gradients(logits, tokens[part], len(weight), grad_output[part])
            if grad_bias is not None:
                _add_rows(grad_bias, logits)
            _product(logits, padded, grad_hidden[part])
            grad_weight = _add_product(grad_weight, logits, hidden[part], whole=False)
            del logits
        if grad_weight is None:  # no tokens
            grad_weight = simd.zeros(*padded.shape)
        if bias is not None and grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        grad_weight = _of_weight(grad_weight, weight, ctx.sums)
        return grad_hidden, grad_weight, None, grad_bias, None, grad_values, None


def _by_torch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    bias: torch.Tensor | None,
    values: torch.Tensor | None,
    ids: torch.Tensor | None,
    *,
    reduction: str,
    grad_output: torch.Tensor,
) -> Gradients:
    """Return the gradients of the losses, computed by torch."""
    formula = partial(_losses, tokens, reduction, ids)
    of_hidden, of_weight, of_bias, of_values = by_torch(
        formula, (hidden, weight, bias, values), grad_output
    )
    return of_hidden, of_weight, None, of_bias, None, of_values, None


def _losses(
    tokens: torch.Tensor,
    reduction: str,
    ids: torch.Tensor | None,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    values: torch.Tensor | None,
) -> torch.Tensor:
    """Return the losses, or their sum, computed by torch."""
    bias = None if bias is None else bias.float()
    weight = weight.float()
    if values is not None and ids is not None:
        weight = weight.index_copy(0, ids, values.float())
    logits = products.torch_linear(hidden.float(), weight, bias)
    losses: torch.Tensor = torch_cross_entropy(
        logits, tokens, ignore_index=-1 - len(weight), reduction=reduction
    )
    return losses


def _add_product(
    sums: torch.Tensor | None, logits: torch.Tensor, hidden: torch.Tensor, whole: bool
) -> torch.Tensor:
    """Return `logits.T @ hidden`, added to `sums` of earlier tokens unless `sums` is None.

    Args:
        whole: True if `logits` contain all tokens. Otherwise, the result is in fp32 instead of
            bf16, so that later parts can be added.
    """
    if products.has_sums(logits.dtype, logits.shape[1], hidden.shape[1]):
        adds = sums is not None
        if sums is None:
            sums = simd.empty(logits.shape[1], hidden.shape[1])
        products.add_columns(logits, hidden, sums, adds)
        return sums
    more = logits.T @ hidden
    if sums is not None:
        return sums.add_(more)
    return more if whole else more.float()


def _of_weight(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    sums: GradientSums | None,
    factor: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return the gradient times the factor, without padding rows; None if it is added to `sums`."""
    gradient, sums = gradient[: len(weight)], unless_hooked(sums, weight)
    if sums is not None and gradient.dtype == torch.float32:
        sums.add(gradient, 1.0 if factor is None else float(factor))
        return None
    if factor is None:
        return gradient.to(weight.dtype)
    # not in place: a second backward pass (`retain_graph`) reads the gradient again
    output = torch.empty_like(gradient, dtype=weight.dtype)
    size = max(
        CHUNK // max(gradient.shape[1], 1), 1
    )  # all rows at once would need twice the memory
    for part, rows in zip(output.split(size), gradient.split(size), strict=True):
        part.copy_(rows * factor)
    return output


def _chunks(tokens: torch.Tensor, weight: torch.Tensor) -> list[slice]:
    size = chunk_size(len(weight))
    return [slice(begin, begin + size) for begin in range(0, len(tokens), size)]


def chunk_size(vocab_size: int) -> int:
    """Return the maximum number of tokens whose logits are in memory at the same time."""
    return max(LOGITS // vocab_size, ROWS)


def _logits(hidden: torch.Tensor, padded: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    logits = _product(hidden, padded.T)
    if bias is not None:
        for rows in logits.split(ROWS):  # in chunks, because adding fp32 to bf16 makes an fp32 copy
            rows[:, : len(bias)] += bias
    return logits


def _add_rows(sums: torch.Tensor, logits: torch.Tensor) -> None:
    """Add the sum of the rows to `sums`, in chunks, because torch converts its input to fp32."""
    for rows in logits.split(ROWS):
        sums += rows[:, : len(sums)].sum(0, dtype=torch.float32)


def _product(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `left @ right`; if torch computes it, pieces of about PRODUCT_ROWS rows are used."""
    if products.is_own(left, right):
        output = products.product(left, right)
        return output if out is None else out.copy_(output)
    if out is None:
        out = left.new_empty(len(left), right.shape[1])
    pieces = max(round(len(left) / PRODUCT_ROWS), 1)
    size = max(-(-len(left) // pieces), 1)
    for rows, product in zip(left.split(size), out.split(size), strict=True):
        torch.mm(rows, right, out=product)
    return out


def _replace_by_gradients(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    vocab_size: int,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the losses of the tokens, and overwrite the logits with the losses' gradients.

    Args:
        logits: contiguous, shape (tokens, vocab_size or more columns).
        factors: factor of each token's gradient, shape (tokens,); None means 1.
    """
    if simd.is_fit(logits):
        return simd.cross_entropy_(logits, tokens, vocab_size, factors)
    losses = simd.empty(len(tokens))
    for begin in range(0, len(tokens), ROWS):
        rows = slice(begin, begin + ROWS)
        part, targets = logits[rows].float(), tokens[rows].unsqueeze(1)
        part[:, vocab_size:] = -torch.inf
        part.sub_(part.amax(-1, keepdim=True))
        losses[rows] = -part.gather(1, targets).squeeze(1)
        total = part.exp_().sum(-1, keepdim=True)
        losses[rows] += total.squeeze(1).log()
        # the gradient: softmax - one_hot(targets)
        part.div_(total).scatter_add_(1, targets, part.new_full(targets.shape, -1))
        logits[rows] = part if factors is None else part.mul_(factors[rows].unsqueeze(1))
    return losses


def _with_aligned_rows(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight, extended to a multiple of ALIGNMENT rows.

    The added rows are the memory that follows the weight, usually the next parameter, so the caller
    must ignore the results for these rows. If no memory follows the weight, the result is a copy.
    """
    added = -len(weight) % ALIGNMENT
    room = weight.untyped_storage().nbytes() // weight.itemsize - weight.storage_offset()
    if weight.is_contiguous() and room >= weight.numel() + added * weight.shape[1]:
        return weight.as_strided((len(weight) + added, weight.shape[1]), weight.stride())
    return functional.pad(weight, (0, 0, 0, added))


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor,
    bias: torch.Tensor | None = None, sums: GradientSums | None = None,
    rows: TokenRows | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the sum of the cross entropies of `hidden @ weight.T + bias`, in fp32.

    Args:
        hidden: shape (tokens, hidden size).
        weight: shape (vocabulary, hidden size).
        tokens: target token ids, shape (tokens,).
        sums: memory to which the weight's gradient is added; None returns it to autograd.
        rows: trained rows of a frozen weight, which has their current values.
    """
    values, ids = (None, None) if rows is None else (rows.values, rows.ids)
    with torch.autocast("cpu", enabled=False):
        # some models keep the residual stream in fp32, whatever the dtype of their weights
        hidden = hidden.to(weight.dtype)
        if is_transformed():
            return _losses(tokens, "sum", ids, hidden, weight, bias, values)
        loss: torch.Tensor = _LinearCrossEntropy.apply(
            hidden, weight, tokens, bias, sums, values, ids
        )
    return loss


def token_losses(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor,
    bias: torch.Tensor | None = None, sums: GradientSums | None = None,
    rows: TokenRows | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the loss of each token as in `linear_cross_entropy`, shape (tokens,)."""
    values, ids = (None, None) if rows is None else (rows.values, rows.ids)
    with torch.autocast("cpu", enabled=False):
        hidden = hidden.to(weight.dtype)
        if is_transformed():
            return _losses(tokens, "none", ids, hidden, weight, bias, values)
        losses: torch.Tensor = _TokenLosses.apply(hidden, weight, tokens, bias, sums, values, ids)
    return losses
