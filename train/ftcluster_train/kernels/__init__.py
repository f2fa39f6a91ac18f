"""What makes a step faster than plain transformers makes it.

Each gain is a module, or a few lines of one, and can be left out for a measurement (bench/engine).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gains:
    """Which gains are taken.

    Attributes:
        dropout: masks from the parallel generator, see `dropout`.
        attention: plain products for short sequences, see `attention`.
        activations: each in one pass, see `activations`.
        vocabulary: the loss of a large vocabulary without its logits in fp32, see `vocabulary`.
        weights: bf16 copies of fp32 master weights, see `ftcluster_train.optim.flat_params`.
        lengths: samples of like length in one batch, see `ftcluster_train.data.sampler`.
    """

    dropout: bool = True
    attention: bool = True
    activations: bool = True
    vocabulary: bool = True
    weights: bool = True
    lengths: bool = True
