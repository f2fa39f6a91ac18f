# Apache-2.0 (see LICENSE)
"""Documentation of options that several modules have."""

from __future__ import annotations


class ModuleDocFragment:
    """Options by the fragment's name, which is this file's and the attribute's in lower case."""

    PREFIX = r"""
options:
  prefix:
    description: The folder that the cluster lives in.
    type: path
    required: true
"""

    FROM_ACTION = r"""
options:
  from_action:
    description: What the action plugin adds. No task sets it.
    type: dict
"""
