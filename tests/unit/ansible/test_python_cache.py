"""No other account executes compiled Python that the training account can write."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.programs import ROOT


def loaded(path: str) -> Any:
    return DataLoader().load_from_file(str(ROOT / path), trusted_as_template=True)


def templated(what: Any, **variables: Any) -> Any:
    return Templar(loader=DataLoader(), variables=variables).template(what)


@pytest.mark.parametrize(("user", "cache"), [("ftcluster", "/opt/ftcluster/cache"), ("", None)])
def test_the_playbooks_of_a_run(user: str, cache: str | None) -> None:
    variables = loaded("playbooks/vars/training.yml")
    stack = "/opt/ftcluster/current"
    found = templated(variables["train_environment"], train_stack=stack, train_rank_user=user)
    assert found.get("PYTHONPYCACHEPREFIX") == cache


@pytest.mark.parametrize(("user", "cache"), [("ftcluster", "/opt/ftcluster/cache"), ("", None)])
def test_verify(user: str, cache: str | None) -> None:
    (task, *_) = loaded("roles/verify/tasks/collect.yml")
    words = task["environment"]["PYTHONPYCACHEPREFIX"]
    found = templated(words, verify_user=user, verify_cache="/opt/ftcluster/cache", omit="left out")
    assert found == (cache or "left out")


def tasks_of(found: Any) -> Iterator[dict[str, Any]]:
    """Yield the plays, blocks and tasks of a file."""
    for one in found if isinstance(found, list) else []:
        if isinstance(one, dict):
            yield one
            for name in ("tasks", "pre_tasks", "block", "rescue", "always"):
                yield from tasks_of(one.get(name))


def test_no_task_of_root_has_such_a_cache() -> None:
    """Check `become_user: root`, and `become: true` without a user, which means root."""
    files = [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    tasks = [(file, one) for file in files for one in tasks_of(loaded(str(file)))]
    cached = [
        (file, one)
        for file, one in tasks
        if re.search("train_environment|PYTHONPYCACHEPREFIX", json.dumps(one.get("environment")))
    ]
    assert len(cached) > 2
    wrong = [
        (file, one["name"])
        for file, one in cached
        if one.get("become_user") == "root" or (one.get("become") and "become_user" not in one)
    ]
    assert wrong == []
