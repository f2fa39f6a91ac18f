"""Limits on the data that kernels keep in memory; the plan estimates memory from these limits."""

ATTENTION_TOKENS = 1024  # maximum length of a sequence whose attention matrix a kernel keeps
# Maximum number of tokens that a rank evaluates at once. Without gradients, memory holds only one
# layer. With twice as many tokens, evaluations are slower, because activations leave the caches.
EVAL_TOKENS = 4096
LOGITS = 1 << 27  # maximum logits at once, equal to LOGITS of ftcluster_kernels.cross_entropy
