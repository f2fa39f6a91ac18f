"""Up to which sizes kernels keep values; the plan estimates memory by them."""

ATTENTION_TOKENS = 1024  # of a sequence whose attention is kept as a matrix; longer ones are not
EVAL_TOKENS = 8192  # that a rank evaluates at once; without gradients it keeps only one layer
LOGITS = 1 << 27  # at once: 268 MB in bf16, of 2,670 tokens with GPT-2's vocabulary
