from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import role_docs
from scripts.role_docs import markdown, readme, table_row

SPECS: dict[str, Any] = {
    "main": {
        "short_description": "Makes a C(thing)",
        "description": ["Makes it once.", "Needs root."],
        "options": {
            "thing_path": {
                "description": "Where it goes. Not on NFS.",
                "type": "path",
                "required": True,
            },
            "thing_mode": {"description": "How, a|b.", "choices": ["a", "b"], "default": "a"},
            "thing_limits": {
                "description": "What it may take.",
                "type": "list",
                "elements": "dict",
                "default": [{"kind": "memory", "version": "3.11", "bytes": 3000000000}],
                "options": {"kind": {"description": "Of what.", "required": True}},
            },
            "thing_python": {"description": "What makes it."},
        },
    },
    "remove": {"short_description": "Removes it"},
}
META = {
    "galaxy_info": {
        "min_ansible_version": "2.17",
        "platforms": [
            {"name": "Debian", "versions": ["bookworm"]},
            {"name": "EL", "versions": ["9", "10"]},
        ],
    },
    "dependencies": [],
}


EXAMPLE = "- name: Make it\n  hosts: all # of them"


def text_of(**entries: Any) -> str:
    return readme("thing", entries, META, dict.fromkeys(entries, EXAMPLE))


@pytest.mark.parametrize(
    ("ansible", "wanted"),
    [
        ("C(a) V(b) O(c=1) E(d) M(ns.col.m)", "`a` `b` `c=1` `d` `ns.col.m`"),
        ("C(<prefix>/x) under <prefix>", r"`<prefix>/x` under \<prefix>"),
        ("P(ns.col.name#filter) C(a`b)", "`ns.col.name` `` a`b ``"),
        ("2*3 in a_b of _c MAC(x)", r"2\*3 in a_b of \_c MAC(x)"),
    ],
)
def test_markup_becomes_markdown(ansible: str, wanted: str) -> None:
    assert markdown(ansible) == wanted


def test_pipes_and_line_ends_stay_in_their_cell() -> None:
    assert table_row("`a|b`", "c\nd") == r"| `a\|b` | c d |"


def test_every_variable_has_a_row() -> None:
    lines = text_of(**SPECS).splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert rows == [
        "| `thing_path` | path | **required** | Where it goes. Not on NFS. |",
        r"| `thing_mode` | str | `a` | How, a\|b. Choices: `a`, `b`. |",
        "| `thing_limits` | list of dict | below | What it may take. |",
        "| `thing_limits[].kind` | str | **required** | Of what. |",
        "| `thing_python` | str | [computed](defaults/main.yml) | What makes it. |",
    ]
    default = "\n".join(lines).split("```yaml\n")[1].split("```")[0]
    assert default == '- kind: memory\n  version: "3.11"\n  bytes: 3000000000\n'


def test_a_system_that_a_role_was_not_run_on_is_said_to_be_one() -> None:
    said = "Tested on Debian (bookworm). Also supports EL (9, 10), but was not tested there."
    assert said in text_of(**SPECS)


def test_the_example_is_shown_as_it_is() -> None:
    assert text_of(**SPECS).endswith(f"## Example\n\n```yaml\n{EXAMPLE}\n```\n")


def test_without_one_the_shortest_playbook_is_generated() -> None:
    entries = {name: {"short_description": f"C({name})"} for name in ("main", "remove")}
    text = readme("thing", entries, META, {})
    remove, main = (yaml.safe_load(part.split("```")[0]) for part in text.split("```yaml\n")[1:])
    everywhere = {"hosts": "all", "gather_facts": False}
    role = "ftcluster.cluster.thing"
    assert main == [{"name": "main", **everywhere, "roles": [{"role": role}]}]
    task = {
        "name": "remove",
        "ansible.builtin.import_role": {"name": role, "tasks_from": "remove.yml"},
    }
    assert remove == [{"name": "remove", **everywhere, "tasks": [task]}]


@pytest.mark.parametrize(
    ("specs", "examples", "said"),
    [
        (SPECS, {}, "main needs thing_path, so write examples/main.yml"),
        (SPECS, {"main": EXAMPLE, "undo": EXAMPLE}, "examples/undo.yml: there is no entry point"),
        ({"main": {"short_description": "s", "options": {"x": {}}}}, {}, "x has no description"),
    ],
)
def test_incomplete_metadata(specs: Any, examples: dict[str, str], said: str) -> None:
    with pytest.raises(role_docs.SpecError, match=said):
        readme("thing", specs, META, examples)


def test_other_entry_points_say_how_to_call_them() -> None:
    text = text_of(**SPECS)
    assert "### remove\n\nRemoves it.\n\nThis entry point has no variables.\n" in text
    some = {"thing_mode": SPECS["main"]["options"]["thing_mode"]}
    part = {**SPECS["remove"], "options": some}
    only = "Of these variables, this entry point has only: `thing_mode`."
    assert only in text_of(main=SPECS["main"], remove=part)
    same = {**SPECS["remove"], "options": SPECS["main"]["options"]}
    assert "This entry point has the same variables." in text_of(main=SPECS["main"], remove=same)


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    for role in ("one", "two"):
        meta = tmp_path / "roles" / role / "meta"
        meta.mkdir(parents=True)
        (meta / "argument_specs.yml").write_text(yaml.safe_dump({"argument_specs": SPECS}))
        (meta / "main.yml").write_text(yaml.safe_dump(META))
        (meta.parent / "examples").mkdir()
        (meta.parent / "examples/main.yml").write_text(f"---\n{EXAMPLE}\n")
    return tmp_path / "roles"


def test_a_check_writes_nothing_and_names_all(
    roles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert role_docs.main([], roles) == 0
    assert role_docs.main(["--check"], roles) == 0
    capsys.readouterr()
    written = (roles / "one/README.md").read_text()
    (roles / "one/README.md").write_text(written + "more\n")
    (roles / "two/README.md").unlink()
    (roles / "old").mkdir()
    (roles / "old/README.md").write_text(written)
    assert role_docs.main(["--check"], roles) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: roles/{role}/README.md is not up to date; run scripts/role-docs"
        for role in ("old", "one", "two")
    ]
    assert not (roles / "two/README.md").exists()
    assert role_docs.main([], roles) == 0
    assert (roles / "one/README.md").read_text() == written
    assert not (roles / "old/README.md").exists()


def test_a_readme_by_hand_is_left_alone(roles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (roles / "one/README.md").write_text("# mine\n")
    assert role_docs.main([], roles) == 1
    assert "roles/one/README.md was not written by" in capsys.readouterr().err
    assert (roles / "one/README.md").read_text() == "# mine\n"


def test_errors_name_file_and_place(roles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (roles / "one/meta/argument_specs.yml").write_text("argument_specs:\n  main: [\n")
    (roles / "two/meta/argument_specs.yml").write_text("argument_specs: {main: {options: {x: }}}\n")
    assert role_docs.main(["--check"], roles) == 1
    one, two = capsys.readouterr().err.splitlines()
    assert one.startswith("error: roles/one/meta/argument_specs.yml:3: ")
    assert two == "error: roles/two/meta/argument_specs.yml: main has no short_description"
