"""Records which rows of a padded batch the layers must compute."""

import torch
from torch import nn

from ftcluster_kernels.linear import MANY_ROWS


class Rows:
    """The rows of the current batch that layers compute, as indices into the flat batch.

    Attributes:
        model: the model that was called.
        shape: (samples, tokens) of the inputs.
        padded_shape: the shape before `unpad` was called; None if it was not called.
        shown: True if the model returns the hidden states or attentions of each layer.
        tokens: indices of the rows that are not padding.
        lengths: the number of rows that are not padding in each sample.
        real: the indices in `tokens`; None if skipping padding would save too little time.
        usual: rows that most layers compute; None means all rows.
        last: rows that layers after the last attention compute; None means all rows.
        read: rows that the current layer computes; None means all rows.
        embeds: True while the embeddings compute only the rows of `tokens`.
    """

    def __init__(self, model: nn.Module, mask: torch.Tensor, classifies: bool, shown: bool) -> None:
        self.model, self.shape, self.shown = model, mask.shape, shown
        self.padded_shape: torch.Size | None = None
        self.tokens, self.lengths = mask.flatten().nonzero().flatten(), (mask != 0).sum(1).tolist()
        self.real: torch.Tensor | None = self.tokens
        # a single sample has no padding, and its shape may equal DeBERTa's table of positions
        if len(mask) == 1 or len(self.real) > MANY_ROWS * mask.numel():
            self.real = None
        self.usual = self.read = self.real if classifies else None
        starts = torch.arange(len(mask), dtype=torch.int64, device="cpu") * mask.shape[1]
        self.last = starts if classifies else None
        self.embeds = False
        self._embedded: tuple[torch.Tensor, torch.Tensor] | None = None

    def embed_tokens(self) -> None:
        """Make the embeddings compute only the rows of `tokens`."""
        self.embeds = True

    def keep_embedded(self, padded: torch.Tensor, embedded: torch.Tensor) -> None:
        """Keep the embeddings of the rows of `tokens`, from which `padded` was made."""
        self.embeds, self._embedded = False, (padded, embedded)

    def take_embedded(self, padded: torch.Tensor) -> torch.Tensor | None:
        """Return the embeddings from which `padded` was made; None for any other tensor."""
        kept, self._embedded = self._embedded, None
        return kept[1] if kept is not None and kept[0] is padded else None

    def unpad(self) -> None:
        """Keep only the rows of `tokens`, as one sample of this length."""
        self.padded_shape, self.shape = self.shape, torch.Size((1, len(self.tokens)))
        self.real = self.usual = self.read = None
        if self.last is not None:
            lengths = [0, *self.lengths[:-1]]
            self.last = torch.tensor(lengths, dtype=torch.int64, device="cpu").cumsum(0)

    def read_usual(self) -> None:
        """Make the next layers compute the rows that most layers need."""
        self.read = self.usual

    def read_real(self) -> None:
        """Make the next layer compute all rows except padding."""
        self.read = self.real

    def read_last(self) -> None:
        """Make the next layer compute only the rows that are needed after the last attention."""
        self.read = self.last
