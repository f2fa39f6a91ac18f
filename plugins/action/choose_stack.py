# Apache-2.0 (see LICENSE)
"""Chooses the stack of a cluster, on the control node; see plugins/modules/choose_stack.py."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    BundleError,
    open_bundle,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stack_choice import (
    ChoiceError,
    Wish,
    choose,
    space_problems,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import (
    StacksError,
    lists_of,
    read_stacks,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import cache_dir


class ActionModule(ActionBase):
    """Reads the files and tells the choice as a fact."""

    _VALID_ARGS = frozenset(("folder", "name", "bundle", "allow_yanked", "cache", "hosts"))
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Choose; nothing is changed."""
        super().run(tmp, task_vars)
        arguments = self._task.args
        hosts = arguments.get("hosts") or {}
        cache = Path(arguments["cache"]) if arguments.get("cache") else cache_dir()
        try:
            document = read_stacks(Path(arguments["folder"]))
            bundle = _bundle(arguments, cache)
            wish = Wish(arguments.get("name") or "", bundle, bool(arguments.get("allow_yanked")))
            choice = choose(document["stacks"], document["warnings"], wish, hosts)
            lists = lists_of(Path(arguments["folder"]), document, choice.stack, cache)
            wanted = lists.wanted
            if bundle and bundle.digest != wanted.digest:
                raise BundleError(
                    f"{arguments['bundle']} was made for another version of ftcluster: its list of "
                    f"packages for stack {choice.stack} is {bundle.digest}, here it is "
                    f"{wanted.digest}; make it anew with this version: ftcluster bundle"
                )
        except (BundleError, ChoiceError, StacksError) as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible would say it twice
        needed = bundle.house.host_bytes if bundle else wanted.host_bytes
        path = f"{choice.stack}-{wanted.digest}"
        for host, facts in hosts.items():
            if "free_bytes" in facts and path not in facts.get("stacks", ()):
                choice.problems[host] += space_problems(
                    needed, facts["free_bytes"], facts["prefix"], choice.stack
                )
        return {
            "changed": False,
            "ansible_facts": {
                "torch_stack_choice": {
                    **vars(choice),
                    "asked": [arguments.get("name") or "", arguments.get("bundle") or ""],
                    "folder": path,
                    "requirements": str(lists.requirements),
                    "more_requirements": str(lists.more or ""),
                    "resolve": lists.resolve,
                    "packages": document["stacks"][choice.stack]["packages"],
                    "indexes": document["indexes"],
                    "wheelhouse": str(bundle.house.folder) if bundle else "",
                }
            },
        }


def _bundle(arguments, cache):
    path = arguments.get("bundle")
    return open_bundle(Path(path).expanduser(), cache) if path else None
