"""Estimate the memory of a rank. Pure functions only.

The measured peak was within 10 % of the estimate for BERT, DistilBERT, MiniLM and GPT-2 with 23 to
124 million parameters, 128 to 512 tokens per sample, AdamW and dropout.
"""

from dataclasses import dataclass

from ftcluster_common.protocol.kernel_limits import ATTENTION_TOKENS, LOGITS

# weights, gradients and AdamW's two states in fp32 (Rajbhandari et al. 2019, ZeRO, section 3.1)
BYTES_A_PARAMETER = 16
BF16_COPY = 2  # bytes of each weight in bf16, for the forward and backward pass
FP32 = 4  # bytes
TRAINED_BYTES = {"bf16": BYTES_A_PARAMETER + BF16_COPY, "fp32": BYTES_A_PARAMETER}
# adapter parameters per layer, feature and adapter rank: 4 * 2 + 3 * (1 + 5). A layer has 4 square
# matrices of its width, and 3 matrices with one dimension that is INNER times its width
ADAPTED_WIDTHS = 26
ADAPTED_ATTENTION = 8  # widths of the second attention of a decoder layer: 4 square matrices
# bytes per token, layer and feature of DoRA, which keeps the fp32 output of each adapted matrix
# before scaling it by its magnitude. A layer has up to 10 such outputs per feature
DORA = 10 * FP32
# bytes of a weight in NF4: 4 bits, one byte per 64 weights, and an fp32 value per 256 such bytes
NF4 = 0.5 + 1 / 64 + FP32 / (64 * 256)
INNER = 5  # the largest matrix of a model has at most INNER * features^2 weights
QUANTIZING = 20  # peak bytes per weight while bitsandbytes quantizes a layer
# bytes per parameter of `sync: local`: common weights, momentum, the update and its mean
LOCAL = 4 * FP32
# send buffers of a rank with a sharded optimizer: a few gradient buckets of 25 MB in fp32
BUFFERS = 7 * 25 * 2**20


@dataclass(frozen=True)
class Costs:
    """Memory costs of training other than weights, gradients and optimizer states.

    Attributes:
        runtime: baseline memory of a rank in bytes: the Python process with torch and transformers
            imported, and the temporary tensors of a layer.
        activations: bytes per token, layer and feature.
        attention: bytes per pair of tokens, layer and head.
        logits: bytes per token and vocabulary entry.
    """

    runtime: int
    activations: int
    attention: int
    logits: int


# torch 2.13 with glibc's malloc; with tcmalloc the peak is 7 to 20 % lower
OURS = {"bf16": Costs(620 * 10**6, 50, 5, 3), "fp32": Costs(620 * 10**6, 85, 8, 7)}
# with IPEX, transformers computes residuals and the loss. Measured with torch 2.8 in bf16; the
# values for fp32 are assumed
WITH_IPEX = {"bf16": Costs(730 * 10**6, 37, 5, 16), "fp32": Costs(730 * 10**6, 70, 8, 16)}
# activations of a decoder layer relative to an encoder layer with the same number of tokens: the
# decoder layer has one more attention and one more norm
OF_A_DECODER_LAYER = 1.5
SHORT_TEXT = 8  # tokens of a short text; an evaluation has at most one vector per short text
OF_A_LAYER = 0.5  # fraction of a layer's backward-pass memory that an evaluation needs at once
# bytes of a training row in each rank and while rows are tokenized: its length and its place in the
# order of samples. Measured by bench/large_data; the tokens stay on the disk
ROW_BYTES = 24
# maximum bytes of a text that an evaluation searches: its hash and a place in a hash table while
# texts are tokenized, and 21 bytes for its length and its place in the order of texts in each rank.
# Measured by tests/unit/engine/tasks/embed/test_prompted_texts.py
TEXT_BYTES = 28
USABLE = 0.9  # usable fraction of a host's memory; the system and its page cache need the rest


@dataclass(frozen=True)
class ModelSize:
    """The size of a model. Unknown values are 0.

    Attributes:
        layers: number of layers; in encoder-decoder models, number of encoder layers.
        features: width of a layer (hidden_size in transformers).
        heads: number of attention heads of a layer.
        positions: maximum number of tokens of an input.
        embeddings: number of parameters of the embedding matrix.
        decoder_layers: number of layers of the decoder of an encoder-decoder model.
        teacher: number of parameters of the teacher; 0 without a teacher.
    """

    parameters: int
    layers: int = 0
    features: int = 0
    heads: int = 0
    vocabulary: int = 0
    positions: int = 0
    embeddings: int = 0
    decoder_layers: int = 0
    teacher: int = 0


@dataclass(frozen=True)
class Need:
    """The memory that one rank needs, in bytes.

    Attributes:
        states: bytes of weights, gradients and optimizer states.
        activations: maximum bytes that the forward pass keeps for the backward pass.
        runtime: baseline memory in bytes: the Python process with its libraries imported.
        saving: extra bytes for loading or saving weights, when no activations are kept.
        evaluating: extra bytes for an evaluation, when no activations are kept.
    """

    states: int
    activations: int
    runtime: int
    saving: int = 0
    evaluating: int = 0

    @property
    def total(self) -> int:
        """The peak memory in bytes."""
        return self.states + max(self.activations, self.saving, self.evaluating) + self.runtime


def need(
    size: ModelSize,
    precision: str,
    samples: int,
    tokens: int,
    predicts_tokens: bool,
    ipex: bool = False,
    shards: int | None = None,
    local: bool = False,
    adapter_rank: int | None = None,
    checkpointing: bool = False,
    in_4bit: bool = False,
    merged: bool = False,
    evaluated: int = 0,
    targets: int = 0,
    logits_share: float = 1.0,
    dora: bool = False,
    trains_head: bool = False,
    vectors: int = 0,
) -> Need:
    """Return the memory that a rank needs for training steps, evaluations and saving.

    Args:
        shards: number of ranks that the optimizer is sharded over; None if it is not sharded.
        local: True if hosts take local steps.
        samples: number of samples that a rank computes at once.
        tokens: maximum number of tokens of a sample; shorter samples are padded to this length.
        predicts_tokens: True if the loss is computed over the vocabulary at each target token.
        adapter_rank: rank of low-rank adapters; None if all weights are trained.
        checkpointing: True if activations are recomputed in the backward pass. Then only the
            activations of one layer and the inputs of all layers are kept in memory.
        in_4bit: True if frozen weights other than embeddings are in NF4.
        merged: True if adapters are merged into the weights at the end of the training.
        evaluated: number of tokens that a rank evaluates at once; 0 without evaluation.
        targets: maximum number of target tokens of an encoder-decoder model; 0 for other models.
        logits_share: fraction of tokens for which logits are computed.
        dora: True if adapters have magnitudes (DoRA).
        trains_head: True if all weights of a classifier's head are trained along with adapters.
        vectors: number of fp32 vectors with an element for each token of the vocabulary that a step
            keeps; 0 unless a sparse encoder is trained.
    """
    costs = (WITH_IPEX if ipex else OURS)[precision]
    attended = tokens if ipex else min(tokens, ATTENTION_TOKENS)
    a_feature = costs.activations + (DORA if dora else 0)
    a_layer = size.features * a_feature + size.heads * attended * costs.attention
    kept = size.layers * a_layer
    if checkpointing:
        kept = min(kept, size.layers * size.features * FP32 + a_layer)
    activations = samples * tokens * kept
    if targets:  # each decoder layer attends to the targets and to the sources
        pairs = size.heads * (min(targets, attended) + attended) * costs.attention
        of_decoder = size.features * a_feature * OF_A_DECODER_LAYER + pairs
        layers = 1 if checkpointing else size.decoder_layers or size.layers
        activations += int(samples * targets * layers * of_decoder)
    if predicts_tokens:
        logits = int(samples * (targets or tokens) * logits_share) * size.vocabulary
        activations += costs.logits * (logits if ipex else min(logits, LOGITS))
    if vectors:  # plus two gradients of the embeddings, which are the first and the last layer
        activations += FP32 * (vectors * size.vocabulary + 2 * size.embeddings)
    evaluating = int(evaluated * a_layer * OF_A_LAYER) + FP32 * size.teacher
    each = BF16_COPY if precision == "bf16" else FP32
    if targets:  # generation keeps keys and values of both attentions
        evaluating += 4 * evaluated * (size.decoder_layers or size.layers) * size.features * each
    if predicts_tokens:
        at_once = min(int(evaluated * logits_share) * size.vocabulary, LOGITS)
        evaluating += at_once * each
    if vectors:
        evaluating += FP32 * size.vocabulary * (evaluated // SHORT_TEXT)
    if adapter_rank is not None:
        trained = adapter_parameters(size, adapter_rank, trains_head)
        frozen, saving = size.parameters * each, 0
        if in_4bit:
            layer = INNER * size.features**2
            # plus the dequantized weights of one layer
            quantized = int((size.parameters - size.embeddings) * NF4) + layer * each
            quantized += size.embeddings * each
            saving = max(layer * QUANTIZING, frozen - quantized if merged else 0)
            frozen = quantized
        states = frozen + trained * TRAINED_BYTES[precision]
        return Need(states, activations, costs.runtime, saving, evaluating)
    if shards is None:
        a_parameter = BYTES_A_PARAMETER + (BF16_COPY if precision == "bf16" else 0)
        a_parameter += LOCAL if local else 0
        whole = size.parameters * a_parameter
        return Need(whole, activations, costs.runtime, FP32 * size.parameters, evaluating)
    states = int(size.parameters * sharded_bytes(precision, shards))
    buffers = min(BUFFERS, 2 * FP32 * size.parameters)
    # each rank keeps all fp32 weights at the start. The first ranks of two hosts gather them again
    # while a checkpoint is saved
    return Need(states + buffers, activations, costs.runtime, FP32 * size.parameters, evaluating)


def adapter_parameters(size: ModelSize, rank: int, trains_head: bool = False) -> int:
    """Return an upper bound of the number of parameters that are trained with low-rank adapters.

    All linear layers have adapters. The bound assumes seven matrices in a layer, and an inner width
    of five times the layer's width. For rank 16 and Llama 3 with 8 billion parameters, the bound is
    55 million, and the actual number is 42 million. A classifier's head has a square matrix.
    """
    of_decoder = size.decoder_layers * (ADAPTED_WIDTHS + ADAPTED_ATTENTION)
    widths = size.layers * ADAPTED_WIDTHS + of_decoder
    return widths * size.features * rank + (size.features**2 if trains_head else 0)


def sharded_bytes(precision: str, shards: int) -> float:
    """Return how many bytes per parameter a rank needs with a sharded optimizer.

    A rank keeps all weights for the forward and backward pass, and its shard of the gradients and
    of AdamW's states. In bf16, it also keeps its shard of the fp32 weights. Send buffers are not
    included.
    """
    if precision == "bf16":
        return BF16_COPY + BYTES_A_PARAMETER / shards
    return FP32 + (BYTES_A_PARAMETER - FP32) / shards


def gigabytes(size: float) -> str:
    """Format a size in bytes.

    >>> gigabytes(2_100_000_000), gigabytes(137_438_953_472)
    ('2.1 GB', '137 GB')
    """
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:.0f} GB"
