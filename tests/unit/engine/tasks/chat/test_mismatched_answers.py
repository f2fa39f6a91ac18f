"""The pairs of a prompt and another prompt's answer."""

import pytest

from ftcluster_train.engine.tasks.chat.mismatched_answers import JudgedAnswer, with_partners


def row(prompt: str, answer: str) -> JudgedAnswer:
    tokens = [ord(letter) for letter in prompt + answer]
    return JudgedAnswer(tokens, list(range(len(prompt), len(tokens))), True)


@pytest.mark.parametrize(
    ("prompts", "pairs"),
    [
        ("abcd", {"a": "D", "b": "A", "c": "B", "d": "C"}),  # TRL's rotation of a batch
        ("ab", {"a": "B", "b": "A"}),
        ("a", {"a": "A"}),
        ("", {}),
    ],
)
def test_each_prompt_gets_the_answer_before_it(prompts: str, pairs: dict[str, str]) -> None:
    rows = [row(prompt, prompt.upper()) for prompt in prompts]
    found = {}
    for first, partner in with_partners(rows):
        tokens, targets = first.with_answer_of(partner)
        found[chr(tokens[0])] = "".join(chr(tokens[target]) for target in targets)
    assert found == pairs


@pytest.mark.parametrize("prompts", ["aabb", "aaba", "abab", "aabcca", "abba"])
def test_no_prompt_gets_an_answer_to_itself(prompts: str) -> None:
    """Data with a liked and a disliked answer to each prompt have such neighbours."""
    pairs = list(with_partners(row(prompt, prompt.upper()) for prompt in prompts))
    assert sorted(chr(first.tokens[0]) for first, _ in pairs) == sorted(prompts)
    assert all(first.prompt != partner.prompt for first, partner in pairs)


def test_rows_with_a_single_prompt_get_the_answers_of_each_other() -> None:
    rows = [row("a", answer) for answer in "XYZ"]
    assert [partner for _, partner in with_partners(rows)] == [rows[2], rows[0], rows[1]]
