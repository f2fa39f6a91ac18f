"""Packages that only some tests import, see scripts/engine_environment.py."""

import sys
from pathlib import Path

TRACKERS = str(Path(sys.prefix) / "trackers")  # what stack native-trackers has beside native's
COMPARED = str(Path(sys.prefix) / "compared")  # what requirements/engine.txt has
