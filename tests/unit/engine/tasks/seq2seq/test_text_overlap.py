"""ROUGE, chrF and BLEU equal rouge-score's and sacrebleu's results."""

import pytest

from ftcluster_train.engine.tasks.seq2seq.text_overlap import overlap

# texts, references, and the results of rouge-score 0.1.2 and sacrebleu 2.6.0 in percent: ROUGE-1,
# -2 and -L, chrF and BLEU. The first texts are from sacrebleu's own page
CASES = {
    "page": (
        ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."],
        ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
        (59.848485, 40.740741, 59.848485, 50.043064, 45.067506),
    ),
    "numbers, signs and entities": (
        ['In 2019-20, prices rose 3.5% to $1,000.50 & "more".', "a-b c.d (e)"],
        ["In 2019-20 prices rose by 3.5 % to $1,000.50 &amp; &quot;more&quot;.", "a - b c. d [e]"],
        (92.857143, 84.615385, 92.857143, 55.259343, 56.166281),
    ),
    "other letters": (
        ["Die Stra\u00dfe ist na\u00df.", "\u00dcberm\u00e4\u00dfig sch\u00f6n"],
        ["Die Strasse ist nass.", "\u00dcberm\u00e4\u00dfig sch\u00f6ne H\u00e4user"],
        (52.222222, 25.0, 52.222222, 59.990813, 11.386051),
    ),
    "a word": (["yes"], ["yes"], (100.0, 0.0, 100.0, 100.0, 0.0)),
    "nothing": (["", "  "], ["some words here to find", "more of them, too"], (0, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_of_the_packages(name: str) -> None:
    texts, references, wanted = CASES[name]
    found = overlap(texts, references)
    assert [*found] == ["rouge1", "rouge2", "rougeL", "chrf", "bleu"]
    assert [*found.values()] == pytest.approx(wanted, abs=1e-6)
