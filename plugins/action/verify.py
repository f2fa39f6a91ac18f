# Apache-2.0 (see LICENSE)
"""Runs `verify` on the head; meanwhile, the control node connects to the hosts' ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import (
    environment_words,
    execute,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.report_schema import read_report

OUR_PORTS = range(29800, 30000)  # ports that the firewall closes and no other program uses
CALL_SECONDS = 1.0
# The mark separates the report from output of login scripts. The program runs in / because Python
# imports modules from the current folder.
MARK = "ftcluster-report:"
BEGIN = "printf 'ftcluster-%s\n' report: && cd /"
PAUSE_SECONDS = 0.2
MOST_SAID = 4000  # maximum length of an error message in characters


def ports_to_open(local_ports: Iterable[str]) -> list[int]:
    """Return a random port of each range that a firewall must close."""
    theirs = sorted(number_list(",".join(local_ports)))
    return [random.SystemRandom().choice(ports) for ports in (OUR_PORTS, theirs) if ports]


class Caller:
    """A background thread that connects to ports of hosts while its context is active.

    Args:
        hosts: name, address and SSH port of each host.
        ports: ports to connect to, by the name of the host.

    Attributes:
        reached: names of hosts whose SSH port accepted a connection.
    """

    def __init__(
        self, hosts: Sequence[tuple[str, str, int]], ports: Mapping[str, Sequence[int]]
    ) -> None:
        self.reached: list[str] = []
        self._hosts, self._ports = hosts, ports
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call_all()), daemon=True)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _call_all(self) -> None:
        calls = [asyncio.ensure_future(self._reach(*host)) for host in self._hosts]
        calls += [
            asyncio.ensure_future(self._call(address, port))
            for name, address, _ssh_port in self._hosts
            for port in self._ports[name]
        ]
        while not self._over.is_set():
            await asyncio.sleep(PAUSE_SECONDS / 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _reach(self, name: str, address: str, ssh_port: int) -> None:
        if await connects(address, ssh_port):
            self.reached.append(name)

    async def _call(self, address: str, port: int) -> None:
        # a rank may open its port after this call starts; one successful connection is enough
        while not await connects(address, port):
            await asyncio.sleep(PAUSE_SECONDS)


async def connects(address: str, port: int) -> bool:
    """Return True if a TCP connection succeeds within CALL_SECONDS."""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        opening = asyncio.open_connection(address, port)
        (await asyncio.wait_for(opening, CALL_SECONDS))[1].close()
        return True
    return False


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/verify.py."""

    _VALID_ARGS = frozenset(("python", "request", "calls"))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        hosts = self._task.args.get("calls") or []
        ports = {host["name"]: ports_to_open(host["local_ports"]) for host in hosts}
        request = {**self._task.args["request"], "ports": ports}
        places = [(host["name"], host["address"], int(host["ssh_port"])) for host in hosts]
        with Caller(places, ports) as caller:
            program = f"{shlex.quote(self._task.args['python'])} -m ftcluster_train.health.verify"
            command = f"{BEGIN}; {environment_words(self)} {program}"
            done = execute(self, command, json.dumps(request).encode())
        text = done["stdout"].rpartition(MARK)[2].strip()
        report, said = None, (done.get("stderr") or text).strip()[-MOST_SAID:]
        if text.startswith("{"):
            try:
                names = [host["name"] for host in request["hosts"]]
                report = read_report(text, names)
            except ValueError as error:
                said = f"its report is invalid: {error}"
        result.update(changed=False, report=report, said=said, reached=sorted(caller.reached))
        return result
