"""`ftcluster` in this process, as a shell runs it: the fixture `shell`."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Output(NamedTuple):
    """The output of a command since the last one."""

    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Output]
# the fixture `said`, which compares texts with the golden file
Said = Callable[[object], None]
