# Apache-2.0 (see LICENSE)
"""YAML whose reading takes little time and memory, whoever wrote it."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 20


class ShallowLoader(yaml.SafeLoader):
    """Refuses aliases, whose copies of copies fill the memory, and brackets deep in each other.

    PyYAML looks at up to 1024 open brackets for each further one, so that it refuses them while it
    reads: of 60,000, it would take seconds to say that they are too deep for Python.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node.

        Raises:
            yaml.MarkedYAMLError: it is an alias, or nested too deeply.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise problem(f"it has an alias, *{event.anchor}; write the value", event)
        if self.depth >= MAX_DEPTH:
            raise problem(f"it is nested more than {MAX_DEPTH} levels deep", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def problem(what: str, place: Any) -> yaml.MarkedYAMLError:
    """The error for what is wrong with an event or a node."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=place.start_mark)


def parse_yaml(text: str) -> Any:
    """The value of a text.

    Raises:
        yaml.YAMLError: it is no YAML, has an alias, or is nested too deeply.
        ValueError: it has an impossible date, or a number of thousands of digits.
    """
    return yaml.load(text, Loader=ShallowLoader)
