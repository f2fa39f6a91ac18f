"""Up to which sizes kernels keep values; the plan estimates memory by them."""

ATTENTION_TOKENS = 1024  # of a sequence whose attention is kept as a matrix; longer ones are not
EVAL_TOKENS = 8192  # that a rank evaluates at once; without gradients it keeps only one layer
LOGITS = 1 << 27  # elements at once, equal to LOGITS of ftcluster_kernels.cross_entropy
