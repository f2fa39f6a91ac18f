# Apache-2.0 (see LICENSE)
"""Chooses a cluster's stack on the control node; see plugins/modules/choose_stack.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.advisories import (
    advisories_of,
    advisory_notice,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    Bundle,
    BundleError,
    hold,
    open_bundle,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import LockError
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stack_choice import (
    ChoiceError,
    StackRequest,
    choose,
    space_problems,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import (
    StacksFileError,
    lists_of,
    read_advisories,
    read_stacks,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheel_source import (
    kinds_of,
    refusal,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    cache_dir,
)
from packaging.utils import canonicalize_name


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/choose_stack.py."""

    _VALID_ARGS = frozenset(
        (
            "folder",
            "name",
            "present",
            "bundle",
            "allow_yanked",
            "allow_unverified",
            "cache",
            "hosts",
            "sources",
        )
    )
    _requires_connection = False

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = self._task.args
        hosts = arguments.get("hosts") or {}
        cache = Path(arguments["cache"]) if arguments.get("cache") else cache_dir()
        allow_unverified = boolean(arguments.get("allow_unverified", False))
        try:
            folder = Path(arguments["folder"])
            document = read_stacks(folder)
            bundle = _bundle(arguments, cache)
            request = StackRequest(
                arguments.get("name") or "", bundle, boolean(arguments.get("allow_yanked", False)),
                allow_unverified, arguments.get("present") or "",
            )  # fmt: skip
            choice = choose(document["stacks"], document["warnings"], request, hosts)
            advisories = read_advisories(folder)
            lists = lists_of(folder, document, choice.stack, cache, allow_unverified)
            wanted = lists.wanted
            if bundle:
                hold(bundle, arguments["bundle"], wanted)
        except (BundleError, ChoiceError, StacksFileError) as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible would print the cause too
        packages = document["stacks"][choice.stack]["packages"]
        known = advisories_of(packages, advisories["advisories"])
        notice = advisory_notice(choice.stack, known, advisories["looked_at"])
        choice.notices += [notice] if notice else []
        needed = bundle.house.host_bytes if bundle else wanted.host_bytes
        path = f"{choice.stack}-{wanted.digest}"
        for host, facts in hosts.items():
            if "free_bytes" in facts and path not in facts.get("stacks", ()):
                choice.problems[host] += space_problems(
                    needed, facts["free_bytes"], facts["prefix"], choice.stack
                )
        indexes = document["indexes"]
        if (given := arguments.get("sources")) is not None and not bundle:
            without = {h: f for h, f in hosts.items() if path not in f.get("stacks", ())}
            try:
                for target, host in kinds_of(without, choice.pythons).items():
                    if said := refusal(wanted, target, _sources(given, indexes), cache):
                        choice.problems[host].append({"what": said, "hint": ""})
            except LockError as error:
                raise AnsibleActionFail(f"{wanted.name}: {error}") from None
        return {
            "changed": False,
            "choice": {
                **vars(choice),
                "asked": [arguments.get("name") or "", arguments.get("bundle") or ""],
                "folder": path,
                "requirements": str(lists.requirements),
                "more_requirements": str(lists.more or ""),
                "resolve": lists.resolve,
                "packages": packages,
                "indexes": indexes,
                "wheelhouse": str(bundle.house.folder) if bundle else "",
            },
        }


def _bundle(arguments: Mapping[str, Any], cache: Path) -> Bundle | None:
    path = arguments.get("bundle")
    return open_bundle(Path(path).expanduser(), cache) if path else None


def _sources(given: Mapping[str, Any], indexes: Mapping[str, str]) -> Sources:
    every = {**indexes, **(given.get("indexes") or {})}
    return Sources(
        given.get("index_url") or "",
        tuple(given.get("find_links") or ()),
        {canonicalize_name(name): url for name, url in every.items() if url},
    )
