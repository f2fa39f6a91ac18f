"""Detection of answers that a decoder's inherited generation settings keep it from generating."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.tasks.generation_settings import (
    FORBIDDEN,
    RESET,
    forbidden_words,
    grams,
    kept_settings,
    outside_vocabulary,
    padding_of,
    plain_settings,
    read_generation_settings,
    read_vocabulary_size,
    repeats,
    token_list,
    whole_number,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TargetAnswer:
    """Tokens that a decoder should generate after a prompt.

    Attributes:
        tokens: prompt and answer.
        start: index of the answer's first token.
        ends: True if the last token is the token that ends answers.
        whole: False if `tokens` begins in the middle of a text, so the text's length is unknown.
    """

    tokens: Sequence[int]
    start: int = 0
    ends: bool = False
    whole: bool = True

    @property
    def length(self) -> int:
        """The number of tokens of the answer, including the token that ends it."""
        return len(self.tokens) - self.start


def answers_in(
    tokens: Sequence[int], targets: Sequence[int], end: int | None
) -> Iterator[TargetAnswer]:
    """Yield the answers of a conversation, each up to its last token `end`, if it contains one.

    Templates may write more after that token, such as a line break, which is never generated.

    Args:
        targets: indices of the target tokens, ascending.
    """
    begin = 0
    for place, number in enumerate(targets):
        if place + 1 < len(targets) and targets[place + 1] == number + 1:
            continue
        start, stop = targets[begin], number + 1
        begin = place + 1
        last = next((at for at in range(stop - 1, start - 1, -1) if tokens[at] == end), None)
        yield TargetAnswer(tokens[: stop if last is None else last + 1], start, last is not None)


def texts_in(tokens: Sequence[int], end: int | None, begins: bool) -> Iterator[TargetAnswer]:
    """Yield the texts of a block of packed texts, as answers without a prompt.

    Args:
        end: token that ends a text.
        begins: True if the block starts at the beginning of a text.
    """
    start = 0
    for number, token in enumerate(tokens, start=1):
        if token == end or number == len(tokens):
            yield TargetAnswer(tokens[start:number], 0, token == end, begins or start > 0)
            start = number


class AnswerReview:
    """Counts the answers of a set that the model cannot generate.

    Args:
        settings: generation settings of the pretrained model.
        noun: word for the answers in messages: answers or texts.
    """

    def __init__(self, settings: Mapping[str, Any], noun: str = "answers") -> None:
        self._settings, self._noun = settings, noun
        self._counts: Counter[str] = Counter()
        self._lengths: list[int] = []  # lengths: shortest and longest answer, longest with prompt
        self._total = 0
        self._checks = {name: _CHECKS[name] for name in _CHECKS if settings.get(name)}
        if "max_new_tokens" in self._checks:  # it overrides max_length, as in transformers
            self._checks.pop("max_length", None)
        if "min_new_tokens" in self._checks:
            self._checks.pop("min_length", None)

    def add(self, answers: Iterator[TargetAnswer]) -> None:
        """Count the answers that the model cannot generate."""
        if not self._checks:
            return
        for answer in answers:
            self._total += 1
            length, whole = answer.length, len(answer.tokens)
            least, most, longest = self._lengths or (length, 0, 0)
            self._lengths = [min(least, length), max(most, length), max(longest, whole)]
            self._counts.update(
                name for name, check in self._checks.items() if check(answer, self._settings)
            )

    def notices(self, split: str, model: str, alone: bool) -> list[str]:
        """Return a notice for each setting that keeps the model from generating answers.

        Args:
            alone: True if only adapters are saved, so the base model keeps its settings.
        """
        notices = []
        for name in self._checks:
            count, value = self._counts[name], self._settings[name]
            # forced_eos_token_id affects only texts of the maximum length
            if not count or (name == "forced_eos_token_id" and 2 * count <= self._total):
                continue
            shown = f"{name} {value}" if isinstance(value, int) else name
            notices.append(
                f"{split}: {shown} {where(model)}: {count} of {self._total} {self._noun} "
                f"{self._problem(name)}; {self._remedy(name, alone)}"
            )
        return notices

    def _problem(self, name: str) -> str:
        shortest, longest, with_prompt = self._lengths
        return {
            "min_length": f"end before that many tokens (the shortest has {shortest}), so "
            "generated ones will be too long",
            "min_new_tokens": f"have fewer tokens (the shortest {shortest}), so generated ones "
            "will be too long",
            "max_length": f"have more tokens together with their prompts (the longest "
            f"{with_prompt}), so generated ones will be cut off",
            "max_new_tokens": f"have more tokens (the longest {longest}), so generated ones will "
            "be cut off",
            "no_repeat_ngram_size": "repeat that many tokens of the prompt or of themselves, "
            f"which {FORBIDDEN}",
            "encoder_no_repeat_ngram_size": "repeat that many tokens of the prompt, which "
            f"{FORBIDDEN}",
            "suppress_tokens": f"contain a token of this list, which {FORBIDDEN}",
            "begin_suppress_tokens": f"begin with a token of this list, which {FORBIDDEN}",
            "bad_words_ids": f"contain a token sequence of this list, which {FORBIDDEN}",
            "eos_token_id": "contain an end-of-text token of this setting before their end, where "
            "generation would stop",
            "forced_eos_token_id": "end with another token, and every text of the longest length "
            "ends with it",
        }[name]

    def _remedy(self, name: str, alone: bool) -> str:
        if not alone:
            return RESET
        better = {
            "min_length": "min_length=0",
            "min_new_tokens": "min_new_tokens=0",
            "max_length": f"max_new_tokens={self._lengths[1]}",
            "max_new_tokens": f"max_new_tokens={self._lengths[1]}",
            "no_repeat_ngram_size": "no_repeat_ngram_size=0",
            "encoder_no_repeat_ngram_size": "encoder_no_repeat_ngram_size=0",
        }.get(name, "other settings")
        return (
            f"adapters keep the settings of their base model: pass {better} to generate, or train "
            "with merge_adapters=true reset_generation=true"
        )


def where(model: str) -> str:
    """Return the location of the inherited generation settings, for messages."""
    return f"in generation_config.json of {model} (or of a copy of it)"


def end_notices(
    split: str, model: str, settings: Mapping[str, Any], end: int | None, after: Sequence[int],
    tokenizer: PreTrainedTokenizerBase, alone: bool,
) -> list[str]:  # fmt: skip
    """Return a notice if inherited settings do not stop generation at the end of an answer.

    Args:
        end: id of the special token that ends answers; None if there is no such token.
        after: ids of the tokens that the chat template writes after an answer.
        alone: True if only adapters are saved, so the base model keeps its settings.
    """
    ends = token_list(settings.get("eos_token_id"))
    if {*ends} & {end, *after} or settings.get("stop_strings"):
        return []
    if end is None:
        return [
            f"{split}: the chat template writes no special token after an answer, so generated "
            "answers end only at the limit of their length; use a chat template that ends answers "
            "with a special token: tokenizer=DIR"
        ]
    shown = " and ".join(map(str, ends)) or "missing"
    token, both = tokenizer.convert_ids_to_tokens(end), [*ends, end]
    repaired = f"generation_config.json of the trained model gets eos_token_id {both}"
    if alone:
        repaired = (
            f"ftcluster generates with eos_token_id={both}, but transformers reads the settings of "
            f"the base model: pass eos_token_id={both} to generate"
        )
    return [
        f"{split}: answers end with {token} ({end}), but eos_token_id {where(model)} is {shown}, "
        f"so generation would not stop; {repaired}"
    ]


def padding_notices(
    split: str, model: str, settings: Mapping[str, Any], size: int,
    tokenizer: PreTrainedTokenizerBase, alone: bool,
) -> list[str]:  # fmt: skip
    """Return a notice for each special token in the settings that the model does not have.

    Args:
        size: number of token embeddings; 0 if unknown.
        alone: True if only adapters are saved, so the base model keeps its settings.
    """
    notices = []
    for name, token in outside_vocabulary(settings, size):
        new, remedy = padding_of(tokenizer, size), "" if alone else f"; {RESET}"
        if name == "pad_token_id":
            repaired = f"the trained model gets pad_token_id {new}"
            remedy = f", so batches cannot be generated; {repaired}"
            if alone:
                remedy = f", so batches cannot be generated; pass pad_token_id={new} to generate"
        notices.append(
            f"{split}: {name} {token} {where(model)} is outside the model's vocabulary of {size} "
            f"tokens{remedy}"
        )
    return notices


class InheritedSettings:
    """The generation settings that a decoder inherits from the model that it is trained from.

    Args:
        recipe: recipe of the training run.
    """

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        self._recipe, self._tokenizer = recipe, tokenizer
        self._settings: dict[str, Any] | None = None  # None without a pretrained model
        self._vocabulary = 0  # number of token embeddings; 0 if unknown

    @property
    def _saves_adapters_alone(self) -> bool:
        """True if the base model, and therefore its settings, stay unchanged."""
        adapters = self._recipe.adapters
        return adapters is not None and not adapters.merge_adapters

    @property
    def _is_reset(self) -> bool:
        return bool(getattr(self._recipe.options, "reset_generation", False))

    def read(self, folder: Path) -> None:
        """Read the settings in a model's folder, unless the model is trained from scratch.

        Raises:
            GivenFileError: a file is damaged.
        """
        if self._recipe.from_scratch:
            return
        self._settings, self._vocabulary = (
            read_generation_settings(folder), read_vocabulary_size(folder)
        )  # fmt: skip
        if self._is_reset:
            plain = {
                "eos_token_id": self._tokenizer.eos_token_id,
                "pad_token_id": self._tokenizer.pad_token_id,
            }
            self._settings = kept_settings(self._settings) | plain

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that notices depend on, as JSON data."""
        return {"generation": self._settings, "vocabulary": self._vocabulary}

    def review(self, noun: str = "answers") -> AnswerReview:
        """Return a review of answers with these settings."""
        return AnswerReview(self._settings or {}, noun)

    def notices(
        self, split: str, review: AnswerReview, end: int | None, after: Sequence[int], trains: bool
    ) -> list[str]:
        """Return notices about settings that conflict with the answers of a set.

        Args:
            end: id of the token that ends answers; None if there is no such token.
            after: ids of the tokens that the chat template writes after an answer.
            trains: True for a training run, which repairs the settings; False for an evaluation.
        """
        if self._settings is None:
            return []
        model, alone = self._recipe.model, self._saves_adapters_alone and trains
        notices = review.notices(split, model, alone)
        if trains:
            common = (self._tokenizer, alone)
            notices += end_notices(split, model, self._settings, end, after, *common)
            notices += padding_notices(split, model, self._settings, self._vocabulary, *common)
        return notices

    def reset(self, model: "PreTrainedModel") -> None:
        """Replace the model's settings if the recipe sets reset_generation."""
        if self._is_reset:
            model.generation_config = plain_settings(model.generation_config, self._tokenizer)


def _has_gram_of(answer: TargetAnswer, forbidden: set[tuple[int, ...]], size: int) -> bool:
    """Return True if the answer contains the end of a forbidden token sequence."""
    tokens, first = answer.tokens, max(answer.start + 1, size)
    return any(
        tuple(tokens[stop - size : stop]) in forbidden for stop in range(first, len(tokens) + 1)
    )


def _repeats_prompt(answer: TargetAnswer, settings: Mapping[str, Any]) -> bool:
    size = whole_number(settings["encoder_no_repeat_ngram_size"])
    return size > 0 and _has_gram_of(answer, grams(answer.tokens[: answer.start], size), size)


def _has_forbidden_word(answer: TargetAnswer, settings: Mapping[str, Any]) -> bool:
    return any(_has_gram_of(answer, {word}, len(word)) for word in forbidden_words(settings))


_Check = Callable[[TargetAnswer, Mapping[str, Any]], bool]
# for each setting, the condition under which transformers cannot generate an answer
_CHECKS: dict[str, _Check] = {
    # min_length counts the prompt too, but not the end token
    "min_length": lambda a, s: (
        a.ends and a.whole and len(a.tokens) <= whole_number(s["min_length"])
    ),
    "min_new_tokens": lambda a, s: (
        a.ends and a.whole and a.length <= whole_number(s["min_new_tokens"])
    ),
    "max_length": lambda a, s: 0 < whole_number(s["max_length"]) < len(a.tokens),
    "max_new_tokens": lambda a, s: 0 < whole_number(s["max_new_tokens"]) < a.length,
    "no_repeat_ngram_size": lambda a, s: repeats(
        a.tokens, whole_number(s["no_repeat_ngram_size"]), a.start
    ),
    "encoder_no_repeat_ngram_size": _repeats_prompt,
    "suppress_tokens": lambda a, s: (
        not {*token_list(s["suppress_tokens"])}.isdisjoint(a.tokens[a.start :])
    ),
    "begin_suppress_tokens": lambda a, s: (
        a.start > 0 and a.tokens[a.start] in token_list(s["begin_suppress_tokens"])
    ),
    "bad_words_ids": _has_forbidden_word,
    "eos_token_id": lambda a, s: (
        not {*token_list(s["eos_token_id"])}.isdisjoint(a.tokens[a.start : -1])
    ),
    "forced_eos_token_id": lambda a, s: (
        a.ends and a.tokens[-1] not in token_list(s["forced_eos_token_id"])
    ),
}
