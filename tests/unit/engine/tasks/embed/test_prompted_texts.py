"""The search problem of a validation set, without its texts in memory."""

import random
import tracemalloc

from ftcluster.planning.memory import TEXT_BYTES
from ftcluster_train.engine.tasks.embed.prompted_texts import PromptedText, Search

COUNT = 90_000  # the table of hashes has just grown, so it has the most empty slots


def test_queries_find_their_texts_by_number() -> None:
    draw = random.Random(4)
    rows = [
        [PromptedText("q: ", f"t{draw.randrange(30)}")]
        + [PromptedText("d: ", f"t{draw.randrange(30)}") for _ in range(draw.randrange(1, 5))]
        for _ in range(80)
    ]
    problem = Search("d: ")
    texts = [text for row in rows for text in problem.add(row)]
    assert texts == list(dict.fromkeys(text for row in rows for text in row))
    assert [problem.number_of(text) for text in texts] == [*range(len(texts))]
    about = problem.about
    assert [texts[number] for number in about["queries"]] == list(
        dict.fromkeys(row[0] for row in rows)
    )
    for query, same, relevant in zip(
        about["queries"], about["same"], about["relevant"], strict=True
    ):
        found = {texts[number] for number in relevant}
        assert found == {row[1] for row in rows if row[0] == texts[query]}
        if same >= 0:
            assert texts[same] == PromptedText("d: ", texts[query].text)
    assert about["only_queries"] == about["queries"]  # all queries have their own prompt


def test_without_prompts_a_query_may_be_a_document() -> None:
    problem = Search("")
    for row in (["a", "b"], ["b", "c"], ["d", "d", "e"]):
        problem.add([PromptedText("", text) for text in row])
    assert problem.about == {
        "queries": [0, 1, 3], "same": [-1, 1, 3], "relevant": [[1], [2], [3]],
        "only_queries": [0],
    }  # fmt: skip


def test_many_texts_need_the_memory_that_the_plan_states() -> None:
    tracemalloc.start()
    try:
        problem = Search("")
        for begin in range(0, COUNT, 100):
            others = (PromptedText("", f"text {number}") for number in range(begin, begin + 100))
            problem.add([PromptedText("", "query"), PromptedText("", "positive"), *others])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < COUNT * TEXT_BYTES
