"""Detection of targets that a model's vocabulary or generation settings keep it from writing."""

import unicodedata
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ftcluster_train.engine.data.token_samples import LENGTHS
from ftcluster_train.engine.tasks.generation_settings import (
    FORBIDDEN,
    RESET,
    forbidden_words,
    grams,
    outside_vocabulary,
    repeats,
    token_list,
    whole_number,
)
from ftcluster_train.engine.tasks.seq2seq.unknown_tokens import UnknownTokens

SHOWN = 6  # maximum number of characters in a notice
LINES = "\n\t"  # white space whose loss is reported; tokenizers may change other white space


class TargetReview:
    """Counts the targets of a set that a model cannot write.

    Args:
        settings: generation settings of the model.
        limit: maximum number of generated tokens.
        vocabulary: number of the model's token embeddings; 0 if unknown.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any], limit: int,
        vocabulary: int = 0,
    ) -> None:  # fmt: skip
        self._tokenizer, self._settings, self._limit = tokenizer, settings, limit
        self._unknown = UnknownTokens(tokenizer, "text_target")
        self._vocabulary = vocabulary
        self._bad_words = forbidden_words(settings)
        self._lengths = array(LENGTHS)
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def add(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        texts: Sequence[str],
        longest: int,
    ) -> None:
        """Count the targets that the model cannot write.

        Args:
            sources: tokens of each source.
            targets: tokens of each target.
            texts: targets as strings.
            longest: maximum number of tokens of a target. Targets of this length may be truncated,
                so their texts are not compared with their tokens.
        """
        self._unknown.add(targets, texts)
        decoded = self._tokenizer.batch_decode([*map(list, targets)], skip_special_tokens=True)
        for source, target, text, written in zip(sources, targets, texts, decoded, strict=True):
            self._lengths.append(len(target))
            unknown = self._unknown.token in target
            lost = _letters(text) - _letters(written) if len(target) < longest else Counter()
            self._lost.update(lost)
            self._counts["targets with unknown"] += bool(unknown or lost)
            self._count_settings(source, target)

    def _count_settings(self, source: Sequence[int], target: Sequence[int]) -> None:
        get = self._settings.get
        counts = {
            "min_length": len(target) < whole_number(get("min_length")),
            # min_new_tokens does not count the end-of-text token
            "min_new_tokens": len(target) <= whole_number(get("min_new_tokens")),
            # max_length also counts the decoder's first token; max_new_tokens overrides it
            "max_length": not get("max_new_tokens")
            and 0 < whole_number(get("max_length")) <= len(target),
            "max_new_tokens": 0 < whole_number(get("max_new_tokens")) < len(target),
            "limit": len(target) > self._limit,
            "no_repeat_ngram_size": repeats(target, whole_number(get("no_repeat_ngram_size"))),
            "encoder_no_repeat_ngram_size": bool(
                grams(target, size := whole_number(get("encoder_no_repeat_ngram_size")))
                & grams(source, size)
            ),
            "forced_bos_token_id": target[:1] != [get("forced_bos_token_id")],
            "suppress_tokens": bool({*token_list(get("suppress_tokens"))} & {*target}),
            "begin_suppress_tokens": bool(
                {*token_list(get("begin_suppress_tokens"))} & {*target[:1]}
            ),
            "bad_words_ids": any(word in grams(target, len(word)) for word in self._bad_words),
            # a text that reaches the length limit ends with this token
            "forced_eos_token_id": get("forced_eos_token_id") is not None
            and bool(target)
            and target[-1] not in token_list(get("forced_eos_token_id")),
            "eos_token_id": bool(target) and target[-1] not in token_list(get("eos_token_id")),
        }
        self._counts.update(name for name, count in counts.items() if count)

    def notices(self, split: str, model: str) -> list[str]:
        """Return a notice for each reason why the model cannot write some targets of a set."""
        if not self._lengths:
            return []
        total, get = len(self._lengths), self._settings.get
        shortest, longest = min(self._lengths), max(self._lengths)
        where = f"in generation_config.json of {model} (or of a copy of it)"
        notices = []
        if count := self._counts["targets with unknown"]:
            letters = ", ".join(f"{c!a} {n}" for c, n in self._lost.most_common(SHOWN))
            letters += ", ..." if len(self._lost) > SHOWN else ""
            examples = self._unknown.examples()
            notices.append(
                f"{split}: NOT KNOWN to the tokenizer: {count} of {total} targets have "
                f"{self._unknown.tokens} unknown tokens"
                + f" ({examples})" * bool(examples)
                + (f" or lost characters ({letters})" if letters else "")
                + ", which the model cannot write; use a model whose tokenizer has them, or "
                "write the targets without them"
            )
        if count := self._counts["limit"]:
            notices.append(
                f"{split}: {count} of {total} targets are longer than the limit of generated "
                f"texts, {self._limit} tokens (the longest has {longest}): max_new_tokens={longest}"
            )
        too_long = f"have fewer tokens (the shortest {shortest}), so texts will be too long"
        if max(whole_number(get("min_length")), whole_number(get("min_new_tokens"))) >= self._limit:
            too_long += f", each as long as the limit, {self._limit} tokens"
        too_short = f"have more tokens (the longest {longest}), where other programs stop"
        what = {
            "min_length": too_long,
            "min_new_tokens": too_long,
            "max_length": too_short,
            "max_new_tokens": too_short,
            "no_repeat_ngram_size": f"repeat that many tokens, which {FORBIDDEN}",
            "encoder_no_repeat_ngram_size": "repeat that many tokens of their source, which "
            f"{FORBIDDEN}",
            "forced_bos_token_id": "begin with another token, and every text will begin with it",
            "suppress_tokens": f"contain a token of this list, which {FORBIDDEN}",
            "begin_suppress_tokens": f"begin with a token of this list, which {FORBIDDEN}",
            "bad_words_ids": f"contain a token sequence of this list, which {FORBIDDEN}",
            "eos_token_id": "do not end with this token, so generated texts end only at the limit",
            "forced_eos_token_id": "end with another token, and every text of the longest length "
            "ends with it",
        }
        for name, problem in what.items():
            value = get(name)
            # report these only if they conflict with most targets, others if with any target
            most = name in ("forced_bos_token_id", "eos_token_id", "forced_eos_token_id")
            count = self._counts[name] if value not in (None, 0, []) or most else 0
            if value is None or not count or (most and 2 * count <= total):
                continue
            shown = f"{name} {value}" if isinstance(value, int) else name
            notices.append(
                f"{split}: {shown} {where}: {count} of {total} targets {problem}; "
                f"{_remedy(name, shortest, longest)}"
            )
        notices += [
            f"{split}: {name} {token} {where} is outside the model's vocabulary of "
            f"{self._vocabulary} tokens; {RESET}"
            for name, token in outside_vocabulary(self._settings, self._vocabulary)
        ]
        return notices


def _remedy(name: str, shortest: int, longest: int) -> str:
    if name in ("max_length", "max_new_tokens"):
        return f"{RESET} max_new_tokens={longest}"
    if name == "min_length":
        return f"set min_length={max(0, shortest - 1)}"
    if name == "no_repeat_ngram_size":
        return "set no_repeat_ngram_size=0"
    if name == "eos_token_id":
        return f"use the model's own tokenizer, or {RESET}"
    return RESET


def _letters(text: str) -> Counter[str]:
    plain = unicodedata.normalize("NFKC", text)
    return Counter(letter for letter in plain if letter in LINES or not letter.isspace())
