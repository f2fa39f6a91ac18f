# Apache-2.0 (see LICENSE)
"""Installs packages with apt or dnf once their locks are free; see plugins/modules/packages.py.

Ansible's modules wait for only some of the locks. For example, the module apt fails at once if it
must install python3-apt first.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import Reporter

MODULE = "ftcluster.cluster.packages"
LOCK_SECONDS = 300  # default of the module's option
FRESH_SECONDS = 600  # apt's lists of packages are used without an update for this time
POLL_SECONDS = 10.0  # length of a wait on the host; the lock's holder is reported after each wait


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/packages.py."""

    _VALID_ARGS = frozenset(("names", "manager", "lock_seconds"))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        names, manager = self._task.args["names"], self._task.args["manager"]
        seconds = int(self._task.args.get("lock_seconds", LOCK_SECONDS))
        state = self._run(MODULE, dict(self._task.args), variables)
        if state.get("failed") or not state["missing"]:
            return state
        if self._task.check_mode:
            return {**state, "changed": True, "msg": f"would install {', '.join(state['missing'])}"}
        reporter = Reporter(variables.get("inventory_hostname", ""), Display().display)
        began = time.monotonic()
        while True:
            state = self._wait(variables, began, seconds, reporter)
            if state.get("failed"):
                return state
            reporter.report("installing packages", ", ".join(names))
            done = self._install(names, manager, variables)
            # another process may have taken a lock after the wait
            held = done.get("failed") and self._run(MODULE, dict(self._task.args), variables)
            if not held or not held.get("holder"):
                return {**done, "missing": state["missing"]}

    def _wait(
        self, variables: dict[str, Any], began: float, seconds: int, reporter: Reporter
    ) -> dict[str, Any]:
        """Wait until the locks are free; return a failure if they are not free in time."""
        step = 0.0  # at first, only find out who holds a lock
        while True:
            arguments = {**self._task.args, "from_action": {"seconds": step}}
            state = self._run(MODULE, arguments, variables)
            if state.get("failed") or not state["holder"]:
                return state
            waited = time.monotonic() - began
            if waited >= seconds:
                return {**state, "failed": True, "busy": True, "msg": busy(state, seconds)}
            reporter.report(
                "waiting for the package manager's lock",
                f"{state['holder']}; {waited:.0f} of {seconds} s",
            )
            step = min(POLL_SECONDS, seconds - waited)

    def _install(self, names: list[str], manager: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Install the packages with Ansible's module."""
        if manager != "apt":
            arguments = {"name": names, "install_weak_deps": False}
            return self._run(f"ansible.builtin.{manager}", arguments, variables)
        arguments = {
            "name": names, "install_recommends": False, "update_cache_retries": 1,
            "lock_timeout": 10, "fail_on_autoremove": True,  # no other package is removed
        }  # fmt: skip
        done: dict[str, Any] = {}
        for update in (
            {"update_cache": True, "cache_valid_time": FRESH_SECONDS},
            # The update fails if a single source, such as a vendor's, does not respond, although
            # the lists of the other sources have been fetched.
            {"update_cache": False},
            # The folder of the lists is as new as the image of a host, but may be empty.
            {"update_cache": True},
        ):
            done = self._run("ansible.builtin.apt", {**arguments, **update}, variables)
            if not done.get("failed"):
                break
        return done

    def _run(
        self, module: str, arguments: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(module, arguments, task_vars=variables)
        return result


def busy(state: dict[str, Any], seconds: int) -> str:
    """Return the error for a lock that is not free in time."""
    return (
        f"{', '.join(state['missing'])} cannot be installed: after a wait of {seconds} s, "
        f"{state['holder']}. Wait until this process has ended, or end it; then run this again. To "
        "wait longer, pass -e os_package_lock_seconds=1800"
    )
