"""The training engine's kernels for users' own scripts: Trainer, Accelerate, plain torch.

    from ftcluster_train import fast
    fast.enable(model)

Dropout, attention, activations, LayerNorm, the cross entropy of a large vocabulary and AdamW are
replaced in the whole process, for existing and for later models. RMSNorm, gated MLPs and rotary
positions are replaced in later models. `ftcluster run --fast` does this before the script starts.
Unsupported parts keep torch's functions, which is reported once. After `import
ftcluster_train.fast` a model can also use the attention alone:

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
MODELS = "transformers.modeling_utils"  # imported late: a script may first set its variables


def enable(model: Any = None) -> None:
    """Use our kernels for training from now on; functions are replaced only once.

    Args:
        model: existing model. Its modules are replaced, and computations whose results nothing
            reads are skipped. Unsupported modules are reported, see `patching.script_models`.
    """
    if replace_functions():
        after_import(MODELS, patch_transformers)
    if model is not None:
        patch_script_model(model)


after_import(MODELS, register_attention)
