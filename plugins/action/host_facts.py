# Apache-2.0 (see LICENSE)
"""Reads and validates the facts of a host, and measures its clock's offset."""

from __future__ import annotations

import re
import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute

SECONDS = re.compile(r"^\d+\.\d+\r?$", re.MULTILINE)


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/host_facts.py."""

    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(
            self._execute_module(module_name="ftcluster.cluster.host_facts", task_vars=task_vars)
        )
        if "facts" in result:
            result["facts"], wrong = known_facts(result["facts"])
            if wrong:
                raise AnsibleActionFail(
                    f"the host's facts are invalid: {'; '.join(wrong)}; a path may contain only "
                    "letters, digits and . _ + @ % = , ~ -"
                )
            offset, error = self._clock()
            result["facts"].update(clock_offset_seconds=offset, clock_error_seconds=error)
        return result

    def _clock(self) -> tuple[float, float] | tuple[None, None]:
        """Return the host's clock minus the local clock, and the maximum error, in seconds.

        Return (None, None) if `date` fails or prints no nanoseconds. One measurement is enough: the
        connection is already open, so the round trip is much shorter than relevant differences.
        """
        before = time.time()
        try:
            answer = execute(self, "date +%s.%N", sudoable=False)
        except AnsibleConnectionFailure:
            return None, None
        after = time.time()
        # login scripts may also print lines
        found = SECONDS.findall(answer["stdout"])
        if answer["rc"] != 0 or not found:
            return None, None
        return float(found[-1]) - (before + after) / 2, (after - before) / 2
