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
        weights: kept in bf16, with fp32 ones that are learned, see `ftcluster_train.weights`.
        lengths: samples of like length in one batch, see `ftcluster_train.batches`.
    """

    dropout: bool = True
    attention: bool = True
    activations: bool = True
    vocabulary: bool = True
    weights: bool = True
    lengths: bool = True
