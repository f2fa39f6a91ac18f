"""Nobody else runs compiled Python that the training account can write."""

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
