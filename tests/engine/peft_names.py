"""Trained parameters of a model of ours and of peft's, by the names in peft's files."""

from torch import nn


def by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters of a model with our adapters."""
    return {
        f"base_model.model.{name}" + ".weight" * name.endswith(("lora_A", "lora_B")): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def by_name_of_peft(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters of a PeftModel."""
    return {
        name.replace(".default", "")
        .replace(".modules_to_save", "")
        .replace("magnitude_vector.weight", "magnitude_vector"): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
