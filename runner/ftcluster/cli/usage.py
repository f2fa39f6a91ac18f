"""Converts unknown flags to recipe fields, and suggests replacements for other flags."""

import difflib
import re
from collections.abc import Collection, Sequence

from ftcluster.cli.parser import Parser, is_flag
from ftcluster.errors import UsageError
from ftcluster.recipe.names import is_argument, is_switch, nearest
from ftcluster.recipe.recipe import all_keys
from ftcluster.recipe.unsupported import UNSUPPORTED

SWITCH_WORDS = ("true", "false", "yes", "no")


def with_overrides(
    arguments: Sequence[str], unknown: Collection[str], takes_recipe: bool, parser: Parser
) -> list[str]:
    """Replace flags that are fields of a recipe with `key=value`.

    Args:
        unknown: flags that argparse did not recognize.
        takes_recipe: True if the command has a recipe argument.

    Raises:
        UsageError: the command does not support some flags; the hint suggests replacements.

    >>> with_overrides(["--lr", "--adam_beta1", "0.8", "--fp16"], ["--adam_beta1", "--fp16"], True,
    ...     Parser())
    ['--lr', 'adam_beta1=0.8', 'fp16=true']
    """
    keys = all_keys() if takes_recipe else {}
    words: list[str] = []
    answers: dict[str, str] = {}  # replacements for unsupported flags
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if word not in unknown:
            words.append(word)
        elif not takes_recipe or not word.startswith("--") or not is_argument(name, keys):
            answers[flag] = _answer(flag, value, keys, parser)
        elif equals:
            words.append(f"{name}={value}")
        elif _is_switch(name, keys) and not (remaining and remaining[0].lower() in SWITCH_WORDS):
            words.append(f"{name}=true")
        elif remaining and not is_flag(remaining[0]):
            words.append(f"{name}={remaining.pop(0)}")
        elif name in UNSUPPORTED:  # the recipe's error names a replacement
            words.append(f"{name}=true")
        else:
            raise UsageError(f"{flag} needs a value: {name}=VALUE", parser.usage_line())
    if answers:
        many = len(answers) > 1
        lines = [
            f"{flag}: {answer}" if many else answer for flag, answer in answers.items() if answer
        ]
        named = f"unknown option{'s' if many else ''} {', '.join(answers)}"
        raise UsageError(named, "\n  ".join([*lines, parser.usage_line()]))
    return words


def _is_switch(name: str, keys: dict[str, bool]) -> bool:
    return keys.get(name, keys.get(f"training.{name}", is_switch(name)))


def _answer(flag: str, value: str, keys: dict[str, bool], parser: Parser) -> str:
    """Return a suggestion for an unknown flag, or ""."""
    flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", parser.format_help())
    others = [name for name in flags if name != flag]  # a help text can mention an unknown flag
    if close := difflib.get_close_matches(flag.replace("_", "-"), others, n=1, cutoff=0.75):
        return f"did you mean {close[0]}?"
    field = nearest(flag.lstrip("-"), keys)
    return f"did you mean {field.removeprefix('training.')}={value or 'VALUE'}?" if field else ""
