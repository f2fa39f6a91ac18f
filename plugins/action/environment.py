# Apache-2.0 (see LICENSE)
"""Downloads wheels once, sends them to each host, and calls the module to install them there."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import is_unpacked
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import Reporter
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import push_files
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.sizes import free_and_needed
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import Lists
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    MANIFEST,
    Wanted,
    Wheelhouse,
    WheelhouseError,
    cache_dir,
    get_wheels,
    read_wheelhouse,
    sha256_of,
    verify,
)
from packaging.utils import canonicalize_name

MODULE = "ftcluster.cluster.environment"


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/environment.py."""

    _VALID_ARGS = frozenset(
        (
            "path", "requirements", "more_requirements", "resolve", "allow_unverified", "index_url",
            "find_links", "indexes", "wheelhouse", "wheels", "wheels_sha256", "layer", "base",
            "python", "cache",
        )
    )  # fmt: skip
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = self._task.args
        wanted = None if arguments.get("layer") else _wanted(arguments)
        digest = wanted.digest if wanted else _layer_digest(arguments)
        state: dict[str, Any] = self._execute_module(MODULE, arguments, task_vars=task_vars)
        if state.get("failed"):
            return state
        if state["digest"] == digest:
            return {"changed": False}
        if self._task.check_mode:
            return {"changed": True}
        host = (task_vars or {}).get("inventory_hostname", "")
        reporter = Reporter(host, Display().display)
        house = _wheels(wanted, arguments, state, reporter) if wanted else None
        if house:
            _check_space(house, arguments["path"], state["free_bytes"])
            files, sha256, notices = house.files, house.sha256, list(house.notices)
        else:
            files, notices = [Path(path) for path in arguments["wheels"]], []
            sha256 = {path.name: sha256_of(path) for path in files}
        # use a new folder, because a killed control node may still be writing to the old one
        staging = f"{arguments['path'].rstrip('/')}.staging-{secrets.token_hex(4)}"
        self._push(files, staging, reporter)
        sent = {"digest": digest, "sha256": sha256, "staging": staging}
        if house:
            reporter.report_bytes("verifying packages", house.wheel_bytes)
            verified = self._on_host({**sent, "step": "verify"}, task_vars)
            if verified.get("failed"):
                return verified
            reporter.report_bytes("installing packages", house.unpacked_bytes)
            installed = self._on_host({**sent, "step": "install"}, task_vars)
        else:
            installed = self._on_host({**sent, "step": "verify and install"}, task_vars)
        return {**installed, "notices": notices}

    def _push(self, files: Sequence[Path], staging: str, reporter: Reporter) -> None:
        """Send the wheels and report the bytes that were sent."""
        sent, total = 0, sum(path.stat().st_size for path in files)

        def add(count: int) -> None:
            nonlocal sent
            sent += count
            reporter.report_bytes("sending packages", sent, total)

        add(0)
        # the host compares the files with the hashes of the wheelhouse
        paths = [(path.resolve(), path.name) for path in files]
        push_files(self, paths, staging, add, hashed=False)

    def _on_host(self, sent: Mapping[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        arguments = {**self._task.args, "from_action": sent}
        result: dict[str, Any] = self._execute_module(MODULE, arguments, task_vars=task_vars)
        return result


def _wanted(arguments: Mapping[str, Any]) -> Wanted:
    more = arguments.get("more_requirements")
    return Lists(
        Path(arguments["requirements"]),
        Path(more) if more else None,
        boolean(arguments.get("resolve", False)),
        boolean(arguments.get("allow_unverified", False)),
    ).wanted


def _wheels(
    wanted: Wanted, arguments: Mapping[str, Any], state: Mapping[str, Any], reporter: Reporter
) -> Wheelhouse:
    try:
        cache = Path(arguments["cache"]) if arguments.get("cache") else cache_dir()
        house = _house(wanted, arguments, state, cache, reporter)
        made_here = not arguments.get("wheelhouse") or is_unpacked(house.folder, cache)
        verify(house, wanted, state["python_version"], made_here)
    except (WheelhouseError, ValueError) as error:
        raise AnsibleActionFail(str(error)) from None  # Ansible would print the cause too
    return house


def _house(
    wanted: Wanted,
    arguments: Mapping[str, Any],
    state: Mapping[str, Any],
    cache: Path,
    reporter: Reporter,
) -> Wheelhouse:
    if arguments.get("wheelhouse"):
        house = read_wheelhouse(Path(arguments["wheelhouse"]))
        if house is None:
            raise AnsibleActionFail(
                f"{arguments['wheelhouse']} is incomplete: a wheel is missing, is not a regular "
                f"file or has the wrong size, or {MANIFEST} cannot be read; run setup again with "
                "the bundle, or copy the folder again"
            )
        return house
    if not state["glibc"]:
        raise AnsibleActionFail("the host's C library is not glibc, which the wheels require")
    indexes = arguments.get("indexes") or {}
    sources = Sources(
        arguments.get("index_url") or "",
        tuple(arguments.get("find_links") or ()),
        {canonicalize_name(name): url for name, url in indexes.items() if url},
    )
    target = Target(state["python_version"], state["glibc"], state["machine"])
    return get_wheels(wanted, target, sources, cache, reporter.report_bytes)


def _check_space(house: Wheelhouse, path: str, free: int) -> None:
    """Check that the disk has space for all files, before any file is written."""
    if free < house.host_bytes:
        available, required = free_and_needed(free, house.host_bytes)
        raise AnsibleActionFail(
            f"only {available} are free at {path}, but {required} are needed; free some space or "
            "choose another folder with -e ftcluster_prefix=DIR"
        )


def _layer_digest(arguments: Mapping[str, Any]) -> str:
    """Return the digest that marks an overlay as completely installed.

    Raises:
        AnsibleActionFail: a wheel has the wrong hash.
    """
    digests = [sha256_of(Path(path)) for path in arguments["wheels"]]
    for path, digest, wanted in zip(
        arguments["wheels"], digests, arguments.get("wheels_sha256") or digests, strict=True
    ):
        if digest != wanted.lower():
            raise AnsibleActionFail(
                f"the SHA-256 of {path} is {digest}, but {wanted} is required: build or copy the "
                "wheel again, or correct the required hash"
            )
    return "-".join(digests)
