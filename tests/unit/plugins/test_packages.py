"""The action that installs packages, with a host whose locks are taken and released."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.action import packages as action
from ansible_collections.ftcluster.cluster.plugins.modules import packages
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import read_progress

from tests.unit.hosts import plugin

HOLDER = "process 812 (/usr/bin/unattended-upgrade) holds /var/lib/dpkg/lock-frontend"
FAILS = {"failed": True, "msg": "no such package"}


@dataclass
class Host:
    """A host with a clock of its own.

    Attributes:
        held: intervals in seconds in which another process has the lock.
        results: results of apt, one for each call; apt fails while the lock is held.
    """

    missing: list[str]
    held: list[tuple[float, float]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    now: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def holder(self) -> str:
        return HOLDER if any(start <= self.now < end for start, end in self.held) else ""

    def execute(self, module: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
        if module == action.MODULE:
            deadline = self.now + arguments.get("from_action", {}).get("seconds", 0)
            while self.holder and self.now < deadline:
                self.now += 0.5
            return {"changed": False, "missing": self.missing, "holder": self.holder}
        assert module == "ansible.builtin.apt"
        self.calls.append(arguments)
        self.now += 1
        if self.holder:
            return {"failed": True, "msg": "Could not get lock"}
        return self.results.pop(0) if self.results else {"changed": True}


def install(
    host: Host, monkeypatch: pytest.MonkeyPatch, seconds: int = 60, check: bool = False
) -> dict[str, Any]:
    arguments = {"names": ["nftables"], "manager": "apt", "lock_seconds": seconds}
    act = plugin(action, arguments, check)
    monkeypatch.setattr(act, "_execute_module", host.execute)
    monkeypatch.setattr(time, "monotonic", lambda: host.now)
    result: dict[str, Any] = act.run(None, {"inventory_hostname": "n1"})
    return result


def test_packages_are_installed_when_the_lock_is_released(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = Host(["nftables"], [(0, 25)])
    assert install(host, monkeypatch)["changed"]
    assert len(host.calls) == 1
    reports = [read_progress(line) for line in capsys.readouterr().out.splitlines()]
    assert reports[0] == (
        "n1", f"waiting for the package manager's lock: {HOLDER}; 0 of 60 s"
    )  # fmt: skip
    assert reports[-1] == ("n1", "installing packages: nftables")


def test_the_holder_is_named_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(["nftables"], [(0, 1000)])
    result = install(host, monkeypatch, seconds=25)
    assert (result["failed"], result["busy"], host.calls) == (True, True, [])
    assert result["msg"].startswith(
        f"nftables cannot be installed: after a wait of 25 s, {HOLDER}. "
    )
    assert "os_package_lock_seconds" in result["msg"]
    assert host.now == 25


def test_a_lock_that_is_taken_after_the_wait_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(["nftables"], [(0.5, 20)])  # free at first, then taken while apt starts
    assert install(host, monkeypatch)["changed"]
    assert host.now < 30


def test_a_lock_that_is_taken_again_and_again_fails_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(["nftables"], [(start + 0.4, start + 4) for start in range(0, 999, 4)])
    result = install(host, monkeypatch, seconds=20)
    assert (result["failed"], result["busy"]) == (True, True)
    assert host.now < 40


def test_a_dry_run_names_what_it_would_install_and_calls_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(["nftables"], [(0, 1000)])
    result = install(host, monkeypatch, check=True)
    assert (result["changed"], result["msg"]) == (True, "would install nftables")
    assert host.calls == []


def test_packages_that_are_there_need_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host([], [(0, 1000)])
    assert not install(host, monkeypatch)["changed"]
    assert (host.calls, host.now) == ([], 0)


def test_a_source_that_does_not_respond_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(["nftables"], results=[FAILS])
    assert install(host, monkeypatch)["changed"]
    assert [call["update_cache"] for call in host.calls] == [True, False]


def test_lists_are_only_fetched_again_if_they_are_old_or_lack_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second package, installed at once, needs no update; an image has empty new lists."""
    host = Host(["nftables"])
    assert install(host, monkeypatch)["changed"]
    [call] = host.calls
    assert call["cache_valid_time"] == action.FRESH_SECONDS
    host = Host(["nftables"], results=[FAILS, FAILS])
    assert install(host, monkeypatch)["changed"]
    assert [call.get("cache_valid_time", 0) for call in host.calls] == [600, 0, 0]
    assert [call["update_cache"] for call in host.calls] == [True, False, True]
    last = {"failed": True, "msg": "no source responds"}
    host = Host(["nftables"], results=[FAILS, FAILS, last])
    assert install(host, monkeypatch)["msg"] == "no source responds"


def test_debians_own_database_tells_what_is_missing(run_module: Any) -> None:
    """Every Debian has the package dpkg."""
    found = run_module(
        packages.main, names=["dpkg", "no-such-package", "dpkg=0"], manager="apt", check=True
    )
    assert found["missing"] == ["no-such-package", "dpkg=0"]
