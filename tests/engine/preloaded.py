"""Imports for the processes of forks.py, made once when the fork server starts."""

import importlib
import os
import sys

from tests.engine.forks import PATHS

sys.path[:] = os.environ[PATHS].split(os.pathsep)

MODULES = (
    "hypothesis",
    "pytest",
    "tests.engine.jobs",
    "tests.engine.ranks",
    "transformers.optimization",
    *(f"transformers.models.{kind}.modeling_{kind}" for kind in ("bert", "gpt2", "llama")),
)

for name in MODULES:
    importlib.import_module(name)
