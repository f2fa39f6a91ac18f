from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.filter.host_findings import host_findings

from tests.unit.shell import Said

GOOD = {
    "machine": "x86_64", "pythons": [{"version": "3.11.2"}], "can_become_root": True,
    "prefix": "/opt/ftcluster", "prefix_writable": True, "prefix_refused": None,
    "free_bytes": 9 * 10**9, "memory_bytes": 16 * 10**9,
    "cpu_generation": "Sapphire Rapids", "amx": "usable", "kernel": "6.1.0-18-amd64",
}  # fmt: skip
REQUIRED = {
    "machine": "x86_64", "python": "3.10", "free_bytes": 5 * 10**9, "memory_bytes": 3 * 10**9,
}  # fmt: skip
NOTHING: dict[str, Any] = {"problems": [], "notices": []}


def findings(*ports: list[Any], required: Any = REQUIRED, **changes: Any) -> dict[str, Any]:
    """Return the findings for a good host with these changes."""
    found: dict[str, Any] = host_findings({**GOOD, **changes}, required, *ports)
    assert all(one["what"] and one["hint"] for kind in found.values() for one in kind)
    return found


def test_a_good_host() -> None:
    assert findings() == NOTHING


@pytest.mark.parametrize("name", ["a b", "a\nroot - nofile 1", "$(id)", "{{ x }}", "-x", "x" * 33])
def test_invalid_account_names(name: str) -> None:
    [problem] = findings(rank_user=name)["problems"]
    assert problem["what"].startswith(f"{name!a} ")
    assert findings(rank_user="ft_user-1") == findings(rank_user="") == NOTHING


@pytest.mark.parametrize("origin", ["other", "directory"])
def test_an_account_that_somebody_else_has_made(origin: str, said: Said) -> None:
    [problem] = findings(rank_user="ftcluster", rank_user_origin=origin)["problems"]
    said(f"{problem['what']}; {problem['hint']}")
    for known in ("", "own"):
        assert findings(rank_user="ftcluster", rank_user_origin=known) == NOTHING
    # without an account, the login user trains
    assert findings(rank_user="", rank_user_origin=origin) == NOTHING


@pytest.mark.parametrize("price", ["4,08", "USD 4", "4 US dollars", "-1", "{{ x }}"])
def test_invalid_prices(price: str) -> None:
    [problem] = findings(price_per_hour=price)["problems"]
    assert repr(price) in problem["what"]
    for good in ("", "4", "4.08", "4.08 USD", "3 €"):
        assert findings(price_per_hour=good) == NOTHING


@pytest.mark.parametrize("folder", ["/opt/ftcluster", "/opt/ftcluster/runs"])
def test_a_folder_that_is_mounted_read_only_is_reported_once(folder: str) -> None:
    whole = folder == "/opt/ftcluster"
    facts = {"prefix_writable": not whole, "root_refused": ["prefix"] if whole else []}
    [problem] = findings(read_only=[folder], **facts)["problems"]
    assert problem["what"] == f"{folder} is on a file system that is mounted read-only"
    assert findings(read_only=[]) == NOTHING


def test_all_problems_of_a_host_are_reported(said: Said) -> None:
    refused = {"what": "root must not", "hint": "choose"}
    found = findings(
        machine="aarch64", pythons=[{"version": "3.9.2"}, {"version": "3.8.1"}],
        prefix_writable=False, prefix_refused=refused, free_bytes=10**9, memory_bytes=10**9,
        root_refused=["temp", "prefix"],
    )["problems"]  # fmt: skip
    assert len(found) == 8
    assert refused in found
    for problem in found:
        said(f"{problem['what']}; {problem['hint']}")


@pytest.mark.parametrize(
    ("there", "enough"),
    [
        (["3.9.20"], False),  # 9 is older than 10
        (["3.8.1", "3.9.20"], False),
        (["3.10.0"], True),
        (["3.9.2", "3.12.1"], True),  # the version need not be Ansible's own Python
        (["3.9.2", "3.14.0rc1"], True),
    ],
)
def test_one_python_that_is_new_enough(there: list[str], enough: bool) -> None:
    found = findings(pythons=[{"version": version} for version in there])
    assert (found == NOTHING) == enough


@pytest.mark.parametrize(
    ("amx", "generation", "count"),
    [("refused", "other", 1), ("absent", "Sapphire Rapids", 1), ("absent", "Ice Lake", 0)],
)
def test_unusable_amx_is_a_notice(amx: str, generation: str, count: int, said: Said) -> None:
    found = findings(amx=amx, cpu_generation=generation)
    assert (found["problems"], len(found["notices"])) == ([], count)
    for notice in found["notices"]:
        said(f"{notice['what']}; {notice['hint']}")


@pytest.mark.parametrize(
    ("required", "name"),
    [({"root": True}, "root"), ({"firewall": True}, "the firewall"),
     ({"root": True, "firewall": True}, "root"), ({}, "")],
)  # fmt: skip
def test_required_root(required: dict[str, bool], name: str) -> None:
    required = {**REQUIRED, **required}
    found = findings(
        required=required, can_become_root=False, no_root_because="sudo is not installed"
    )
    assert [p["what"].split(" is ")[0] for p in found["problems"]] == ([name] if name else [])
    assert all("sudo is not installed" in problem["what"] for problem in found["problems"])
    assert findings(required=required) == NOTHING


def test_a_rejected_password_is_a_problem_whatever_is_required() -> None:
    assert len(findings(can_become_root=False, wrong_password=True)["problems"]) == 1


@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 1), ({"connection": "local"}, 0), ({"only_account": True, "prefix_writable": False}, 0)],
)
def test_a_password_that_sudo_needs_is_asked_for_before_anything_is_changed(
    changes: dict[str, Any], count: int, said: Said
) -> None:
    facts = {"can_become_root": False, "asks_password": True, "connection": "ssh", **changes}
    problems = findings(**facts)["problems"]
    assert len(problems) == count
    for problem in problems:
        said(f"{problem['what']}; {problem['hint']}")


DEFAULTS = (  # as printed by sshd -T
    "pubkeyauthentication yes", "authenticationmethods any",
    "authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "groups", "refused"),
    [
        ([], ["ftcluster"], False),
        (["allowusers ops root"], ["ftcluster"], True),  # the form of releases that print one line
        (["allowusers ops", "allowusers ft*"], ["ftcluster"], False),
        (["allowusers ops ftcluster@10.0.0.*"], ["ftcluster"], False),
        (["allowusers !ftcluster *"], ["ftcluster"], True),
        (["allowgroups ssh-users"], ["ftcluster"], True),
        (["allowgroups ssh-users"], ["ftcluster", "ssh-users"], False),
        (["denyusers ftcluster"], ["ftcluster"], True),
        (["denyusers ftcluster@10.9.*"], ["ftcluster"], False),
        (["denygroups ft*", "allowusers *"], ["ftcluster"], True),
        # OpenSSH's defaults, and settings of sites that keep keys elsewhere or require two factors
        ([*DEFAULTS], ["ftcluster"], False),
        (["authorizedkeysfile /etc/ssh/keys/%u"], ["ftcluster"], True),
        (["authorizedkeysfile none"], ["ftcluster"], True),
        (["authorizedkeysfile /etc/ssh/keys/%u %h/.ssh/authorized_keys"], ["ftcluster"], False),
        (["authorizedkeysfile /var/lib/%u/.ssh/authorized_keys"], ["ftcluster"], False),
        (["pubkeyauthentication no"], ["ftcluster"], True),
        (["authenticationmethods publickey,keyboard-interactive"], ["ftcluster"], True),
        (["authenticationmethods gssapi-with-mic publickey"], ["ftcluster"], False),
    ],
)
def test_an_sshd_that_keeps_the_account_out(
    rules: list[str], groups: list[str], refused: bool, said: Said
) -> None:
    place = "/etc/ssh/sshd_config.d/10-site.conf:3:"
    lines = [f"{place}{rule[0].upper()}{rule[1:]}" for rule in rules]
    sshd = {"rules": rules, "lines": [*lines, "/etc/ssh/sshd_config:9:#"], "groups": groups}
    found = findings(rank_user="ftcluster", sshd=sshd)
    assert bool(found["problems"]) == refused
    for problem in found["problems"]:
        assert place in problem["what"]
        said(f"{problem['what']}; {problem['hint']}")
    assert findings(rank_user="", sshd=sshd) == NOTHING  # without an account, the login user trains


CLOSED, USUAL = ["29500-29999", "1024-65535"], ["29500-29999", "32768-60999"]


@pytest.mark.parametrize(
    ("port", "closed", "known", "kind"),
    [
        (8080, CLOSED, [22], "problems"),  # somebody must have chosen this port
        (8080, CLOSED, [22, 8080], ""),
        (8080, CLOSED, ["8000-8100"], ""),
        (8080, USUAL, [], ""),
        (40001, USUAL, [22], "notices"),
        (40001, [], [], ""),
    ],
)
def test_services_that_the_firewall_closes(
    port: int, closed: list[str], known: list[Any], kind: str, said: Said
) -> None:
    found = findings(closed, known, services=[{"port": port, "user": "www-data"}])
    assert [name for name, ones in found.items() if ones] == ([kind] if kind else [])
    for one in found.get(kind, []):
        said(f"{one['what']}; {one['hint']}")
