from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ftcluster.cluster.plugins.filter.switch import switch


@pytest.mark.parametrize(
    ("given", "meant"),
    [(True, "true"), ("yes", "true"), (False, "false"), ("False", "false"),
     (0, "false"), ("required", "required"), (" Required ", "required")],
)  # fmt: skip
def test_words_of_a_switch(given: Any, meant: str) -> None:
    assert switch(given, "ftcluster_root") == meant


@pytest.mark.parametrize("word", ["requird", "", None, "tru"])
def test_a_misspelled_word_switches_nothing_off(word: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"ftcluster_root is '.*'; set it to true, false"):
        switch(word, "ftcluster_root")
