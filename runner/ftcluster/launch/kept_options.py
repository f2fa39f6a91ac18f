"""Keep the launch options of a training run for runs that continue it (`train --resume`).

The options are stored in options.json in the run's folder on each host, so they survive the loss of
the head, and any control node can read them. Values of the user's variables are not stored there: a
host must not choose the environment of other hosts' ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ftcluster.launch.tags import is_tag
from ftcluster.launch.user_env import NAME
from ftcluster_common.protocol.formats import OPTIONS, opened, stamped
from ftcluster_common.protocol.launch import GRACE_SECONDS
from ftcluster_common.protocol.timeouts import DEFAULT_SECONDS

TRAINING_RESTARTS = 3  # restarts of a training run, unless the user sets another number
MOST_NAMES, MOST_CHARACTERS = 5000, 300
MOST_NUMBER = 1e9


@dataclass(frozen=True)
class KeptOptions:
    """The options of a launch that a resumed run uses again.

    Attributes:
        hosts: names of the hosts that the run was prepared on.
        spares: number of hosts that may replace a lost host.
        ranks_per_host: number of ranks on each host; None if the plan decides.
        max_restarts, min_nodes, timeout_seconds, grace_seconds, wait, share_hosts: see Launch.
        tags: NAME=VALUE pairs.
        env: names of the user's variables whose values the launch records.
        secret_env: names of the user's variables whose values are not recorded.
        notifies: True if the head sends notifications. The command is not kept: a host must not
            choose a command that another host starts.
    """

    hosts: tuple[str, ...] = ()
    spares: int = 0
    ranks_per_host: int | None = None
    max_restarts: int = TRAINING_RESTARTS
    min_nodes: int = 0
    timeout_seconds: float = DEFAULT_SECONDS
    grace_seconds: float = GRACE_SECONDS
    wait: bool = False
    share_hosts: bool = False
    tags: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    notifies: bool = False

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    def document(self) -> dict[str, Any]:
        """Return the content of options.json, which `kept_options_of` reads."""
        names = self.changed().keys()
        return stamped(OPTIONS, {name: asdict(self)[name] for name in names})


DEFAULTS = KeptOptions()


def kept_options_of(document: Any) -> KeptOptions:
    """Check the content of options.json and return the options.

    Raises:
        ValueError: the document is not valid; the message names the field.
    """
    values = opened(OPTIONS, document)
    for name, value in values.items():
        if name in _FORMS and not _FORMS[name](value):
            raise ValueError(f"the launch option {name} has the invalid value {value!a:.60}")
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in _FORMS
    }
    return KeptOptions(**options)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= MOST_NUMBER


def _seconds(value: Any) -> bool:
    return type(value) in (int, float) and 1 <= value <= MOST_NUMBER


def _texts(valid: Callable[[str], object]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return (
            isinstance(value, list | tuple)
            and len(value) <= MOST_NAMES
            and all(isinstance(text, str) and valid(text) for text in value)
        )

    return check


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MOST_CHARACTERS and text.isprintable()


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "hosts": _texts(_is_name),
    "spares": _whole(0),
    "ranks_per_host": _whole(1),
    "max_restarts": _whole(0),
    "min_nodes": _whole(0),
    "timeout_seconds": _seconds,
    "grace_seconds": _seconds,
    "wait": _is_flag,
    "share_hosts": _is_flag,
    "tags": _texts(is_tag),
    "env": _texts(NAME.fullmatch),
    "secret_env": _texts(NAME.fullmatch),
    "notifies": _is_flag,
}
