import yaml

from ftcluster.export.commented_yaml import dump


def test_comments_are_comments_and_all_else_is_read_back() -> None:
    shared = {"cpu": "4"}
    document = {
        "#": 'it\'s of "all": yes',
        "command": ["sh", "-c", "first\n\n  second # not a comment\n"],
        "env": [{"#": "why", "name": "A", "value": "'#': x"}, {"name": "B", "value": "yes"}],
        "limits": shared,
        "requests": shared,
        "long": "word " * 100,
    }
    text = dump([document, {"#1": "next", "a": 1}])
    assert '# it\'s of "all": yes\ncommand:' in text
    assert "- # why\n  name: A" in text
    assert text.endswith("---\n# next\na: 1\n")
    assert "&" not in text
    found, _ = yaml.safe_load_all(text)
    del document["#"], document["env"][0]["#"]  # type: ignore[union-attr, index, arg-type]
    assert found == document
