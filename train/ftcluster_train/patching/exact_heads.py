"""Computes the last layer in fp32 for models that output a number, a rank or a choice.

bf16 has a precision of three decimal digits. Rounded to bf16, scores of different texts may be
equal, and a value near 1,500 becomes a multiple of 8. The last layer has few outputs, so fp32 costs
almost nothing; the layers before it stay in bf16. Training keeps the weights of the last layer in
fp32 (`engine.optim.flat_params`), and `fp32_residuals.Linear` computes with these weights.
"""

import torch
from torch import nn

from ftcluster_kernels.products import torch_linear


def exact_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of a model's last layer, which must have `num_labels` outputs.

    The last layer of a language model is excluded: it has as many outputs as the vocabulary has
    tokens. A model without a head has no layer outside its `base_model`.
    """
    base = getattr(model, "base_model", None)
    if not isinstance(base, nn.Module):  # no model of transformers
        return set()
    outputs = getattr(model.config, "num_labels", 0)
    inside, vocabulary = set(base.modules()), model.get_output_embeddings()
    return {
        parameter
        for module in model.modules()
        if isinstance(module, nn.Linear) and module.out_features == outputs
        if module not in inside and module is not vocabulary
        for parameter in module.parameters()
    }


def exact_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the result of torch's linear function in fp32, even under autocast."""
    with torch.autocast("cpu", enabled=False):
        output: torch.Tensor = torch_linear(
            input.float(), weight.float(), None if bias is None else bias.float()
        )
    return output
