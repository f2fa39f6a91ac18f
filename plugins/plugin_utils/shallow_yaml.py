# Apache-2.0 (see LICENSE)
"""A YAML parser that needs little time and memory for any input."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 20


class ShallowLoader(yaml.SafeLoader):
    """A loader that rejects aliases and deeply nested brackets.

    Aliases can multiply in memory. The depth is checked during parsing: for each new bracket,
    PyYAML checks up to 1024 open brackets, and would need seconds to reject 60,000 brackets.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return one node.

        Raises:
            yaml.MarkedYAMLError: the node is an alias, or nested too deeply.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise problem(f"it contains the alias *{event.anchor}; write the value instead", event)
        if self.depth >= MAX_DEPTH:
            raise problem(f"it is nested more than {MAX_DEPTH} levels deep", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def problem(what: str, place: Any) -> yaml.MarkedYAMLError:
    """Return the error for a problem with an event or a node."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=place.start_mark)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        yaml.YAMLError: the text is not YAML, contains an alias, or is nested too deeply.
        ValueError: the text contains an impossible date, or a number with thousands of digits.
    """
    return yaml.load(text, Loader=ShallowLoader)
