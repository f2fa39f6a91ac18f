"""The weights of a model in one row of memory: what is learned, and what is computed with."""

import hashlib

import torch

ALIGNED = 16  # elements: a parameter begins on a cache line, in fp32


class FlatWeights:
    """The parameters of a model as parts of flat tensors.

    The model computes with `computed`, in bf16 or fp32, without casting any weight; the optimizer
    learns `masters`, in fp32, which are the same tensor where the model computes in fp32.

    Args:
        model: with parameters in fp32; they become parts of `computed`.
        dtype: that the model is to compute with.

    Attributes:
        masters: of shape (elements,), in fp32; first the matrices, which weight decay is for, then
            what has one dimension: biases and norms.
        computed: of the same shape.
        matrices: elements of the first of both.
        places: where each parameter is.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        ordered = sorted(trained, key=lambda p: p.ndim <= 1)
        self.places: dict[torch.nn.Parameter, slice] = {}
        end = self.matrices = 0
        for parameter in ordered:
            self.places[parameter] = slice(end, end + parameter.numel())
            end += -(-parameter.numel() // ALIGNED) * ALIGNED
            if parameter.ndim > 1:
                self.matrices = end
        self.masters = torch.zeros(end)
        self._frozen = {p: p.data for p in model.parameters() if not p.requires_grad}
        for parameter, place in self.places.items():
            self.masters[place] = parameter.data.flatten()
        self.computed = self.masters if dtype == torch.float32 else self.masters.to(dtype)
        self.hold()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def hold(self) -> None:
        """Have the model's parameters be parts of `computed`."""
        for parameter, place in self.places.items():
            parameter.data = self.computed[place].view(parameter.shape)
        for parameter, data in self._frozen.items():
            parameter.data = data.to(self.computed.dtype) if data.is_floating_point() else data

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def refresh(self) -> None:
        """Have the model compute with what has been learned."""
        if self.computed is not self.masters:
            self.computed.copy_(self.masters)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def release(self) -> None:
        """Give the model its parameters as tensors of their own, in fp32 again."""
        for parameter, place in self.places.items():
            parameter.data = self.masters[place].view(parameter.shape).clone()
        for parameter, data in self._frozen.items():
            parameter.data = data

    def digest(self) -> str:
        """SHA-256 over the bytes of all that is learned."""
        return hashlib.sha256(self.masters.numpy()).hexdigest()
