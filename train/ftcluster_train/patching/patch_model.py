"""Chooses the entries with which a model is trained, and reports the kernels that a loss used."""

import copy
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ftcluster_common.protocol.kernel_limits import ATTENTION_TOKENS
from ftcluster_kernels import simd
from ftcluster_kernels.lora import Adapter
from ftcluster_kernels.private_torch import function_of
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.position_bias import POSITION_BIAS
from ftcluster_train.patching.registry import FunctionPatch
from ftcluster_train.patching.shared_entries import (
    DROPOUT,
    FUSED_MLPS,
    FUSED_RMS_NORMS,
    FUSED_TANH_GELUS,
    GELU,
    ROTARY_POSITIONS,
    SILU,
    FusedForward,
    one_kernel_gelu,
    tanh_gelu,
)
from ftcluster_train.patching.skipped_rows import (
    SKIPPED_ROWS,
    reads_only_first_token,
    why_not_skipped,
)
from ftcluster_train.patching.unpadding import UNPADDED_EMBEDDINGS, UNPADDING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# makes transformers pass shared keys without repeating them, even with a mask (5.23)
SHARED_KEYS = "TRANSFORMERS_SDPA_FORCE_GQA"
CALLS_TORCH = ("sdpa", "ftcluster")  # attn_implementation values that use torch's function


@dataclass(frozen=True)
class Optimizations:
    """The optimizations of training; each can be disabled to measure its effect (bench/engine).

    Attributes:
        dropout: True to compute dropout masks with all threads, see `ftcluster_kernels.dropout`.
        attention: True to compute attention by matrix multiplications for short sequences, see
            `ftcluster_kernels.attention`.
        activations: True to compute each activation, RMSNorm and rotary position in one loop; see
            `activations`, `norms` and `rotary` in `ftcluster_kernels`.
        cross_entropy: True to compute cross entropy without keeping logits in fp32, see
            `ftcluster_kernels.cross_entropy`.
        bf16_weights: True to train with a bf16 copy of the fp32 master weights, see
            `ftcluster_train.engine.optim.flat_params`.
        group_by_length: True to make batches of samples of similar length, see
            `ftcluster_train.engine.data.sampler`.
    """

    dropout: bool = True
    attention: bool = True
    activations: bool = True
    cross_entropy: bool = True
    bf16_weights: bool = True
    group_by_length: bool = True


class FusedLossTask(Protocol):
    """A task whose loss may be computed from hidden states."""

    large_vocabulary: bool
    reads_padding: bool

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        """Return the weight of the layer that must return its input; None if logits are needed."""


class Log(Protocol):
    """A destination for notices."""

    def write(self, event: str, **fields: Any) -> None:
        """Write an event."""


def patch_model(
    model: "PreTrainedModel",
    task: FusedLossTask,
    attention_dropout: bool,
    optimizations: Optimizations,
    log: Log,
) -> KernelMode:
    """Return the context for forward and backward passes; log notices about this model.

    Args:
        model: model whose activations are replaced in place, and whose unread rows are skipped.
        attention_dropout: False to disable the attention dropout in the model's configuration.
    """

    @cache
    def notice(text: str) -> None:
        log.write("notice", message=text)

    skip_padding(model, task)
    if why := why_not_skipped(model):
        notice(why)
    kind = f"this {model.config.model_type} model"
    library = simd.library_path()
    if library is not None and not library.exists():
        notice(
            "training is slower than it could be, because ftcluster was built without a C "
            "compiler; install gcc on the machine that builds ftcluster, and run `ftcluster setup` "
            "again"
        )
    longest = ATTENTION_TOKENS if optimizations.attention else 0
    patches = [Attention(attention_dropout, longest).patch()]
    POSITION_BIAS.apply(model)
    os.environ.setdefault(SHARED_KEYS, "1")
    if optimizations.dropout:
        patches.append(DROPOUT)
    if optimizations.activations:
        patches += [GELU, SILU]
        for fusion in (FUSED_TANH_GELUS, FUSED_MLPS, FUSED_RMS_NORMS, ROTARY_POSITIONS):
            fusion.apply(model)
    head = None
    if optimizations.cross_entropy:
        head = task.use_fused_loss(model)
        if head is None and task.large_vocabulary:
            notice(
                f"{kind} computes logits with more than a matrix multiplication, so the fused loss "
                "cannot be used: the logits are kept in memory, which takes more memory"
            )
    return KernelMode(patches, head, say=notice)


def skip_padding(model: "PreTrainedModel", task: FusedLossTask) -> None:
    """Make an encoder skip rows that nothing reads, in training and in predictions."""
    SKIPPED_ROWS.apply(model)
    if reads_only_first_token(model) or not task.reads_padding:
        UNPADDING.apply(model)
        UNPADDED_EMBEDDINGS.apply(model)


def prediction_patches() -> list[FunctionPatch]:
    """Return the entries for passes without gradients."""
    return [Attention(with_dropout=False, without_gradients=True).patch(), GELU, SILU]


def kernels_in_use(loss: torch.Tensor, model: nn.Module) -> list[str]:
    """Return the names of the kernels that took part in a step, in alphabetical order.

    The names are read from the loss's graph, so kernels need not count calls. Call this before the
    backward pass.

    Args:
        model: model that the loss belongs to.
    """
    kernels = {kernel for kernel in map(_kernel_of, _nodes_of(loss)) if kernel}
    if any(_is_ours(module) for module in model.modules()):
        kernels.add("activations")
    return sorted(kernels)


def parts_without_kernel(model: nn.Module, used: Collection[str]) -> str:
    """Describe the model's classes that have no kernel, with the reasons; "" if there are none.

    Only classes that look like attention, norms, gated MLPs or rotary positions are checked. Call
    this after a training step.

    Args:
        used: result of `kernels_in_use`.
    """
    if not simd.is_available():  # another notice reports this
        return ""
    return "; ".join(dict.fromkeys(_own_code(model, used)))


def _own_code(model: nn.Module, used: Collection[str]) -> Iterator[str]:
    # transformers has no public name for the attribute (5.23)
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    why = "it calls attention with dtypes or shapes that the kernel does not support"
    if chosen not in (None, *CALLS_TORCH):
        why = f"attn_implementation={chosen} does not call the function that the kernel replaces"
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(getattr(forward, "fused", forward), FusedForward):
            continue
        name, parts = type(module).__name__, [*vars(module)["_modules"], *module._parameters]
        if "Attention" in name and "attention" not in used:
            if not any("Attention" in type(part).__name__ for part in module.children()):
                yield f"{name} uses torch's attention: {why}"
        elif name.endswith("RMSNorm") or (
            # torch's LayerNorm calls torch's function, whose guard decides whether a kernel runs
            "Norm" in name and "norm" not in used and type(module) is not nn.LayerNorm
        ):
            yield f"{name} uses its own code, because the kernel computes a different norm"
        elif "Rotary" in name and "rotary" not in used:
            yield f"{name} uses its own code, because its function, dtypes or shapes have no kernel"
        elif any(part in ("gate_proj", "gate_up_proj") for part in parts):
            yield f"{name} uses its own code, because its layers or its activation have no kernel"


def functions_of(loss: torch.Tensor) -> set[str]:
    """Return the names of all autograd functions in the graph of a loss."""
    return {node.name() for node in _nodes_of(loss)}


def _nodes_of(loss: torch.Tensor) -> set[Any]:
    """Return the nodes of a loss's graph."""
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return seen


def _kernel_of(node: Any) -> str:
    """Return the name of the kernel to which a node of a graph belongs, or "".

    The attribute `kernel` of each autograd function in `ftcluster_kernels` contains the name.
    """
    name: str = getattr(function_of(node), "kernel", "")
    return name


def _is_ours(module: nn.Module) -> bool:
    """Return True if a module's forward pass is one of our GELUs, even if torch computes it."""
    forward = vars(module).get("forward", type(module).forward)
    return getattr(forward, "function", forward) in (one_kernel_gelu, tanh_gelu)


def disable_dropout(model: "PreTrainedModel") -> None:
    """Disable dropout in a model and its adapters; the saved configuration is not changed."""
    config = copy.deepcopy(model.config)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    for module in model.modules():
        if module is not model and getattr(module, "config", None) is model.config:
            module.config = config  # Falcon's layers read it in each step
        # dropout probabilities: `p` of torch's layers, `attention_dropout`, `layerdrop` of OPT
        for name, value in vars(module).items():
            dropped = "drop" in name or (name == "p" and "Dropout" in type(module).__name__)
            if dropped and isinstance(value, float):
                setattr(module, name, 0.0)
        if isinstance(adapter := vars(module).get("adapter"), Adapter):
            module.adapter = replace(adapter, dropout=0.0)
