# Apache-2.0 (see LICENSE)
"""Runs verify on the head while the control node connects to the hosts' ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shlex
import threading

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import (
    environment_words,
    execute,
)

OUR_PORTS = range(29800, 30000)  # those that the firewall closes and nothing else uses
CALL_SECONDS = 1.0
# Login scripts may print lines before. In / because Python imports from the current folder.
MARK = "ftcluster-report:"
BEGIN = "printf 'ftcluster-%s\n' report: && cd /"
PAUSE_SECONDS = 0.2


def ports_to_open(local_ports):
    """One port of each range that a firewall has to close, at random."""
    theirs = sorted(number_list(",".join(local_ports)))
    return [random.SystemRandom().choice(ports) for ports in (OUR_PORTS, theirs) if ports]


class Caller:
    """Connects to ports of hosts in a thread while its context is active.

    Takes triples of a host's name, address and SSH port, and the ports by name. `reached` has the
    names of those whose SSH port accepted a connection.
    """

    def __init__(self, hosts, ports):
        self.reached = []
        self._hosts, self._ports = hosts, ports
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call_all()), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    async def _call_all(self):
        calls = [asyncio.ensure_future(self._reach(*host)) for host in self._hosts]
        calls += [
            asyncio.ensure_future(self._call(address, port))
            for name, address, _ in self._hosts
            for port in self._ports[name]
        ]
        while not self._over.is_set():
            await asyncio.sleep(PAUSE_SECONDS / 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _reach(self, name, address, ssh_port):
        if await connects(address, ssh_port):
            self.reached.append(name)

    async def _call(self, address, port):
        # the ranks open it at some time from now on; one connection is enough
        while not await connects(address, port):
            await asyncio.sleep(PAUSE_SECONDS)


async def connects(address, port):
    """Whether a TCP connection succeeds within CALL_SECONDS."""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CALL_SECONDS)
        writer.close()
        return True
    return False


class ActionModule(ActionBase):
    """See plugins/modules/verify.py."""

    _VALID_ARGS = frozenset(("python", "request", "calls"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hosts = self._task.args.get("calls") or []
        ports = {host["name"]: ports_to_open(host["local_ports"]) for host in hosts}
        request = {**self._task.args["request"], "ports": ports}
        places = [(host["name"], host["address"], int(host["ssh_port"])) for host in hosts]
        with Caller(places, ports) as caller:
            program = f"{shlex.quote(self._task.args['python'])} -m ftcluster_train.health.verify"
            command = f"{BEGIN}; {environment_words(self)} {program}"
            done = execute(self, command, json.dumps(request).encode())
        done["stdout"] = done["stdout"].rpartition(MARK)[2].lstrip()
        result.update(done)
        result.update(changed=False, reached=sorted(caller.reached))
        return result
