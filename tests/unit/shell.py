"""The fixture `shell`: `ftcluster` in this process, as a shell runs it."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Output(NamedTuple):
    """The output of a command."""

    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Output]
# the fixture `said`, which compares texts with the golden file
Said = Callable[[object], None]
