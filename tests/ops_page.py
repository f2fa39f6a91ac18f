"""The playbooks of docs/single-roles.md and the roles' pages, and the text of docs/ops.md."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tests.programs import ROOT

COLLECTION = "ftcluster.cluster."
PAGE = ROOT / "docs/ops.md"
SINGLE_ROLES = ROOT / "docs/single-roles.md"
VARIABLES = ROOT / "docs/variables.md"

_FILE = re.compile(r"<!-- file: (\S+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: the language that its fence names.
        above: the last line before it that is not empty.
        text: the text of the block, with a final line end.
    """

    language: str
    above: str
    text: str


@dataclass(frozen=True)
class Playbook:
    """A playbook on the page."""

    title: str
    text: str
    files: dict[str, str]


@dataclass(frozen=True)
class Example:
    """A playbook on a role's page, for one of the role's entry points."""

    role: str
    entry: str
    playbook: str

    def __str__(self) -> str:
        return f"{self.role}-{self.entry}"


@dataclass(frozen=True)
class RoleUse:
    """A use of a role: its short name, its entry point, and its variables."""

    role: str
    entry: str
    variables: dict[str, Any]


def blocks(page: str) -> list[Block]:
    """Return every fenced block of a Markdown text in order."""
    found: list[Block] = []
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        above = page[end : match.start()].strip().rpartition("\n")[2]
        found.append(Block(match[1], above, match[2]))
        end = match.end()
    return found


def playbooks(page: str) -> list[Playbook]:
    """Return the page's playbooks in order, each with the files that it names."""
    found = blocks(page)
    files = {mark[1]: block.text for block in found if (mark := _FILE.fullmatch(block.above))}
    return [
        Playbook(block.above, block.text, {n: t for n, t in files.items() if n in block.text})
        for block in found
        if block.language == "yaml"
    ]


def roles_used(playbook: str) -> list[RoleUse]:
    """Return the collection's roles that a playbook runs, in `roles` and in tasks."""
    # the remaining roles are Ansible's own
    plays = [{**play, "vars": {}} for play in yaml.safe_load(playbook)]
    return list(uses(plays, {}))


def undoing(playbook: str) -> str:
    """Return a playbook that removes what a playbook's roles made, as docs/single-roles.md says.

    It runs the roles' entry points `remove` with the same variables, the last role first.
    """
    plays = []
    for play in yaml.safe_load(playbook):
        tasks = [
            {
                "name": f"Remove what {use.role} made",
                "ansible.builtin.import_role": {
                    "name": f"{COLLECTION}{use.role}", "tasks_from": "remove.yml",
                },
                "vars": use.variables,
            }
            for use in reversed([*uses([play], {})])
            if "remove" in options_of(use.role)
        ]  # fmt: skip
        kept = {key: value for key, value in play.items() if key not in ("roles", "tasks")}
        plays.append({**kept, "tasks": tasks})
    return yaml.safe_dump(plays, sort_keys=False)


def examples(role: str, page: str) -> list[Example]:
    """Return the playbooks on a role's page, whose sections are named after entry points."""
    found = []
    for part in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        title = part.partition("\n")[0]
        entry = "main" if title == "Example" else title
        found += [
            Example(role, entry, block.text)
            for block in blocks(part)
            if block.language == "yaml" and title != "Variables"
        ]
    return found


def uses(items: Any, given: Mapping[str, Any]) -> Iterator[RoleUse]:
    """Return the collection's roles that plays or tasks run, also in blocks."""
    for item in items or []:
        has = {**given, **item.get("vars", {})}
        for role in item.get("roles", []):
            entry = {"role": role} if isinstance(role, str) else role
            yield from _role(entry.get("role") or entry["name"], "main", entry.get("vars", {}))
        for part in ("pre_tasks", "tasks", "post_tasks", "block", "rescue", "always"):
            yield from uses(item.get(part), has)
        for verb in ("import_role", "include_role"):
            if used := item.get(f"ansible.builtin.{verb}"):
                entry_point = used.get("tasks_from", "main").removesuffix(".yml")
                yield from _role(used["name"], entry_point, has)


def _role(name: str, entry: str, variables: dict[str, Any]) -> Iterator[RoleUse]:
    if name.startswith(COLLECTION):
        yield RoleUse(name.removeprefix(COLLECTION), entry, variables)


def options_of(role: str) -> dict[str, dict[str, Any]]:
    """Return the variables of each entry point of a role."""
    path = ROOT / f"roles/{role}/meta/argument_specs.yml"
    specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    return {entry: spec["options"] for entry, spec in specs.items()}


def commands(page: str, first: str) -> str:
    """Return the page's shell commands from the first match to the end of its section."""
    section = page[page.index(f"    {first}") :].partition("\n## ")[0]
    return "".join(f"{line[4:]}\n" for line in section.splitlines() if line.startswith("    "))


def read_page() -> str:
    """Return the text of docs/ops.md."""
    return PAGE.read_text(encoding="utf-8")


def read_single_roles() -> str:
    """Return the text of docs/single-roles.md."""
    return SINGLE_ROLES.read_text(encoding="utf-8")


def read_examples() -> list[Example]:
    """Return the playbooks on all roles' pages."""
    return [
        example
        for page in sorted((ROOT / "roles").glob("*/README.md"))
        for example in examples(page.parent.name, page.read_text(encoding="utf-8"))
    ]
