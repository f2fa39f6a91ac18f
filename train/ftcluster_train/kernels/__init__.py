"""Functions of torch that run faster here than in plain transformers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Optimizations:
    """Which optimizations a training uses; each can be left out to measure it (bench/engine).

    Attributes:
        dropout: masks from a generator that all threads compute together, see `dropout`.
        attention: matrix products for short sequences, see `attention`.
        activations: one loop for each, see `activations`; also RMSNorm and rotary positions, see
            `norm` and `rotary`.
        cross_entropy: no logits in fp32, see `linear_cross_entropy`.
        bf16_weights: a bf16 copy of fp32 master weights, see
            `ftcluster_train.engine.optim.flat_params`.
        group_by_length: batches of similar length, see `ftcluster_train.engine.data.sampler`.
    """

    dropout: bool = True
    attention: bool = True
    activations: bool = True
    cross_entropy: bool = True
    bf16_weights: bool = True
    group_by_length: bool = True
