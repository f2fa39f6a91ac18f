# Apache-2.0 (see LICENSE)
"""Documentation of check mode and diff mode for several modules."""

from __future__ import annotations


class ModuleDocFragment:
    """Fragments, one per constant. Modules name this file and the constant in lower case."""

    READS = r"""
attributes:
  check_mode:
    description: Does the same work in check mode.
    support: full
"""

    CHANGES = r"""
attributes:
  check_mode:
    description: Reports what would change.
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
    description: Shows the content of files before and after the change.
    support: full
"""
