"""The report of data shows the tokens that the model gets, and which are target tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import BartConfig, BartForSequenceClassification

from ftcluster_common.protocol.events import is_data
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.row_review import RowReview
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from tests.engine.models import CHAT, SIZES, VOCABULARY, make_tokenizer
from tests.engine.runs import Row, make_whole_job, write_data, write_model

TALK = [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6 w7"}]
SPAN = {"text": ["w8 w9"], "answer_start": [3]}
TASKS: dict[str, tuple[str, Row, str]] = {
    "text-classification": ("bert", {"text": "w5", "label": "good"}, "[CLS] w5 [SEP] -> good"),
    "token-classification": (
        "bert", {"tokens": ["w5", "w6", "w7"], "tags": ["O", "B-A", "I-A"]},
        "[CLS] w5« w6 w7» [SEP] -> A",
    ),
    "question-answering": (
        "bert", {"question": "w5", "context": "w7 w8 w9", "answers": SPAN},
        "[CLS] w5 [SEP] w7« w8 w9» [SEP] -> an answer",
    ),
    "text-ranking": (
        "bert", {"query": "w5", "text": "w6", "label": 1}, "[CLS] w5 [SEP] w6 [SEP] -> 1",
    ),
    "sentence-similarity": (
        "bert", {"query": "w5", "positive": "w6", "negative": "w7"},
        "[CLS] w5 [SEP] -> query|[CLS] w6 [SEP] -> positive|[CLS] w7 [SEP] -> negative",
    ),
    "instruction-tuning": ("gpt2", {"messages": TALK}, "[CLS] w5 [PAD] [CLS] [SEP]« w6 w7 [PAD]»"),
    "preference-tuning": (
        "gpt2", {"prompt": "w5", "chosen": "w6", "rejected": "w7"},
        "[CLS] w5 [PAD] [CLS] [SEP]« w6 [PAD]» -> chosen|"
        "[CLS] w5 [PAD] [CLS] [SEP]« w7 [PAD]» -> rejected",
    ),
}  # fmt: skip


def shown(sample: list[dict[str, Any]]) -> str:
    """Return a sample with its target tokens between « and »."""
    documents = []
    for one in sample:
        text = "".join(f"«{part}»" if learned else part for part, learned in one["parts"])
        documents.append(f"{text} -> {one['label']}" if one["label"] else text)
    return "|".join(documents)


@pytest.mark.parametrize("task", TASKS)
def test_samples_as_the_model_sees_them(tmp_path: Path, task: str) -> None:
    kind, row, wanted = TASKS[task]
    model = write_model(tmp_path / "model", kind, task)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(model)
    other = {**row, "label": "bad"} if task == "text-classification" else row
    long = {**row, "note": "a text that nobody reads"}
    sets = {"train": [long, *[other] * 3], "validation": [row, other]}
    job = make_whole_job(tmp_path / "run", task, write_data(tmp_path / "data", sets), model)
    inputs = prepare(job)
    train, validation = inputs.report["sets"]
    assert shown(inputs.report["samples"][0]) == wanted
    assert train["rows"] == 4
    assert validation["duplicates"] == validation["documents"]
    assert train["longest"] <= train["limit"]
    if task == "text-classification":
        assert train["classes"] == {"bad": 3, "good": 1}
    assert any(
        n.startswith("NOT READ, although it contains texts: column note") for n in inputs.notices
    )


def test_special_tokens_and_texts_without_any(tmp_path: Path) -> None:
    texts = ("w5 [SEP] w6", "w7", "", "w8")
    rows = [{"text": text, "label": n % 2} for n, text in enumerate(texts)]
    model = write_model(tmp_path / "model", "bert", "text-classification")
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    notices = prepare(make_whole_job(tmp_path / "run", "text-classification", data, model)).notices
    assert "2 texts contain [SEP], which the tokenizer reads as its special token" in notices
    assert "2 texts are empty: the model reads only special tokens" in notices


def test_pairs_of_equal_answers(tmp_path: Path) -> None:
    rows = [{"prompt": "w5 ", "chosen": "w6", "rejected": other} for other in ("w6", "w7", "w8")]
    model = write_model(tmp_path / "model", "gpt2", "preference-tuning")
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[1:]})
    job = make_whole_job(
        tmp_path / "run", "preference-tuning", data, model, {"chat_template": False}
    )
    assert any(
        "in 1 of 3 pairs, the model reads the same tokens" in one for one in prepare(job).notices
    )


def test_the_end_of_text_in_a_text_that_is_classified_at_it(tmp_path: Path) -> None:
    """Report an end-of-text token inside a text; transformers' BART would fail in that step."""
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=SIZES["hidden_size"], encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=48, pad_token_id=0, bos_token_id=2,
        eos_token_id=3,
    )  # fmt: skip
    BartForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"text": f"w{n} w9", "label": n % 2} for n in range(5, 9)]
    sets = {"train": [*rows, {"text": "w5 [SEP] w6", "label": 1}], "validation": rows}
    data, model = write_data(tmp_path / "data", sets), str(tmp_path / "model")
    job = make_whole_job(tmp_path / "run", "text-classification", data, model)
    with pytest.raises(
        TrainError, match=r"sample 5 of train contains \[SEP\], at which a bart model"
    ):
        prepare(replace(job))


def test_dirty_labels_are_noted_as_the_control_node_notes_them(tmp_path: Path) -> None:
    """Both count with RowReview; one of the rows has two classes in a cell."""
    labels = ["good", "Good", "N/A", "bad", "bad", "bad\u00a0", "['good']", "go\u200bod"] * 4
    labels[4] = "good, bad"
    rows: list[Row] = [
        {"text": f"w{n + 5}", "label": label, "status": "rejected" if n == 3 else "done"}
        for n, label in enumerate(labels)
    ]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    model = write_model(tmp_path / "model", "bert", "text-classification")
    notices = prepare(make_whole_job(tmp_path / "run", "text-classification", data, model)).notices
    options = TextClassification()
    reviewed = RowReview(options, spec_of(options).column_uses(options, list(rows[0]), True))
    for row in rows:
        reviewed.add(row)
    noted = reviewed.notes("train")
    assert len(noted) == 6
    assert {*noted} < {*notices}


def test_all_classes_are_counted_and_few_are_shown(tmp_path: Path) -> None:
    rows = [{"text": f"w{n % 90 + 5}", "label": f"c{n % 150}"} for n in range(450)]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:150]})
    model = write_model(tmp_path / "model", "bert", "text-classification")
    report = prepare(make_whole_job(tmp_path / "run", "text-classification", data, model)).report
    for one in report["sets"]:
        assert (one["class_count"], len(one["classes"])) == (150, 100)
    assert is_data(report)
