# Apache-2.0 (see LICENSE)
"""Runs verify on the head while the control node calls the hosts' ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shlex
import threading

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import execute

OUR_PORTS = range(29800, 30000)  # of those that the firewall closes, what nothing else takes
CALL_SECONDS = 1.0
# Login scripts may print lines of their own before. In / because Python imports what lies where it
# is started.
MARK = "ftcluster-report:"
BEGIN = "printf 'ftcluster-%s\n' report: && cd /"
PAUSE_SECONDS = 0.2


def ports_to_open(local_ports):
    """One port of each range that a firewall has to close; nobody can know them before."""
    theirs = sorted(number_list(",".join(local_ports)))
    return [random.SystemRandom().choice(ports) for ports in (OUR_PORTS, theirs) if ports]


class Caller:
    """Calls ports of hosts in a thread of its own, for as long as it is entered.

    Takes triples of a host's name, its address, and its SSH port, and the ports to call by name.
    `reached` has the names of those whose SSH port answered.
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
        # the ranks open it at some time from now on; one that got in is enough
        while not await connects(address, port):
            await asyncio.sleep(PAUSE_SECONDS)


async def connects(address, port):
    """Whether a TCP connection comes about within CALL_SECONDS."""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CALL_SECONDS)
        writer.close()
        return True
    return False


class ActionModule(ActionBase):
    """Runs verify and calls; see plugins/modules/prove.py."""

    _VALID_ARGS = frozenset(("python", "request", "calls"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        hosts = self._task.args.get("calls") or []
        ports = {host["name"]: ports_to_open(host["local_ports"]) for host in hosts}
        request = {**self._task.args["request"], "ports": ports}
        places = [(host["name"], host["address"], int(host["ssh_port"])) for host in hosts]
        with Caller(places, ports) as caller:
            program = f"{shlex.quote(self._task.args['python'])} -m ftcluster_train.verify"
            command = f"{BEGIN}; {self._compute_environment_string()} {program}"
            done = execute(self, command, json.dumps(request).encode())
        done["stdout"] = done["stdout"].rpartition(MARK)[2].lstrip()
        result.update(done)
        result.update(changed=False, reached=sorted(caller.reached))
        return result
