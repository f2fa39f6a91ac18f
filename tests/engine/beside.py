"""Packages that only some tests import, see scripts/engine_environment.py."""

import sys
from pathlib import Path

# packages that stack native-trackers has in addition to native
TRACKERS = str(Path(sys.prefix) / "trackers")
COMPARED = str(Path(sys.prefix) / "compared")  # packages in requirements/engine.txt
