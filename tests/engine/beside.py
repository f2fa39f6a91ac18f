"""Packages that only some tests import, see scripts/engine_environment.py."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# packages that stack native-trackers has in addition to native
TRACKERS = str(Path(sys.prefix) / "trackers")
COMPARED = str(Path(sys.prefix) / "compared")  # packages in requirements/engine.txt


def with_compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the packages importable; transformers knows peft only until the generator ends.

    Modules of transformers that were imported without peft fail if it appears later.
    """
    from transformers.utils import is_peft_available

    monkeypatch.syspath_prepend(COMPARED)
    is_peft_available.cache_clear()
    yield
    is_peft_available.cache_clear()
    with pytest.MonkeyPatch.context() as hidden:
        hidden.setitem(sys.modules, "peft", None)
        assert not is_peft_available()
