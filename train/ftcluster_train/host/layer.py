"""The packages of a script's own requirements, which come behind those of the stack.

Standard library only: it delays every rank.
"""

import os
import site
from pathlib import Path

from ftcluster_common.launch import LAYER_VARIABLE


def own_layer() -> str:
    """The folder with the packages of this process's run; "" for none."""
    return os.environ.get(LAYER_VARIABLE, "")


def add_layer() -> None:
    """Have Python find these packages, where it finds none in the stack."""
    if layer := own_layer():
        for folder in Path(layer).glob("lib/python3*/site-packages"):
            site.addsitedir(str(folder))
