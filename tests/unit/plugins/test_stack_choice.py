from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stack_choice import (
    Choice,
    ChoiceError,
    StackRequest,
    choose,
    python_for,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import read_stacks

FILES = Path(__file__).parents[3] / "roles/torch_stack/files"
REAL = read_stacks(FILES)
WARNINGS = {"old": {"text": "it is old", "source": "its page"}}
SAPPHIRE = ["avx2", "avx512f", "amx_tile"]


def stack(state: str, first: str, last: str, flag: str = "avx512f", **more: Any) -> dict[str, Any]:
    return {
        "state": state, "python": [first, last], "cpu_flags": [flag],
        "packages": {"torch": "1.0", "ipex": "1.1"}, **more,
    }  # fmt: skip


STACKS = {
    "native": stack("default", "3.11", "3.14", "avx2"),
    "intel": stack("supported", "3.10", "3.13", warnings=["old"]),
    "listed": stack("documented", "3.8", "3.11"),
    "yanked": stack("documented", "3.8", "3.12", yanked=["ipex"]),
    "ancient": stack("documented", "3.6", "3.9"),
    "bare": {**stack("supported", "3.10", "3.13", unverified=["ccl"]), "packages": {"ccl": "1.2"}},
}


def host(*pythons: str, flags: list[str] = SAPPHIRE, **facts: Any) -> dict[str, Any]:
    """Return facts of a host; the first version is the Python that Ansible uses."""
    return {
        "pythons": [{"version": text, "path": f"/usr/bin/python{text}"} for text in pythons],
        "cpu_flags": flags, "cpu_model": "My Xeon", "machine": "x86_64", "libc": "glibc 2.36",
        **facts,
    }  # fmt: skip


def chosen(wanted: StackRequest, **hosts: dict[str, Any]) -> Choice:
    choice: Choice = choose(STACKS, WARNINGS, wanted, hosts)
    assert choice.problems.keys() == choice.pythons.keys() == hosts.keys()
    return choice


def refused(wanted: StackRequest, **hosts: dict[str, Any]) -> str:
    with pytest.raises(ChoiceError) as caught:
        chosen(wanted, **hosts)
    return str(caught.value)


def bundle(name: str = "native", python: str = "3.11", glibc: str = "2.28") -> Any:
    return SimpleNamespace(stack=name, target=Target(python, glibc, "x86_64"))


# --- the choice and its reason

OLD = host("3.10.12")
NEW = host("3.11.2")
WITHOUT_512 = host("3.11.2", flags=["avx2"])
BOTH = host("3.10.12", "3.12.1")


@pytest.mark.parametrize(
    ("wanted", "hosts", "name", "why"),
    [
        ("", [], "native", "it is the default"),
        ("", [NEW], "native", "it is the default"),
        # the stack has a problem, because the request names nothing
        ("", [OLD], "native", "it is the default"),
        ("intel", [NEW], "intel", "you requested it"),
        ("auto", [], "native", "it is the default"),
        ("auto", [{}], "native", "it is the default"),
        ("auto", [NEW], "native", "it is the default"),
        ("auto", [BOTH], "native", "it is the default"),
        ("auto", [WITHOUT_512], "native", "it is the default"),
        ("auto", [OLD], "intel", "it fits every host; not native, because of host0: "),
        ("auto", [NEW, OLD], "intel", "it fits every host; not native, because of host1: "),
        ("auto", [OLD, {}], "intel", "it fits every host; not native, because of host0: "),
    ],
)
def test_the_stack_and_why(wanted: str, hosts: list[dict[str, Any]], name: str, why: str) -> None:
    choice = chosen(StackRequest(wanted), **{f"host{n}": facts for n, facts in enumerate(hosts)})
    assert choice.stack == name
    assert choice.why.startswith(why)
    assert "\n" not in choice.why
    if not why.endswith(": "):
        assert choice.why == why


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ({"a": host("3.9.2")}, ["not native, because of a: stack native needs Python 3.11 to 3.14, "
                                "but the host has 3.9.2", "not intel, because of a: "]),
        ({"a": NEW, "b": host("3.9.2")}, ["because of b: "]),
        ({"a": OLD, "b": WITHOUT_512}, ["not native, because of a: ", "not intel, because of b: "
                                        "stack intel needs a CPU with AVX512"]),
        ({"a": host("3.11.2", flags=[])}, ["stack native needs a CPU with AVX2"]),
    ],
)  # fmt: skip
def test_where_no_stack_fits_all_hosts_each_is_told_with_its_reason(
    hosts: dict[str, Any], words: list[str]
) -> None:
    message = refused(StackRequest("auto"), **hosts)
    assert message.startswith("no stack fits all hosts: ")
    assert all(word in message for word in words)
    assert "listed" not in message  # a documented stack is never chosen automatically


def test_an_unknown_stack_names_those_that_are_there() -> None:
    assert refused(StackRequest("nativ"), a=NEW) == (
        "there is no stack nativ; choose one of auto, native, intel, listed, yanked, ancient, bare"
    )
    # nor is a stack chosen that is too old for the node package
    message = refused(StackRequest("ancient", allow_yanked=True), a=host("3.9.2"))
    assert message.startswith("stack ancient supports Python up to 3.9, but the package that")
    assert "needs 3.10" in message
    assert "ftcluster stacks" in message
    # nor is a newer version's stack replaced silently
    said = refused(StackRequest(present="native-2"), host0=host("3.11.2"))
    assert "native-2" in said
    assert "--stack NAME" in said
    assert chosen(StackRequest("native", present="native-2"), host0=host("3.11.2")).notices


@pytest.mark.parametrize("wanted", [StackRequest("yanked"), StackRequest("", bundle("yanked"))])
def test_releases_that_were_taken_back_need_a_word(wanted: StackRequest) -> None:
    message = refused(wanted, a=NEW)
    assert "stack yanked contains yanked releases (ipex 1.1; most" in message
    assert "--allow-yanked (torch_stack_allow_yanked=true)" in message
    allowed = chosen(
        StackRequest(wanted.stack, wanted.bundle, allow_yanked=True, allow_unverified=True), a=NEW
    )
    assert (allowed.stack, allowed.problems) == ("yanked", {"a": []})


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            StackRequest("listed"),
            "stack listed has no lock with the hashes of its packages, so files from an index",
        ),
        (StackRequest("", bundle("listed")), "stack listed has no lock with the hashes"),
        (StackRequest("bare"), "stack bare has no hash of ccl 1.2, so files from an index"),
    ],
)
def test_packages_without_a_hash_need_a_word(wanted: StackRequest, told: str) -> None:
    message = refused(wanted, a=NEW)
    assert message.startswith(told)
    assert message.endswith("--allow-unverified (torch_stack_allow_unverified=true)")
    assert chosen(
        StackRequest(wanted.stack, wanted.bundle, allow_unverified=True), a=NEW
    ).problems == {"a": []}


def test_the_word_allows_and_does_not_choose() -> None:
    assert chosen(StackRequest("auto", allow_yanked=True), a=NEW).stack == "native"


def test_what_is_worth_knowing_of_a_stack() -> None:
    assert chosen(StackRequest("native")).notices == []
    assert chosen(StackRequest("intel")).notices == ["stack intel: it is old (its page)"]
    auto = chosen(StackRequest("auto")).notices
    assert auto == ["using stack native, because it is the default"]
    (notice,) = chosen(StackRequest("listed", allow_unverified=True)).notices
    assert "stack listed is only documented" in notice


# --- problems of hosts


@pytest.mark.parametrize(
    ("pythons", "used"),
    [
        (["3.11.2"], "3.11.2"),
        (["3.11.2", "3.12.1", "3.13.0"], "3.11.2"),  # Ansible's own Python if it fits
        (["3.9.2", "3.11.2", "3.12.1"], "3.12.1"),  # otherwise the newest Python that fits
        (["3.15.0", "3.12.1", "3.13.0"], "3.13.0"),
        (["3.9.2", "3.13.0", "3.12.1"], "3.13.0"),  # in any order
        (["3.14.0rc2"], ""),
        (["3.10.1", "3.11.0rc1"], ""),
        (["3.9.2", "3.10.1"], ""),
        (["3.15.0"], ""),
    ],
)
def test_the_python_that_a_stack_is_made_from(pythons: list[str], used: str) -> None:
    path, problems = python_for(STACKS["native"], host(*pythons), "native")
    assert path == (f"/usr/bin/python{used}" if used else "")
    assert len(problems) == (not used)


@pytest.mark.parametrize(
    ("chosen_stack", "needed"),
    [(STACKS["native"], "3.11 to 3.14"), (STACKS["listed"], "3.10 to 3.11"),
     (stack("documented", "3.7", "3.10"), "3.10")],
)  # fmt: skip
def test_a_host_without_a_python_that_fits(chosen_stack: dict[str, Any], needed: str) -> None:
    _, [problem] = python_for(chosen_stack, host("3.9.2", "3.9.1"), "one")
    assert problem["what"] == f"stack one needs Python {needed}, but the host has 3.9.2, 3.9.1"
    assert problem["hint"].endswith("ftcluster stacks --python 3.9")


def test_what_to_do_where_the_pythons_are_too_old_or_too_new() -> None:
    playbook, named = "ftcluster.cluster.python", "-e ftcluster_python=/opt/python3.11/bin/"
    _, [old] = python_for(STACKS["listed"], host("3.7.2"), "listed")
    assert playbook in old["hint"]
    assert named in old["hint"]
    _, [new] = python_for(STACKS["listed"], host("3.13.5"), "listed")
    assert new["what"] == "stack listed needs Python 3.10 to 3.11, but the host has 3.13.5"
    assert playbook not in new["hint"]
    assert named in new["hint"]
    _, [bundled] = python_for(STACKS["native"], host("3.13.5"), "native", bundle())
    assert bundled["what"] == "the bundle is for Python 3.11, but the host has 3.13.5"
    assert named in bundled["hint"]


def test_a_cpu_without_what_a_stack_needs() -> None:
    [problem] = chosen(StackRequest("intel"), a=WITHOUT_512).problems["a"]
    assert problem["what"] == "stack intel needs a CPU with AVX512, but the host has My Xeon"
    assert chosen(StackRequest("native"), a=WITHOUT_512).problems["a"] == []
    # a host without facts has no problem
    choice = chosen(StackRequest("intel"), a={}, b=NEW)
    assert choice.problems == {"a": [], "b": []}
    assert choice.pythons == {"a": "", "b": "/usr/bin/python3.11.2"}
    refusal = {"what": "ftcluster_python=/x: is not an executable file", "hint": "another"}
    given = host("3.11.2", python_refused=refusal)
    assert python_for(STACKS["native"], given, "native") == ("", [refusal])
    # all problems of a host are reported
    facts = host("3.9.2", flags=[], machine="aarch64", libc="glibc 2.17")
    problems = chosen(StackRequest("", bundle()), a=facts).problems["a"]
    assert len(problems) == 4
    assert all(problem["hint"] for problem in problems)


# --- bundles


def test_a_bundle_says_which_stack() -> None:
    for name in ("", "auto", "intel"):
        choice = chosen(StackRequest(name, bundle("intel")), a=NEW)
        assert (choice.stack, choice.why) == ("intel", "the bundle contains it")
    other = chosen(StackRequest(bundle=bundle("native"), present="intel"), host0=host("3.11.2"))
    assert other.notices[0] == "stack native replaces intel, because the bundle contains it"
    message = refused(StackRequest("native", bundle("intel")), a=NEW)
    assert message.startswith("the bundle contains stack intel, not native; ")
    assert "ftcluster bundle --stack native" in message
    assert "stack intel-9, which this version of ftcluster lacks" in refused(
        StackRequest("", bundle("intel-9")), a=NEW
    )
    choice = chosen(StackRequest("", bundle(python="3.11")), a=host("3.12.1", "3.11.2"))
    assert choice.pythons == {"a": "/usr/bin/python3.11.2"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (host("3.11.2"), ""),
        (host("3.9.2", "3.11.2"), ""),
        (host("3.11.2", libc="glibc 2.28"), ""),
        (host("3.11.2", libc="glibc 2.100"), ""),
        ({}, ""),
        (host("3.12.1"), "the bundle is for Python 3.11, but the host has 3.12.1"),
        (host("3.11.2", libc="glibc 2.17"), "the bundle needs glibc 2.28, but the host has 2.17"),
        (host("3.11.2", machine="aarch64"), "the bundle is for x86_64, but the host is aarch64"),
        (host("3.11.2", libc="musl 1.2"), "the bundle needs glibc, but the host has musl 1.2"),
        (host("3.11.2", libc=""), ""),
    ],
)  # fmt: skip
def test_what_hosts_a_bundle_fits(facts: dict[str, Any], words: str) -> None:
    choice = chosen(StackRequest("", bundle()), a=NEW, b=facts)
    assert choice.problems["a"] == []
    assert [problem["what"] for problem in choice.problems["b"]] == ([words] if words else [])


# --- the real stacks


@pytest.mark.parametrize(
    ("pythons", "flags", "name"),
    [
        ("3.11.2", SAPPHIRE, "native"),
        ("3.14.0", ["avx2"], "native"),
        ("3.10.12", SAPPHIRE, "intel-2.8"),
        ("3.10.12", ["avx2"], ""),
        ("3.9.2", SAPPHIRE, ""),
        ("3.11.2", [], ""),
    ],
)
def test_what_auto_takes_of_the_real_ones(pythons: str, flags: list[str], name: str) -> None:
    hosts = {"a": host(pythons, flags=flags), "b": host("3.13.0", "3.12.0")}
    if not name:
        with pytest.raises(ChoiceError, match="no stack fits all hosts: not native"):
            choose(REAL["stacks"], REAL["warnings"], StackRequest("auto"), hosts)
    else:
        choice = choose(REAL["stacks"], REAL["warnings"], StackRequest("auto"), hosts)
        assert (choice.stack, choice.problems) == (name, {"a": [], "b": []})


@pytest.mark.parametrize("name", REAL["stacks"])
def test_each_real_stack_can_be_chosen_or_says_why_not(name: str) -> None:
    wanted, hosts = StackRequest(name, None, True, True), {"a": host("3.10.12", "3.11.2")}
    if REAL["stacks"][name]["python"][1] in ("3.7", "3.9"):
        with pytest.raises(ChoiceError, match=f"stack {name} supports Python up to 3"):
            choose(REAL["stacks"], REAL["warnings"], wanted, hosts)
    else:
        assert choose(REAL["stacks"], REAL["warnings"], wanted, hosts).problems == {"a": []}


@pytest.mark.parametrize(
    ("wanted", "present", "name", "said"),
    [
        ("", "intel", "intel", ["using stack intel, because the cluster uses it"]),
        ("", "native", "native", []),
        ("", "", "native", []),
        ("native", "intel", "native", ["stack native replaces intel, because you requested it"]),
        ("auto", "intel", "native", ["using stack native, because", "stack native replaces intel"]),
        ("intel", "intel", "intel", []),
    ],
)
def test_a_cluster_keeps_its_stack_until_another_one_is_named(
    wanted: str, present: str, name: str, said: list[str]
) -> None:
    choice = chosen(StackRequest(wanted, present=present), host0=host("3.11.2"))
    assert choice.stack == name
    ours = [one for one in choice.notices if "it is old" not in one]
    assert [one.startswith(two) for one, two in zip(ours, said, strict=True)] == [
        True for _ in said
    ]
