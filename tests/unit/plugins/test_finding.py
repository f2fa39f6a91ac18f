from ansible_collections.ftcluster.cluster.plugins.filter.finding import finding

FOUND = {"host": "node1", "what": "it is slow", "hint": "look at its fans", "kind": "straggler"}


def test_a_finding_is_a_sentence_of_the_parts_that_there_are() -> None:
    assert finding(FOUND) == "node1: it is slow; look at its fans"
    assert finding({**FOUND, "host": ""}) == "it is slow; look at its fans"
    assert finding({**FOUND, "hint": ""}) == "node1: it is slow"
