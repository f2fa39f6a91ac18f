"""Check that users who load a saved model get the same model that was trained."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ftcluster_train.engine.adapters import adapted_layers, add_saved_adapters, trained_weights
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.models import call_model, dtype_keyword
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode

SAMPLES = 4  # number of samples on which the outputs of both models are compared
SHOWN = 3  # maximum number of weights that an error message lists
# Maximum allowed relative difference of outputs. In fp32, a different order of additions changes
# outputs by 1e-6. In bf16, values have 8 significant bits and every layer rounds, so the outputs of
# merged adapters differ by up to 2 %.
ALLOWED = {torch.float32: 1e-3, torch.bfloat16: 0.05}


class NotAsTrainedError(TrainError):
    """Error for a saved model that differs from the trained model."""


class SavedCheck:
    """Loads saved models with plain transformers and compares them with the model in memory.

    All weights must be equal. The outputs for some samples must be nearly equal, see ALLOWED.
    Weights are read from a memory-mapped file, whose pages the kernel can reclaim.

    Args:
        samples: data set; the outputs for its first SAMPLES samples are compared.
        base: folder of the adapters' base model. "" if plain transformers cannot load the same base
            model, because it is in NF4 or has random weights; then only weights are compared.
    """

    def __init__(self, task: Task, samples: Samples, base: str, log: ProgressLog) -> None:
        self._task, self._base, self._log = task, base, log
        few = [samples[i] for i in range(min(SAMPLES, len(samples)))]
        self._inputs = task.inputs_to_compare(few)

    def outputs(self, model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
        """Return the outputs of a model in memory for the samples, computed with our kernels."""
        with KernelMode(context=context_of(model)):
            outputs: Mapping[str, torch.Tensor] = self._compute(model)
        return outputs

    def check(
        self, folder: Path, model: PreTrainedModel, outputs: Mapping[str, torch.Tensor]
    ) -> None:
        """Compare a saved model with the model in memory, and log the time that this takes.

        Args:
            folder: folder of the saved model.
            model: model in memory that was saved.
            outputs: outputs of `model`, or of the model before its adapters were merged.

        Raises:
            NotAsTrainedError: the saved model cannot be loaded or differs from `model`; the message
                lists the problems.
        """
        began = time.perf_counter()
        adapters = bool(adapted_layers(model))
        try:
            weights, problems, loaded = self._loaded(folder, model, adapters)
        except Exception as error:  # from_pretrained may raise any exception of its many readers
            raise _refusal(folder, [f"it cannot be loaded: {first_line(error)}"]) from error
        trained = trained_weights(model)
        problems += _named("it lacks weights", trained.keys() - weights.keys())
        problems += _named("it has additional weights", weights.keys() - trained.keys())
        common = trained.keys() & weights.keys()
        differing = [name for name in common if not _same(trained[name], weights[name])]
        problems += _named("different values in", differing)
        difference = None
        if loaded is not None and not problems:
            difference = _difference(self._compute(loaded), outputs)
            dtype = loaded.get_input_embeddings().weight.dtype
            allowed = ALLOWED.get(dtype, ALLOWED[torch.bfloat16])
            if not difference <= allowed:
                what = f"its outputs differ by {difference:.2%}"
                problems.append(f"{what}, although all weights are equal (allowed: {allowed:.1%})")
        if problems:
            raise _refusal(folder, problems)
        self._log.write(
            "reloaded",
            folder=str(folder),
            tensors=len(common),
            mapped_bytes=sum(weights[name].nbytes for name in common),
            difference=difference,
            seconds=round(time.perf_counter() - began, 3),
        )

    def _loaded(
        self, folder: Path, model: PreTrainedModel, adapters: bool
    ) -> tuple[Mapping[str, torch.Tensor], list[str], PreTrainedModel | None]:
        """Load a saved model.

        Returns:
            The saved weights, a list of problems with them, and the loaded model. The model is None
            if its outputs cannot be compared.
        """
        dtype = dtype_keyword(transformers.__version__)
        if adapters:
            base = None
            if self._base:
                trained_in = {dtype: model.get_input_embeddings().weight.dtype}
                base = self._task.model_class.from_pretrained(
                    self._base,
                    trust_remote_code=False,
                    **self._task.recipe.config_overrides,
                    **trained_in,
                ).requires_grad_(False)
            weights, problems = add_saved_adapters(base if base is not None else model, folder)
            return weights, [*problems, *self._task.saved_problems(folder)], base
        loaded, info = self._task.model_class.from_pretrained(
            folder, output_loading_info=True, trust_remote_code=False, **{dtype: "auto"}
        )
        problems = [
            problem
            for what, names in info.items()
            for problem in _named(f"{what.replace('_', ' ')}:", map(str, names))
        ]
        if type(loaded).__name__ != type(model).__name__:
            problems.append(f"it is a {type(loaded).__name__}, not a {type(model).__name__}")
        problems += self._task.saved_problems(folder)
        return loaded.state_dict(), problems, loaded

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _compute(self, model: PreTrainedModel) -> Mapping[str, torch.Tensor]:
        training = model.training
        model.eval()
        low = model.get_input_embeddings().weight.dtype != torch.float32
        # some models, such as Reformer, use random numbers even in evaluation
        with torch.random.fork_rng(()), torch.autocast("cpu", torch.bfloat16, enabled=low):
            torch.manual_seed(0)
            outputs: dict[str, Any] = call_model(model, self._inputs)
        model.train(training)
        return {
            name: value.float()
            for name, value in outputs.items()
            if isinstance(value, torch.Tensor)
        }


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return True if all bits of two tensors are equal; equal NaNs count as equal."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    bits = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (left, right)]
    same: bool = torch.equal(bits[0], bits[1])
    return same


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the largest relative difference of outputs; NaN at the same index counts as equal."""
    differences = []
    for name, tensor in expected.items():
        other = found.get(name)
        if other is None or other.shape != tensor.shape:
            return float("inf")
        unlike = (tensor - other).masked_fill(tensor.isnan() & other.isnan(), 0)
        size = tensor.nan_to_num().norm()
        differences.append(float(unlike.norm() / size) if size else float(unlike.norm()))
    return max(differences)


def _named(what: str, names: Any) -> list[str]:
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return [f"{what} {', '.join(listed[:SHOWN])}{more}"] if listed else []


def _refusal(folder: Path, problems: Sequence[str]) -> NotAsTrainedError:
    return NotAsTrainedError(
        f"the model saved in {folder}, loaded again with transformers "
        f"{transformers.__version__}, differs from the trained model: {'; '.join(problems)}",
        "do not use the saved model, it is kept for inspection only; the trained weights are in "
        "state.safetensors in the newest folder of checkpoints or snapshots next to it",
    )
