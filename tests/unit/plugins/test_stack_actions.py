"""The action plugins that choose and install a stack, without a host."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.ftcluster.cluster.plugins.action import choose_stack, environment
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import (
    Bundle,
    open_bundle,
    write_bundle,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import read_lock
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import (
    megabytes,
    read_progress,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import (
    Lists,
    StacksFileError,
    lists_of,
    read_stacks,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    SPARE_BYTES,
    Wanted,
    Wheelhouse,
    WheelhouseError,
    check,
    finish,
)

from tests.unit.hosts import plugin
from tests.unit.wheels import write_wheel

STACKS = """
indexes: {Torch: https://cpu}
warnings: {}
stacks:
  native:
    {state: default, python: ["3.11", "3.14"], packages: {torch: "1.0"}, cpu_flags: []}
  old:
    {state: documented, python: ["3.8", "3.11"], packages: {torch: "0.9"}, cpu_flags: []}
"""
ADVISORIES = """
looked_at: "2026-11-26"
advisories:
  CVE-2026-1: {package: torch, affected: "<1.0", allows: much, source: an advisory}
"""
LOCK = "# download 1000000000 bytes, unpacked 3000000000 bytes\ntorch==1.0\n"
WHEEL = "torch-1.0-py3-none-any.whl"
TARGET = Target("3.11", "2.28", "x86_64")
HOST = {
    "pythons": [{"version": "3.11.2", "path": "/usr/bin/python3.11"}], "cpu_flags": [],
    "machine": "x86_64", "libc": "glibc 2.36", "prefix": "/opt/ftcluster",
    "free_bytes": 9 * 10**9, "stacks": [],
}  # fmt: skip
Act = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the role's files: a stack with a lock and a stack without."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "stacks.yml").write_text(STACKS)
    (folder / "advisories.yml").write_text(ADVISORIES)
    (folder / "native.txt").write_text(LOCK)
    (folder / "native-cuda.txt").write_text("nvidia-x==1.0\n")
    return folder


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    path = tmp_path / "house"
    write_wheel(path, "torch", "1.0")
    return Wheelhouse(path, check(path, Wanted("x", "torch==1.0", allow_unverified=True), "3.11"))


# --- the lists of a stack


def test_the_lists_of_a_stack_with_a_lock(folder: Path, tmp_path: Path) -> None:
    lists = lists_of(folder, read_stacks(folder), "native", tmp_path / "cache")
    assert lists == Lists(folder / "native.txt", folder / "native-cuda.txt")
    assert lists.wanted == Wanted("native", LOCK, "nvidia-x==1.0\n")
    assert not (tmp_path / "cache").exists()
    (folder / "native-cuda.txt").unlink()
    assert lists_of(folder, read_stacks(folder), "native", tmp_path / "cache").more is None
    # without a lock, the list is written
    lists = lists_of(folder, read_stacks(folder), "old", tmp_path / "cache")
    assert lists.resolve
    pins = read_lock(lists.wanted.lock, "3.11")
    assert {"uv", "torch"} <= pins.keys()
    assert pins["torch"].version == "0.9"


def test_lists_that_cannot_be_read_or_written_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StacksFileError, match="taken: File exists"):
        lists_of(folder, read_stacks(folder), "old", tmp_path / "taken")
    with pytest.raises(StacksFileError, match=r"none\.txt: No such file"):
        _ = Lists(folder / "none.txt").wanted
    (folder / "stacks.yml").write_text("{")
    with pytest.raises(StacksFileError, match=r"files/stacks\.yml: "):
        read_stacks(folder)
    with pytest.raises(StacksFileError, match=r"none/stacks\.yml: "):
        read_stacks(folder / "none")


# --- choosing


@pytest.fixture
def choose(folder: Path, tmp_path: Path) -> Act:
    def act(**arguments: Any) -> dict[str, Any]:
        given = {
            "folder": str(folder), "cache": str(tmp_path / "cache"), "allow_unverified": True,
            **arguments,
        }  # fmt: skip
        result = plugin(choose_stack, given).run(None, {})
        assert not result["changed"]
        found: dict[str, Any] = result["choice"]
        return found

    return act


def test_a_choice_tells_of_known_vulnerabilities(choose: Act, folder: Path) -> None:
    said = [one for one in choose(name="old", hosts={"a": HOST})["notices"] if "CVE-" in one]
    assert len(said) == 1
    assert all(word in said[0] for word in ("CVE-2026-1", "torch 0.9", "2026-11-26"))
    (folder / "advisories.yml").unlink()
    with pytest.raises(AnsibleActionFail, match=r"advisories\.yml: "):
        choose(hosts={"a": HOST})


def test_all_that_the_role_needs_of_a_choice(choose: Act, folder: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((LOCK + "nvidia-x==1.0\n").encode()).hexdigest()[:12]
    assert choose(hosts={"a": HOST}) == {
        "stack": "native", "why": "it is the default", "pythons": {"a": "/usr/bin/python3.11"},
        "problems": {"a": []}, "notices": [], "asked": ["", ""], "folder": f"native-{digest}",
        "requirements": str(folder / "native.txt"),
        "more_requirements": str(folder / "native-cuda.txt"), "resolve": False,
        "packages": {"torch": "1.0"}, "indexes": {"Torch": "https://cpu"}, "wheelhouse": "",
    }  # fmt: skip
    found = choose(name="old")
    assert found["requirements"] == str(tmp_path / "cache" / "old.txt")
    assert (found["more_requirements"], found["resolve"]) == ("", True)


def test_a_host_without_space_is_told_before_anything_is_downloaded(choose: Act) -> None:
    needed = 4 * 10**9 + SPARE_BYTES
    assert choose(hosts={"a": {**HOST, "free_bytes": needed}})["problems"] == {"a": []}
    found = choose(hosts={"a": HOST, "b": {**HOST, "free_bytes": needed - 1}})
    assert found["problems"]["a"] == []
    assert found["problems"]["b"][0]["what"].startswith(
        "only 4,099,999,999 bytes are free at /opt/ftcluster, but stack"
    )
    # an installed stack needs no space
    there = {"stacks": [choose()["folder"]], "free_bytes": 0}
    assert choose(hosts={"a": {**HOST, **there}, "b": {}})["problems"] == {"a": [], "b": []}


def test_a_source_that_gives_nothing_is_a_problem_of_the_first_host_that_needs_it(
    choose: Act, folder: Path
) -> None:
    with (folder / "native.txt").open("a") as lock:
        lock.write("tool==1.0\n")
    name = choose()["folder"]
    hosts = {"a": {**HOST, "stacks": [name]}, "b": HOST, "c": HOST, "d": {}}
    nobody = {"index_url": "https://127.0.0.1:1/simple", "find_links": [], "indexes": {}}
    problems = choose(hosts=hosts, sources=nobody)["problems"]
    assert {host: len(found) for host, found in problems.items()} == {
        "a": 0,
        "b": 1,
        "c": 0,
        "d": 0,
    }
    assert "the control node cannot download the wheels" in problems["b"][0]["what"]
    # a folder has the wheels; and without `sources` nothing is downloaded
    write_wheel(folder.parent / "links", "tool", "1.0")
    given = {**nobody, "find_links": [str(folder.parent / "links")]}
    assert not any(choose(hosts=hosts, sources=given)["problems"].values())
    assert not any(choose(hosts=hosts)["problems"].values())


@pytest.fixture
def bundle(tmp_path: Path, house: Wheelhouse) -> Path:
    path = tmp_path / "my.ftbundle"
    digest = Wanted("native", LOCK, "nvidia-x==1.0\n").digest
    write_bundle(Bundle("native", digest, TARGET, house), path)
    return path


def test_a_bundle_is_unpacked_and_needs_its_own_space(
    choose: Act, bundle: Path, house: Wheelhouse
) -> None:
    found = choose(bundle=str(bundle), hosts={"a": {**HOST, "free_bytes": house.host_bytes}})
    assert found["problems"] == {"a": []}
    assert found["asked"] == ["", str(bundle)]
    assert (Path(found["wheelhouse"]) / WHEEL).is_file()


def test_a_bundle_is_held_against_the_lock_before_anything_is_changed(
    choose: Act, bundle: Path, folder: Path
) -> None:
    with pytest.raises(AnsibleActionFail, match=f"does not match the lock:\n{WHEEL} has no hash"):
        choose(bundle=str(bundle), allow_unverified=False)
    (folder / "native.txt").write_text(LOCK.replace("torch==1.0", "torch==1.1"))
    with pytest.raises(
        AnsibleActionFail, match="was made for another version of ftcluster: the digest"
    ):
        choose(bundle=str(bundle))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "old", "allow_unverified": False}, "stack old has no lock with the hashes"),
        ({"name": "none"}, "there is no stack none; choose one of auto, native, old"),
        ({"name": "auto", "hosts": {"a": {**HOST, "pythons": [{"version": "3.9.2", "path": ""}]}}},
         "no stack fits all hosts: not native, because of a"),
        ({"bundle": "/none.ftbundle"}, "/none.ftbundle: No such file"),
        ({"folder": "/none"}, "/none/stacks.yml: "),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_told_without_a_traceback(
    choose: Act, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(AnsibleActionFail, match=words):
        choose(**arguments)


# --- installing


class Host:
    """A host with or without an environment that installs or rejects what it receives."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "digest": "", "python_version": "3.11", "glibc": "2.36", "machine": "x86_64",
            "free_bytes": 10**12,
        }  # fmt: skip
        self.answer: dict[str, Any] = {"changed": True}
        self.installed: list[dict[str, Any]] = []
        self.sent: list[str] = []

    def execute(self, _name: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "from_action" not in arguments:
            return self.state
        self.installed.append(arguments["from_action"])
        return self.answer


@pytest.fixture
def there() -> Host:
    return Host()


@pytest.fixture
def install(folder: Path, there: Host, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch) -> Act:
    """Run the action on this host; the package index returns `house`."""

    def push(
        _action: object,
        files: list[tuple[Path, str]],
        _folder: str,
        on_bytes: Callable[[int], None],
        hashed: bool,
    ) -> None:
        assert not hashed  # the hashes of the wheelhouse are sent
        on_bytes(len(files))
        there.sent += [name for _, name in files]

    def get_wheels(*_: object) -> Wheelhouse:
        return house

    monkeypatch.setattr(environment, "push_files", push)
    monkeypatch.setattr(environment, "get_wheels", get_wheels)

    def act(check: bool = False, **arguments: Any) -> dict[str, Any]:
        given = {
            "path": "/opt/x", "requirements": str(folder / "native.txt"), "allow_unverified": True,
            **arguments,
        }  # fmt: skip
        action = plugin(environment, given, check)
        monkeypatch.setattr(action, "_execute_module", there.execute)
        result: dict[str, Any] = action.run(None, {"inventory_hostname": "n1"})
        return result

    return act


def test_each_step_of_an_installation_is_reported(
    install: Act, house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    reports = [read_progress(line) for line in capsys.readouterr().out.splitlines()]
    [wheel] = house.wheels.values()
    assert reports == [
        ("n1", f"sending packages: 0 MB of {megabytes(wheel.size)}"),
        ("n1", f"verifying packages: {megabytes(wheel.size)}"),
        ("n1", f"installing packages: {megabytes(wheel.unpacked)}"),
    ]


def test_nothing_is_installed_if_a_host_receives_another_wheel(
    install: Act, there: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    there.answer = {"failed": True, "msg": "tool.whl arrived with another sha256"}
    assert install() == there.answer
    assert [arguments["step"] for arguments in there.installed] == ["verify"]
    assert "installing" not in capsys.readouterr().out


def test_wheels_are_sent_with_their_hashes(install: Act, there: Host, house: Wheelhouse) -> None:
    assert install() == {"changed": True, "notices": []}
    assert there.sent == [WHEEL]
    assert [arguments["step"] for arguments in there.installed] == ["verify", "install"]
    arguments = there.installed[1]
    assert arguments["sha256"] == house.sha256
    assert arguments["digest"] == Wanted("native", LOCK).digest
    assert arguments["staging"].startswith("/opt/x.staging-")


def test_nothing_is_downloaded_where_it_is_there_or_only_asked(install: Act, there: Host) -> None:
    assert install(check=True) == {"changed": True}
    there.state["digest"] = Wanted("native", LOCK).digest
    assert install() == {"changed": False}
    assert install(more_requirements="/dev/null") == {"changed": False}
    assert there.sent == there.installed == []


def test_sources_and_target_are_those_that_were_given(
    install: Act, folder: Path, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Any, ...]] = []

    def get_wheels(*given: Any) -> Wheelhouse:
        asked.append(given)
        return Wheelhouse(house.folder, house.wheels, ("it is large",))

    monkeypatch.setattr(environment, "get_wheels", get_wheels)
    done = install(
        more_requirements=str(folder / "native-cuda.txt"), resolve=True, index_url="https://a",
        find_links=["/b"], indexes={"Torch_X": "https://c", "other": ""}, cache=str(tmp_path),
    )  # fmt: skip
    assert [
        (
            Wanted("native", LOCK, "nvidia-x==1.0\n", True, True),
            Target("3.11", "2.36", "x86_64"),
            Sources("https://a", ("/b",), {"torch-x": "https://c"}),
            tmp_path,
        )
    ] == [arguments[:4] for arguments in asked]
    assert done["notices"] == ["it is large"]


def test_a_host_without_glibc_gets_nothing(install: Act, there: Host, house: Wheelhouse) -> None:
    there.state["glibc"] = ""
    with pytest.raises(AnsibleActionFail, match="C library is not glibc"):
        install()
    # nor is anything sent without enough space
    there.state.update(glibc="2.36")
    there.state["free_bytes"] = house.host_bytes - 1
    with pytest.raises(
        AnsibleActionFail, match=r"9 bytes are free at /opt/x, but [\d,]+0 bytes are needed"
    ):
        install()
    assert there.sent == []


def test_wheels_that_cannot_be_had_are_told(
    install: Act, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise WheelhouseError("native: no index answers")

    monkeypatch.setattr(environment, "get_wheels", refuse)
    with pytest.raises(AnsibleActionFail, match=r"^native: no index answers"):
        install()
    assert there.sent == []


def test_the_wheels_of_a_bundle_are_sent_without_an_index(
    install: Act, there: Host, house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(environment, "get_wheels")
    target = tmp_path / "opened"
    shutil.copytree(house.folder, tmp_path / "scratch")
    finish(tmp_path / "scratch", Wheelhouse(target, house.wheels))
    there.state["glibc"] = ""  # this was checked when the stack was chosen
    install(wheelhouse=str(target))
    assert there.sent == [WHEEL]
    (target / WHEEL).unlink()
    with pytest.raises(AnsibleActionFail, match=f"^{target} is incomplete: a wheel is missing"):
        install(wheelhouse=str(target))


def test_a_folder_that_the_user_names_is_never_removed(
    install: Act, there: Host, bundle: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    ours = open_bundle(bundle, cache).house.folder
    theirs = tmp_path / "theirs"
    shutil.copytree(ours, theirs)
    (theirs / "a thesis.txt").write_text("years of work")
    in_cache = cache / "theirs"  # even if the user names this folder as the cache
    shutil.copytree(theirs, in_cache)
    for folder in (ours, theirs, in_cache):
        content = (folder / WHEEL).read_bytes()
        (folder / WHEEL).write_bytes(bytes(len(content)))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(AnsibleActionFail, match=f"{WHEEL} has changed since its download") as e:
            install(wheelhouse=str(folder), cache=str(cache))
        if folder == ours:  # made again from the bundle
            assert not folder.exists()
            assert "was removed, nothing was sent" in str(e.value)
        else:
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
            assert f"replace these files of {folder}, or name another" in str(e.value)
    assert there.sent == []


def test_a_list_of_wheels_does_not_lead_out_of_its_folder(
    install: Act, there: Host, house: Wheelhouse, tmp_path: Path
) -> None:
    shutil.copytree(house.folder, tmp_path / "out" / "of")
    (tmp_path / "named").mkdir()
    wheels = {f"../out/of/{name}": vars(wheel) for name, wheel in house.wheels.items()}
    listed = json.dumps({"wheels": wheels, "notices": []})
    (tmp_path / "named" / "wheels.json").write_text(listed)
    with pytest.raises(AnsibleActionFail, match="is incomplete"):
        install(wheelhouse=str(tmp_path / "named"))
    assert there.sent == []


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        ("torch==1.0\n", f"{WHEEL} has no hash in the list of versions"),
        (f"torch==1.0 --hash=sha256:{'0' * 64}\n", f"{WHEEL}, .+ is not in the list of versions"),
    ],
)
def test_wheels_that_are_not_locked_are_not_sent(
    install: Act, there: Host, folder: Path, lock: str, words: str
) -> None:
    (folder / "native.txt").write_text(lock)
    with pytest.raises(AnsibleActionFail, match=words):
        install(allow_unverified=False)
    assert there.sent == []


def test_a_layer_is_made_of_the_wheels_that_are_given(
    install: Act, there: Host, house: Wheelhouse
) -> None:
    path = house.files[0]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert install(layer="node", wheels=[str(path)])["changed"]
    assert there.installed[0]["sha256"] == {WHEEL: digest}
    there.state["digest"] = digest
    assert install(layer="node", wheels=[str(path)]) == {"changed": False}


def test_a_layers_wheel_with_another_hash_is_refused(
    install: Act, there: Host, house: Wheelhouse
) -> None:
    path = house.files[0]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("ab") as wheel:
        wheel.write(b"theirs")
    with pytest.raises(AnsibleActionFail, match=f"{digest} is required"):
        install(layer="node", wheels=[str(path)], wheels_sha256=[digest])
    assert there.sent == []
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert install(layer="node", wheels=[str(path)], wheels_sha256=[digest.upper()])["changed"]
