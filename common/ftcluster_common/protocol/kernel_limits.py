"""Limits on the data that kernels keep in memory; the plan estimates memory from these limits."""

ATTENTION_TOKENS = 1024  # maximum length of a sequence whose attention matrix a kernel keeps
# maximum tokens that a rank evaluates at once; without gradients, memory holds only one layer
EVAL_TOKENS = 8192
LOGITS = 1 << 27  # maximum logits at once, equal to LOGITS of ftcluster_kernels.cross_entropy
