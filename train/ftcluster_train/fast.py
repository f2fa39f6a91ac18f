"""The training engine's kernels for a script of one's own: Trainer, Accelerate, plain torch.

    from ftcluster_train import fast
    fast.enable(model)

Dropout, attention, activations, LayerNorm, the cross entropy of a large vocabulary and AdamW are
replaced in the whole process, for models that exist and for those to come; RMSNorm, gated MLPs and
rotary positions in those to come. `ftcluster run --fast` does it before the script starts. What
does not fit is left to torch, and said once. After `import ftcluster_train.fast` a model can also
have nothing but the attention:

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
MODELS = "transformers.modeling_utils"  # a script may set what transformers reads at its import


def enable(model: Any = None) -> None:
    """Train with our kernels from now on; another call has no effect.

    Args:
        model: one that was made before; it also leaves out what nothing reads and has its modules
            replaced, and what does not fit is said, see `patching.script_models`.
    """
    if replace_functions():
        after_import(MODELS, patch_transformers)
    if model is not None:
        patch_script_model(model)


after_import(MODELS, register_attention)
