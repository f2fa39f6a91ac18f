# Apache-2.0 (see LICENSE)
"""What is at paths of a host, read by one shell command in a third of the time of a module.

For tasks that usually have nothing to do. Whatever is unusual they leave to their module: a link, a
folder that other users may change, a path with odd characters, a shell without an answer.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import TELL, answers
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute

PLAIN_PATH = re.compile(r"/[\w.@%+=:,/-]*", re.ASCII)  # no quotes needed
TOLD = '2> /dev/null | while IFS= read -r line; do tell {} "$line"; done'
WRITABLE, STICKY = 0o022, 0o1000


@dataclass(frozen=True)
class Place:
    """What is at a path itself, links not followed.

    Attributes:
        kind: as stat calls it, e.g. "directory".
        owner, group: names.
        mode: permissions with the sticky bit.
        links: names that the file has.
    """

    kind: str
    owner: str
    group: str
    mode: int
    links: int


@dataclass(frozen=True)
class Look:
    """The answers of a host.

    Attributes:
        user: the user that the task runs as.
        places: what is at the paths and at the folders above them.
        sha256: of the files.
        said: what the further commands told, lists by key.
    """

    user: str
    places: dict[str, Place] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)

    def has_text(self, path, text):
        """Whether a file has this text."""
        return self.sha256.get(path) == hashlib.sha256(text.encode()).hexdigest()

    def is_guarded(self, path, *owners):
        """Whether only root, the task's user and these owners can exchange what is at a path."""
        return all(
            place is not None
            and place.kind == "directory"
            and place.owner in ("root", self.user, *owners)
            and (not place.mode & WRITABLE or bool(place.mode & STICKY))
            for place in map(self.places.get, above(path))
        )


class ModuleUnlessSettled(ActionBase):
    """Runs the module of the task's name unless a look shows that there is nothing to do."""

    _requires_connection = True

    def run(self, tmp=None, task_vars=None):  # noqa: D102
        super().run(tmp, task_vars)
        try:
            result = self.settled(self._task.args)
        except (KeyError, TypeError, AttributeError, ValueError):
            result = None  # invalid arguments, or a damaged file: the module reports or repairs it
        return result or self._execute_module(self._task.action, task_vars=task_vars)

    def settled(self, arguments):
        """The module's result if there certainly is nothing to do, else None."""
        raise NotImplementedError


def above(path):
    """All folders that a path is in.

    >>> above("/opt/ftcluster")
    ['/opt', '/']
    """
    return [str(folder) for folder in PurePosixPath(path).parents]


def look(action, paths, files=(), more=""):
    """Look at a host; None if the paths are too odd or the shell does not answer.

    Args:
        paths: where to look, including all folders above.
        files: files to hash.
        more: further commands, which may use `tell KEY VALUE`.
    """
    if not all(PLAIN_PATH.fullmatch(path) for path in (*paths, *files)):
        return None
    asked = sorted({place for path in paths for place in (path, *above(path))})
    lines = [
        TELL,
        "LC_ALL=C; export LC_ALL",
        'tell user "$(id -un)"',
        *(
            [f"stat -c '%F|%U|%G|%a|%h|%n' -- {' '.join(asked)} {TOLD.format('stat')}"]
            if asked
            else []
        ),
        *([f"sha256sum -- {' '.join(files)} {TOLD.format('sha256')}"] if files else []),
        *([more] if more else []),
    ]
    done = execute(action, "\n".join(lines))
    said = answers(done["stdout"])
    if done["rc"] != 0 or len(said.get("user", [])) != 1:
        return None
    return Look(
        said["user"][0],
        dict(filter(None, map(place_of, said.get("stat", [])))),
        dict(line.split("  ", 1)[::-1] for line in said.get("sha256", []) if "  " in line),
        said,
    )


def place_of(line):
    """A line of stat as a path and what is there; None of any other line."""
    words = line.split("|", 5)
    if len(words) != 6 or not words[4].isdecimal() or not re.fullmatch("[0-7]+", words[3]):
        return None
    kind, owner, group, mode, links, path = words
    return path, Place(kind, owner, group, int(mode, 8), int(links))
