"""Trainings from a model whose output layer has other classes."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    set_seed,
)

from ftcluster_common.protocol.class_report import report_of_classes
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.distill import TextDistillation
from ftcluster_common.tasks.ner import TokenClassification
from ftcluster_train.engine.class_head import choose_rows, output_weights
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load, warn_of_unpredicted_classes
from ftcluster_train.errors import TrainError
from tests.engine.jobs import result_of
from tests.engine.runs import make_whole_job, write_data, write_model

TASK = "text-classification"
# classes with the order and case of roberta-large-mnli
NLI = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
MNLI = ["entailment", "neutral", "contradiction"]  # classes in GLUE's order
OUT = {
    "bert": "classifier", "roberta": "classifier.out_proj", "distilbert": "classifier",
    "modernbert": "classifier", "gpt2": "score", "llama": "score",
    "bart": "classification_head.out_proj",
}  # fmt: skip


def write_classifier(
    folder: Path, kind: str, names: list[str], model_class: Any = AutoModelForSequenceClassification
) -> str:
    """Write a classifier with named classes, as another user would; return its folder."""
    write_model(folder, kind, TASK)
    config = AutoConfig.from_pretrained(folder)
    config.problem_type = "single_label_classification"  # Trainer writes this field
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    torch.manual_seed(5)
    model_class.from_config(config).save_pretrained(folder)
    return str(folder)


def begin(
    folder: Path, model: str, labels: list[Any], task: str = TASK, **changes: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Return the initial model of a training, and the notices."""
    rows: list[dict[str, Any]] = [
        {"text": f"w{n} w{n + 1} w5", "label": labels[n % len(labels)] if labels else 0}
        for n in range(12)
    ]
    if task == "token-classification":
        rows = [{"tokens": ["w1", "w2"], "tags": ["O", labels[n % len(labels)]]} for n in range(12)]
    if task == "text-ranking":
        rows = [{"query": f"w{n}", "text": "w5", "label": n % 2} for n in range(12)]
    if task == "question-answering":
        answers = {"text": ["w2"], "answer_start": [3]}
        rows = [{"question": "w1", "context": f"w1 w2 w{n}", "answers": answers} for n in range(12)]
    data = write_data(folder / "data", {"train": rows, "validation": rows[:6]})
    job = make_whole_job(folder / "run", task, data, model, **changes)
    inputs = prepare(job)
    write_inputs(job.run_dir, inputs)
    _, started, _ = load(job, inputs)
    return started, inputs.notices


@pytest.mark.parametrize("kind", OUT)
def test_rows_are_carried_over_by_name(tmp_path: Path, kind: str) -> None:
    model = write_classifier(tmp_path / "old", kind, ["health", "money", "sport"])
    old = AutoModelForSequenceClassification.from_pretrained(model)
    new, notices = begin(tmp_path, model, ["money", "sport", "travel"])
    before, after = (one.get_submodule(OUT[kind]) for one in (old, new))
    assert torch.equal(after.weight[:2], before.weight[1:])
    assert not any(torch.equal(after.weight[2], row) for row in before.weight)
    others = [name for name, _ in old.named_parameters() if not name.startswith(OUT[kind])]
    assert all(torch.equal(old.get_parameter(n), new.get_parameter(n)) for n in others)
    assert [*new.config.id2label.values()] == ["money", "sport", "travel"]
    [notice] = [line for line in notices if "output layer" in line]
    kept = "keeps the rows of money, sport by name; NEW AT RANDOM: travel; dropped: health"
    assert kept in notice
    assert output_weights(AutoModelForSequenceClassification, new.config) == {
        name for name, _ in old.named_parameters() if name.startswith(f"{OUT[kind]}.")
    }


def test_nli_in_another_order_and_case_predicts_the_same(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "roberta", NLI)
    old = AutoModelForSequenceClassification.from_pretrained(model).eval()
    new, notices = begin(tmp_path, model, MNLI)
    tokens = torch.tensor([[2, 7, 9, 3], [2, 11, 30, 3]])
    with torch.no_grad():
        before, after = (one.eval()(input_ids=tokens).logits for one in (old, new))
    assert [*new.config.id2label.values()] == sorted(MNLI)
    order = [NLI.index(name.upper()) for name in sorted(MNLI)]
    torch.testing.assert_close(after, before[:, order], rtol=0, atol=0)
    assert any("keeps the rows of contradiction, entailment, neutral" in line for line in notices)


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c", "d"]])
def test_another_number_of_classes_begins_anew(tmp_path: Path, labels: list[str]) -> None:
    model = write_classifier(tmp_path / "old", "bert", NLI)
    new, notices = begin(tmp_path, model, labels)
    assert new(input_ids=torch.tensor([[2, 7, 3]])).logits.shape == (1, len(labels))
    assert new.num_labels == new.classifier.out_features == len(labels)
    has = "has the classes CONTRADICTION, NEUTRAL, ENTAILMENT"
    wanted = f"{has}, but the data have {', '.join(labels)}: "
    assert any(f"{wanted}the output layer is NEW" in line for line in notices)


def test_a_regression_begins_with_a_classifier(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "bert", NLI)
    options = {"text_columns": (), "regression": True}
    new, notices = begin(tmp_path, model, [0.5, 2.0, 1.25], options=options)
    assert new.classifier.weight.shape[0] == 1
    assert new.config.problem_type == "regression"
    assert any("has 3 classes (CONTRADICTION, NEUTRAL, ENTAILMENT)" in line for line in notices)


def test_a_reranker_begins_with_a_classifier(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "roberta", NLI)
    new, notices = begin(tmp_path, model, [], "text-ranking")
    assert new(input_ids=torch.tensor([[2, 7, 3]])).logits.shape == (1, 1)
    assert any(
        "3 classes (CONTRADICTION, NEUTRAL, ENTAILMENT), but the training has 1" in n
        for n in notices
    )


def test_a_tagger_of_the_same_size_does_not_become_a_classifier(tmp_path: Path) -> None:
    """Both models call their output layer `classifier`."""
    tags = ["O", "B-PER", "I-PER"]
    model = write_classifier(tmp_path / "old", "bert", tags, AutoModelForTokenClassification)
    old = AutoModelForTokenClassification.from_pretrained(model)
    new, notices = begin(tmp_path, model, ["a", "b", "c"])
    assert not torch.equal(old.classifier.weight, new.classifier.weight)
    assert any("is a BertForTokenClassification, so the output layer is NEW" in n for n in notices)


def test_tags_are_carried_over_by_name(tmp_path: Path) -> None:
    tags = ["I-LOC", "O", "B-PER", "I-PER", "B-LOC"]
    model = write_classifier(tmp_path / "old", "bert", tags, AutoModelForTokenClassification)
    old = AutoModelForTokenClassification.from_pretrained(model)
    new, _ = begin(tmp_path, model, ["B-PER", "B-ORG"], "token-classification")
    for number, name in new.config.id2label.items():
        same = [torch.equal(new.classifier.weight[number], row) for row in old.classifier.weight]
        assert same == [name == tag for tag in tags], name


def test_answers_are_found_with_a_model_of_three_classes(tmp_path: Path) -> None:
    """transformers would give the model as many outputs as classes, but it needs two."""
    model = write_classifier(tmp_path / "old", "bert", NLI)
    new, _ = begin(tmp_path, model, [], "question-answering")
    assert new.qa_outputs.out_features == 2
    assert new(input_ids=torch.tensor([[2, 7, 3]])).start_logits.shape == (1, 3)


def test_classes_without_names_are_kept_by_number(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "bert", ["LABEL_0", "LABEL_1"])
    old = AutoModelForSequenceClassification.from_pretrained(model)
    new, notices = begin(tmp_path, model, ["no", "yes"])
    assert torch.equal(old.classifier.weight, new.classifier.weight)
    assert any("matched BY NUMBER: LABEL_0 is no, LABEL_1 is yes" in line for line in notices)


def test_a_training_that_continues_says_nothing(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "bert", sorted(MNLI))
    old = AutoModelForSequenceClassification.from_pretrained(model)
    new, notices = begin(tmp_path, model, MNLI)
    assert torch.equal(old.classifier.weight, new.classifier.weight)
    assert not [line for line in notices if "output layer" in line]


def test_a_base_begins_as_with_transformers(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bert", "bert", "masked-lm")
    new, notices = begin(tmp_path, model, ["a", "b", "c"], seed=3)
    set_seed(3)
    peer = AutoModelForSequenceClassification.from_pretrained(model, num_labels=3)
    assert not [line for line in notices if "output layer" in line]
    assert torch.equal(new.classifier.weight, peer.classifier.weight)


def test_weights_that_do_not_fit_are_refused_by_name_and_shape(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "bert", NLI)
    with pytest.raises(TrainError, match=r"have the shape .* but its configuration needs"):
        begin(tmp_path, model, NLI, recipe={"config_overrides": {"intermediate_size": 48}})


@pytest.mark.parametrize(
    ("outputs", "names", "rows"),
    [
        (NLI, MNLI, (2, 1, 0)),
        (["a", "A"], ["A", "a"], (1, 0)),
        (["a", "A"], ["\uff21", "b"], (None, None)),  # two names are equally similar
        (["negative", "positive"], ["0", "1"], (0, 1)),
        (["1", "2", "3", "4", "5"], ["0", "1", "2", "3", "4"], (None, 0, 1, 2, 3)),
        (["LABEL_0", "LABEL_1", "LABEL_2"], ["a", "b"], (None, None)),
        (["Caf\u00e9", "Bar"], ["cafe\u0301", "bar\u00a0"], (0, 1)),
    ],
)
def test_rows(outputs: list[str], names: list[str], rows: tuple[int | None, ...]) -> None:
    assert choose_rows("m", outputs, names).rows == rows


def evaluated(folder: Path, model: str, rows: list[dict[str, Any]]) -> list[str]:
    data = write_data(folder / "data", {"validation": rows})
    job = replace(make_whole_job(folder / "run", TASK, data, model), purpose="evaluate")
    inputs = prepare(job)
    write_inputs(job.run_dir, inputs)
    _, _, samples = load(job, inputs)
    return [str(sample["label"][0]) for sample in samples["validation"]]


def test_an_evaluation_matches_names(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "bert", NLI)
    rows = [{"text": f"w{n}", "label": MNLI[n % 3]} for n in range(6)]
    assert evaluated(tmp_path, model, rows) == ["2", "1", "0"] * 2


def test_an_evaluation_refuses_unknown_classes_with_both_lists(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "old", "bert", NLI)
    rows = [{"text": f"w{n}", "label": ["not_entailment", "entailment"][n % 2]} for n in range(6)]
    known = ", ".join(NLI)
    with pytest.raises(TrainError, match=f"have the classes not_entailment, and .* has {known}"):
        evaluated(tmp_path, model, rows)


def test_an_evaluation_matches_the_names_of_parquet(tmp_path: Path) -> None:
    """Match the names in Parquet metadata of `datasets`, which has GLUE's order."""
    from datasets import ClassLabel, Dataset, Features, Value

    model = write_classifier(tmp_path / "old", "bert", NLI)
    features = Features({"text": Value("string"), "label": ClassLabel(names=MNLI)})
    rows = {"text": [f"w{n}" for n in range(6)], "label": [0, 1, 2] * 2}
    (tmp_path / "data").mkdir()
    Dataset.from_dict(rows, features).to_parquet(tmp_path / "data" / "validation.parquet")
    job = make_whole_job(tmp_path / "run", TASK, str(tmp_path / "data"), model)
    inputs = prepare(replace(job, purpose="evaluate"))
    _, _, samples = load(replace(job, purpose="evaluate"), inputs)
    assert [sample["label"][0] for sample in samples["validation"]] == [2, 1, 0] * 2


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    ("task", "options"),
    [
        (TASK, {"text_columns": ()}),
        ("text-ranking", {}),
        ("text-ranking", {"lora_r": 4}),  # the base of the adapters keeps three outputs
    ],
)
def test_it_is_trained_saved_and_evaluated(
    tmp_path: Path, task: str, options: dict[str, Any]
) -> None:
    model = write_classifier(tmp_path / "old", "bert", NLI)
    rows: list[dict[str, Any]] = [
        {"query": f"w{n}", "text": "w5", "label": n % 2} for n in range(12)
    ]
    if task == TASK:
        rows = [{"text": f"w{n} w5", "label": "ab"[n % 2]} for n in range(12)]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:6]})
    job = make_whole_job(
        tmp_path / "run", task, data, model, options, max_steps=2, eval_strategy="epoch"
    )
    trained = result_of(job)
    saved = str(job.run_dir / "model")
    plain = {name: value for name, value in options.items() if name != "lora_r"}
    again = make_whole_job(tmp_path / "again", task, data, saved, plain)
    measured = result_of(replace(again, purpose="evaluate"))
    for name, value in measured["metrics"].items():
        assert trained["metrics"][name] == pytest.approx(value, rel=1e-4), name


class Kept:
    """A log that keeps its notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, message: str) -> None:
        """Store a notice."""
        self.notices.append(message)


@pytest.mark.parametrize(
    ("options", "advised"),
    [
        (TextClassification(), True),
        (TextClassification(class_weights="balanced"), False),
        (TextClassification(class_weights={"a": 2.0}), False),
        (TokenClassification(), False),
        (TextDistillation(), False),
    ],
)
def test_weights_are_advised_to_those_who_may_set_them(options: Any, advised: bool) -> None:
    log, report = Kept(), report_of_classes([0, 0, 0], [0, 1, 0], ["a", "b"])
    warn_of_unpredicted_classes(log, {"validation": report.to_dict()}, options)
    [notice] = log.notices
    assert ("class_weights=balanced" in notice) == advised
    fields = {field.name for field in dataclasses.fields(options)}
    assert not advised or "class_weights" in fields


def test_nothing_is_advised_where_it_changes_nothing() -> None:
    even, skewed = [0, 1, 0, 1], [0, 0, 0, 1]
    for labels, options, advice in (
        (even, TextClassification(), "higher learning rate"),  # all weights would be 1
        (skewed, TextClassification(), "class_weights=balanced"),
        (skewed, None, ": b"),  # evaluates a trained model
    ):
        log = Kept()
        report = report_of_classes([0] * len(labels), labels, ["a", "b"])
        warn_of_unpredicted_classes(log, {"validation": report.to_dict()}, options)  # type: ignore[arg-type]
        [notice] = log.notices
        assert notice.endswith(advice)
