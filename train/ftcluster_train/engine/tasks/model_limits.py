"""How long an input a model takes."""

from transformers import PretrainedConfig, PreTrainedTokenizerBase

# their positions start behind the padding token's number (transformers' create_position_ids)
POSITIONS_BEHIND_PADDING = frozenset(
    {"camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)  # fmt: skip


def longest_input(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The maximum of tokens by the configuration and the tokenizer; None, if there is none."""
    limits = []
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        behind = config.model_type in POSITIONS_BEHIND_PADDING
        limits.append(positions - (config.pad_token_id or 0) - 1 if behind else positions)
    if tokenizer.model_max_length < 1e9:  # a tokenizer that does not know says 1e30
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)
