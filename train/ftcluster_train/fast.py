"""Enables the training engine's kernels in users' scripts: Trainer, Accelerate or plain torch.

    from ftcluster_train import fast
    fast.enable(model)

`enable` replaces dropout, attention, activations, LayerNorm, AdamW and the cross entropy of a large
vocabulary in the whole process, for existing and new models. It replaces RMSNorm, MLPs and
rotary positions only in models that are created later, and in the model that is passed to it.
`ftcluster run --fast` calls `enable` before the script starts. Unsupported parts keep torch's
functions; each kind is reported once. After `import ftcluster_train.fast`, a model can also use the
attention alone:

    AutoModel.from_pretrained(..., attn_implementation="ftcluster")
"""

from typing import Any

from ftcluster_train.patching.patch_model import kernels_in_use
from ftcluster_train.patching.script_functions import replace_functions
from ftcluster_train.patching.script_models import (
    patch_script_model,
    patch_transformers,
    register_attention,
)
from ftcluster_train.rank.startup_hooks import after_import

__all__ = ["enable", "kernels_in_use"]
MODELS = "transformers.modeling_utils"  # imported late: a script may set its variables first


def enable(model: Any = None) -> None:
    """Use our kernels for training from now on; further calls replace no functions again.

    Args:
        model: existing model, or None. The model's modules are replaced, and computations whose
            results are not used are skipped. Unsupported modules are reported, see
            `patching.script_models`.
    """
    if replace_functions():
        after_import(MODELS, patch_transformers)
    if model is not None:
        patch_script_model(model)


after_import(MODELS, register_attention)
