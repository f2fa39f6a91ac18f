# Apache-2.0 (see LICENSE)
"""Documentation of options that several modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """Fragments, one per constant. Modules name this file and the constant in lower case."""

    PREFIX = r"""
options:
  prefix:
    description: Folder of the cluster.
    type: path
    required: true
"""

    FROM_ACTION = r"""
options:
  from_action:
    description: Values that the action plugin adds. Tasks must not set them.
    type: dict
"""
