"""The pages' playbooks can be pasted into an empty folder.

tests/cluster/hosts/test_examples.py runs them.
"""

from pathlib import Path

import pytest

from tests import ops_page
from tests.collection import install
from tests.ops_page import options_of

EXAMPLES = ops_page.read_examples()


def test_every_entry_point_has_one() -> None:
    roles = {example.role for example in EXAMPLES}
    assert {(example.role, example.entry) for example in EXAMPLES} == {
        (role, entry) for role in roles for entry in options_of(role)
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_it_names_roles_and_variables_that_there_are(example: ops_page.Example) -> None:
    uses = ops_page.roles_used(example.playbook)
    assert (example.role, example.entry) in [(use.role, use.entry) for use in uses]
    for use in uses:
        entries = options_of(use.role)
        assert use.entry in entries
        options = entries[use.entry]
        known = {name for each in entries.values() for name in each}
        assert not set(use.variables) - known, f"not in {use.role}'s argument_specs"
        required = {name for name, option in options.items() if option.get("required")}
        assert not required - set(use.variables), f"{use.role} needs these"


def test_all_pass_the_syntax_check_in_an_empty_folder(tmp_path: Path) -> None:
    installed = install(tmp_path)
    paths = [tmp_path / f"{example}.yml" for example in EXAMPLES]
    for path, example in zip(paths, EXAMPLES, strict=True):
        path.write_text(example.playbook)
    shown = installed.run(
        "ansible-playbook", "--syntax-check", "-i", "a,", *(str(path) for path in paths)
    )
    assert shown.count("playbook: ") == len(paths)
