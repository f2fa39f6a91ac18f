"""Texts that are computed together, because they are of about the same length."""

from collections.abc import Sequence

# Another pass of the model costs the time of so many tokens, roughly: each operation is started
# again, and each weight read and its gradient added again. MiniLM on SQuAD, 32 pairs, CPU time of a
# step with one thread and AVX512-BF16, against 1,024 here: 128 is 1.11 times as fast, 256 1.09, 512
# 1.03, 2,048 0.84. Where products are faster (AMX, many threads) a pass costs more tokens.
PASS_TOKENS = 256


def length_groups(lengths: Sequence[int]) -> list[list[int]]:
    """The indices of all texts in groups, the longest texts first.

    A group is divided where that saves the most padding, as long as it saves PASS_TOKENS.

    >>> length_groups([500, 20, 480, 20, 20])
    [[0, 2], [1, 3, 4]]
    >>> length_groups([20, 40])
    [[1, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return _divided(order, lengths)


def _divided(order: list[int], lengths: Sequence[int]) -> list[list[int]]:
    longest, count = lengths[order[0]], len(order)
    saved = [(count - i) * (longest - lengths[order[i]]) for i in range(count)]
    most = max(range(count), key=saved.__getitem__)
    if saved[most] < PASS_TOKENS:
        return [order]
    return _divided(order[:most], lengths) + _divided(order[most:], lengths)
