# Apache-2.0 (see LICENSE)
"""Documentation of what several modules do in check mode and with diffs."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes by the fragment's name, which is this file's and the attribute's in lower case."""

    READS = r"""
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
"""

    CHANGES = r"""
attributes:
  check_mode:
    description: Says what would change.
    support: full
"""

    KEEPS = r"""
attributes:
  check_mode:
    description: Changes nothing.
    support: full
"""

    SKIPS = r"""
attributes:
  check_mode:
    description: Does nothing.
    support: none
"""

    TEXTS = r"""
attributes:
  diff_mode:
    description: Shows the texts before and after.
    support: full
"""
