"""Load YAML, and record the line of each key for messages.

The text may be untrusted. The loader therefore refuses aliases, because their expansion can fill
the memory. It also refuses deep nesting, and numbers that no recipe can use.
"""

import re
from collections.abc import Collection
from typing import Any

import yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.shallow_yaml import (
    ShallowLoader,
    problem,
)

from ftcluster.errors import RecipeError

MAX_WHOLE = 1 << 63
NUMBERS = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")}
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class _Loader(ShallowLoader):
    """A loader that reads 1e-4 as a number, and 1_000, 0x10, 010, 1:30, .nan and dates as strings.

    YAML 1.1 reads 1e-4 as a string, and the other examples as numbers and dates.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares it
        letter: [pair for pair in pairs if pair[0] not in NUMBERS]
        for letter, pairs in ShallowLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node.

        Raises:
            yaml.MarkedYAMLError: the text does not fit its YAML tag, or a number is too large.
        """
        if isinstance(node, yaml.MappingNode):  # keys are strings: a class may be named no, or 010
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                    key.tag = TEXT
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise problem(f"{str(node.value)[:80]!a} is not a valid {kind}", node) from error
        if isinstance(value, int) and abs(value) >= MAX_WHOLE:
            raise problem("a number is too large", node)
        return value


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def read_value(text: str) -> Any:
    """Read a string as YAML. If it is not valid in a recipe, return the string itself."""
    try:
        return yaml.load(text, Loader=_Loader)
    # the errors of an impossible date, of a number with thousands of digits, and of deep nesting
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return text


def read_keys(
    text: str, source: str, sections: Collection[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a YAML mapping by key, and the place of each key ("file:line").

    Args:
        text: a recipe, or another mapping, as YAML.
        source: name of the file, for the places.
        sections: names of the sections, which are mappings; the keys in a section get its name as a
            prefix.

    Raises:
        RecipeError: the text is not YAML or not a mapping, or a key is set twice.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError(
            f"{source}:{line}: not valid YAML: unexpected character {text[error.position]!a}"
        ) from error
    try:
        root = loader.get_single_node()
        if root is None:
            root = yaml.MappingNode("tag:yaml.org,2002:map", [])
        if not isinstance(root, yaml.MappingNode):
            raise RecipeError(f"{source}:1: the file must be a mapping of keys to values")
        values: dict[str, Any] = {}
        lines: dict[str, str] = {}
        pending = [("", root)]
        while pending:
            prefix, mapping = pending.pop(0)
            for key_node, value_node in mapping.value:
                key = f"{prefix}{loader.construct_object(key_node, deep=True)}"
                where = f"{source}:{key_node.start_mark.line + 1}"
                if key in values:
                    raise RecipeError(f"{where}: '{key}' is set twice, first at {lines[key]}")
                if key in sections and isinstance(value_node, yaml.MappingNode):
                    pending.append((f"{key}.", value_node))
                    continue
                lines[key] = where
                values[key] = loader.construct_object(value_node, deep=True)
        return values, lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{source}:{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        line = loader.line + 1
        deep = isinstance(error, RecursionError)
        what = "brackets or keys are nested too deeply" if deep else str(error).splitlines()[0]
        raise RecipeError(f"{source}:{line}: not valid YAML: {what}") from error
    finally:
        loader.dispose()
