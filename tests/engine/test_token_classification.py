"""Token classification against transformers: run_ner's labels, Trainer's loss, the pipeline."""

import json
import random
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace
from tokenizers.processors import BertProcessing
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerFast,
    TokenClassificationPipeline,
)

from ftcluster_common.data.tagged_words import Tagged, scheme_of
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.ner.entity_scores import entity_metrics, entity_report
from ftcluster_train.engine.tasks.ner.labelled_tokens import label_tokens
from ftcluster_train.engine.tasks.ner.tag_samples import IGNORED
from ftcluster_train.errors import TrainError
from tests.engine.jobs import make_job, make_task_of, result_of, run, write_samples
from tests.engine.models import SPECIAL, make_model
from tests.engine.runs import Row, make_whole_job, write_data

TASK = "token-classification"
LETTERS = "abcdefghij"
TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]


def make_pieces() -> PreTrainedTokenizerFast:
    """Return a tokenizer like BERT's that splits words into letters."""
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", ","]
    tokenizer = Tokenizer(WordPiece({p: n for n, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=48,
    )  # fmt: skip


def tagged(count: int, seed: int, most: int = 9) -> list[Row]:
    """Return rows in which words that begin with a or b, and the next word, are entities."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = [
            "".join(draw.choices(LETTERS, k=draw.randrange(1, 4)))
            for _ in range(draw.randrange(2, most))
        ]
        tags = ["O"] * len(words)
        for number, word in enumerate(words):
            if word[0] in "ab" and tags[number] == "O":
                tags[number : number + 2] = [f"B-{word[0].upper()}", f"I-{word[0].upper()}"]
        rows.append({"tokens": words, "ner_tags": tags[: len(words)]})
    return rows


def job_of(folder: Path, rows: Any, model: str = "", purpose: Any = "train", **changes: Any) -> Any:
    data = write_data(folder / "data", rows if isinstance(rows, dict) else {"train": rows})
    if not model:
        model = str(folder / "bert")
        make_model("bert", TASK, max_position_embeddings=48).base_model.save_pretrained(model)
        make_pieces().save_pretrained(model)
    job = make_whole_job(folder / purpose, TASK, data, model, **changes)
    return type(job)(**{**vars(job), "purpose": purpose})


def samples_of(job: Any, split: str = "train") -> Samples:
    return Samples(Path(prepare(job).samples) / split)


@pytest.mark.parametrize("every", [False, True])
def test_labels_are_those_of_run_ner(tmp_path: Path, every: bool) -> None:
    rows, tokenizer = tagged(40, 1), make_pieces()
    job = job_of(tmp_path, {"train": rows, "validation": rows}, options={"label_all_tokens": every})
    samples = samples_of(job)
    assert samples.about["names"] == TAGS
    for row, sample in zip(rows, samples, strict=True):
        encoded = tokenizer(row["tokens"], is_split_into_words=True)
        numbers = [TAGS.index(tag) for tag in row["ner_tags"]]
        labels, previous = [], None
        for word in encoded.word_ids():  # as in run_ner's tokenize_and_align_labels
            if word is None:
                labels.append(IGNORED)
            elif word != previous:
                labels.append(numbers[word])
            else:
                inner = numbers[word] + (numbers[word] % 2)  # the tag I- that belongs to a B-
                labels.append(inner if every else IGNORED)
            previous = word
        assert (sample["input_ids"], sample["tags"]) == (encoded["input_ids"], labels)


def test_loss_and_gradients_are_those_of_trainer(tmp_path: Path, world: World) -> None:
    samples = list(samples_of(job_of(tmp_path / "d", tagged(20, 2))))[:8]
    model = make_model("bert", TASK, num_labels=len(TAGS))
    features = [{"input_ids": s["input_ids"], "labels": s["tags"]} for s in samples]
    batch = DataCollatorForTokenClassification(make_pieces())(features)
    wanted = model(**batch).loss
    wanted.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    job = make_job(tmp_path, TASK, max_steps=1, gradient_accumulation_steps=3)
    task = make_task_of(job)
    inputs, targets = task.collate(samples)
    count = sum(task.weights(write_samples(tmp_path / "s", samples)) or [])
    loss = task.loss(model(**inputs), targets) / count
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-5, atol=1e-7)
    # over uneven parts, as a rank computes it
    norm = torch.nn.utils.get_total_norm([*gradients.values()])
    model.zero_grad(set_to_none=True)
    done = run(job, model, samples, world)
    assert done.losses == [pytest.approx(wanted.item(), rel=1e-5)]
    assert done.of("step")[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def lines_of(result: dict[str, Any]) -> list[Any]:
    text = (Path(result["predictions"]) / "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(("every", "strategy"), [(False, "first"), (True, "simple")])
def test_what_is_found_is_what_transformers_pipeline_finds(
    tmp_path: Path, every: bool, strategy: str
) -> None:
    options = {"label_all_tokens": every}
    rows = {"train": tagged(60, 3), "validation": tagged(20, 4)}
    job = job_of(
        tmp_path, rows, options=options, max_steps=12, learning_rate=1e-2, eval_strategy="epoch"
    )
    result, model = result_of(job), str(job.run_dir / "model")
    assert list(result["metrics"]) == ["precision", "recall", "f1", "accuracy", "loss"]
    assert result["metrics"]["f1"] > 0
    pipeline = TokenClassificationPipeline(
        model=AutoModelForTokenClassification.from_pretrained(model),
        tokenizer=AutoTokenizer.from_pretrained(model), aggregation_strategy=strategy,
    )  # fmt: skip
    texts = [", ".join(row["tokens"]) + "." for row in tagged(30, 5)]
    lines = lines_of(
        result_of(
            job_of(tmp_path / "t", [{"text": t} for t in texts], model, "predict", options=options)
        )
    )
    assert sum(len(line["prediction"]) for line in lines) > 10
    for text, line in zip(texts, lines, strict=True):
        wanted = [
            {"start": e["start"], "end": e["end"], "label": e["entity_group"],
             "text": text[e["start"] : e["end"]],
             "score": pytest.approx(float(e["score"]), abs=2e-5)}
            for e in pipeline(text)
        ]  # fmt: skip
        assert line["prediction"] == wanted
    # the metrics of the tags that predict writes
    validation = rows["validation"]
    words = [{"tokens": row["tokens"]} for row in validation]
    lines = lines_of(result_of(job_of(tmp_path / "w", words, model, "predict", options=options)))
    measured = result_of(job_of(tmp_path / "e", validation, model, "evaluate", options=options))
    assert measured["metrics"] == pytest.approx(result["metrics"], rel=1e-5)
    if not every:
        found, true = ([one[name] for one in rows] for rows, name in
                       ((lines, "prediction"), (validation, "ner_tags")))  # fmt: skip
        ours = entity_metrics(entity_report(found, true, "IOB2"), found, true, "IOB2")
        assert {**ours, "loss": measured["metrics"]["loss"]} == pytest.approx(measured["metrics"])
    for line, row in zip(lines, validation, strict=True):
        assert len(line["prediction"]) == len(row["tokens"])
        for one in line["entities"]:
            assert " ".join(row["tokens"][one["start"] : one["end"]]).startswith(one["text"])


def test_a_long_row_is_read_in_windows_that_learn_each_word_once(tmp_path: Path) -> None:
    rows = tagged(12, 6, most=80)
    job = job_of(tmp_path, {"train": rows, "validation": rows}, options={"max_length": 20})
    inputs = prepare(job)
    samples = Samples(Path(inputs.samples) / "train")
    assert any("rows have more than 20 tokens" in notice for notice in inputs.notices)
    for number, row in enumerate(rows):
        own = [sample for sample in samples if sample["row"] == [number]]
        words = [word for sample in own for word in sample["word"]]
        assert words == list(range(len(row["tokens"])))
        tags = [tag for sample in own for tag in sample["tags"] if tag != IGNORED]
        assert [TAGS[tag] for tag in tags] == row["ner_tags"]
        assert all(len(s["input_ids"]) <= 20 for s in own)
        for sample in own[1:]:  # a labelled token follows other tokens
            assert next(at for at, tag in enumerate(sample["tags"]) if tag != IGNORED) > 3


def test_spans_are_the_tags_of_the_words_that_they_touch(tmp_path: Path) -> None:
    text = "abc, de fg."
    spans = [{"start": 0, "end": 3, "label": "A"}, {"start": 6, "end": 10, "label": "B"}]
    rows = [{"text": text, "spans": spans}] * 2
    inputs = prepare(job_of(tmp_path, {"train": rows, "validation": rows}))
    sample = Samples(Path(inputs.samples) / "train")[0]
    tags = [TAGS[tag] for tag in sample["tags"] if tag != IGNORED]
    assert tags == ["B-A", "O", "B-B", "I-B", "O"]
    assert [text[b:e] for b, e in zip(sample["begin"], sample["end"], strict=True)] == [
        "abc", ",", "de", "fg", ".",
    ]  # fmt: skip
    said = "train: 2 OF 4 SPANS begin or end within one of the tokenizer's words"
    assert any(said in notice for notice in inputs.notices)


def byte_level(trimmed: bool) -> Tokenizer:
    """Return a tokenizer like RoBERTa's and GPT-2's: a space belongs to the token after it."""
    letters = [*ByteLevel.alphabet(), "Ġa", "bc"]
    tokenizer = Tokenizer(
        BPE({letter: n for n, letter in enumerate(letters)}, [("Ġ", "a"), ("b", "c")])
    )
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=trimmed)
    return tokenizer


def metaspace() -> Tokenizer:
    """Return a tokenizer like sentencepiece's."""
    pieces = ["▁", "▁a", "b", "c", "bc", "a", "é", "▁c"]
    tokenizer = Tokenizer(Unigram([(piece, -1.0) for piece in pieces], 0))
    tokenizer.pre_tokenizer = Metaspace()
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer", [byte_level(True), byte_level(False), metaspace()], ids=["trimmed", "bytes", "▁"]
)
def test_words_of_other_tokenizers(tokenizer: Tokenizer) -> None:
    words, tags = ["abc", "é", "cab", "a"], ("B-A", "O", "B-B", "I-B")
    text = " ".join(words)
    places = [(text.index(f"{word} "), text.index(f"{word} ") + len(word)) for word in words[:-1]]
    places.append((len(text) - 1, len(text)))
    encoded = tokenizer.encode(text)
    for row in (
        Tagged(text, tuple(places), tags),
        Tagged(text, spans=(("A", 0, 3), ("B", 6, 11))),  # the tokenizer splits these words
    ):
        found = label_tokens(row, encoded.offsets, encoded.word_ids, every=False)
        assert [(one.word, one.tag, one.place) for one in found.tokens] == [
            (number, *pair) for number, pair in enumerate(zip(tags, places, strict=True))
        ]
        assert (found.lost, found.unfit) == (0, 0)
        first = [encoded.word_ids.index(number) for number in range(len(words))]  # as in run_ner
        assert [one.position for one in found.tokens] == first


def test_numbers_have_the_names_that_parquet_gives(tmp_path: Path) -> None:
    names = ["O", "B-B", "I-B", "B-A", "I-A"]
    rows = [
        {"tokens": r["tokens"], "ner_tags": [names.index(t) for t in r["ner_tags"]]}
        for r in tagged(20, 7)
    ]
    kinds = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")),
         "ner_tags": datasets.List(datasets.ClassLabel(names=names))}
    )  # fmt: skip
    job = job_of(tmp_path, rows)
    (tmp_path / "data/train.jsonl").unlink()
    datasets.Dataset.from_list(rows, features=kinds).to_parquet(tmp_path / "data/train.parquet")
    samples = samples_of(job)
    assert samples.about["names"] == names
    assert {tag for s in samples for tag in s["tags"]} <= {IGNORED, *range(5)}


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            {"train": tagged(9, 1), "validation": [{"tokens": ["a"], "ner_tags": ["B-C"]}]},
            "validation.jsonl:1: the model has no tag B-C; it has O, B-A",
        ),
        ({"train": [{"tokens": ["a"], "ner_tags": ["O"]}] * 4}, "no word of train has a tag"),
        (
            {"train": [*tagged(9, 1), {"tokens": ["c", "d"], "ner_tags": ["O", "I-A"]}]},
            "jsonl:10: word 2, 'd', has the tag I-A, which is IOB1, but earlier rows use IOB2",
        ),
    ],
)
def test_tags_that_cannot_be_learned(tmp_path: Path, sets: Any, said: str) -> None:
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, sets))
    assert said in caught.value.message


def test_tags_in_another_case_are_the_models(tmp_path: Path) -> None:
    rows = [{"tokens": row["tokens"], "ner_tags": row["ner_tags"]} for row in tagged(9, 1)]
    lower = {tag: tag[:2] + tag[2:].lower() for row in rows for tag in row["ner_tags"]}
    other = [{**row, "ner_tags": [lower[tag] for tag in row["ner_tags"]]} for row in rows]
    inputs = prepare(job_of(tmp_path, {"train": rows, "validation": other}))
    train, validation = (Samples(Path(inputs.samples) / name) for name in ("train", "validation"))
    assert [one["tags"] for one in validation] == [one["tags"] for one in train]
    (notice,) = [text for text in inputs.notices if "read as the model's tags" in text]
    assert "B-a as B-A" in notice


# CoNLL-2003 uses IOB1: `d e` is an entity, and `f` another entity of the same type
SCHEMES = {
    "IOB1": ["I-A", "O", "I-B", "I-A", "I-A", "B-A"],
    "IOB2": ["B-A", "O", "B-B", "B-A", "I-A", "B-A"],
    "IOBES": ["S-A", "O", "S-B", "B-A", "E-A", "S-A"],
}
FOUND = {  # the first two words together, and the entities of all other words unchanged
    "IOB2": ["B-A", "I-A", "B-B", "B-A", "I-A", "B-A"],
    "IOBES": ["B-A", "E-A", "S-B", "B-A", "E-A", "S-A"],
}


@pytest.mark.parametrize("validation", SCHEMES)
@pytest.mark.parametrize("train", SCHEMES)
def test_each_set_has_the_scheme_of_the_model(tmp_path: Path, train: str, validation: str) -> None:
    sets = {
        split: [{"tokens": list("abcdef"), "ner_tags": SCHEMES[scheme]}] * 2
        for split, scheme in (("train", train), ("validation", validation))
    }
    learned = "IOBES" if train == "IOBES" else "IOB2"
    folder = Path(prepare(job_of(tmp_path, sets)).samples)
    for split in sets:
        samples = Samples(folder / split)
        names = samples.about["names"]
        tags = [[names[t] for t in one["tags"] if t != IGNORED] for one in samples]
        assert tags == [SCHEMES[learned]] * 2
        # as in seqeval and conlleval: 3 of 4 entities are right, and 4 are predicted
        report = entity_report([FOUND[learned]] * 2, tags, scheme_of(names))
        metrics = entity_metrics(report, [FOUND[learned]] * 2, tags, scheme_of(names))
        assert [metrics[name] for name in ("precision", "recall", "f1")] == [0.75] * 3


def test_a_model_of_others_with_iob1_is_measured_in_it(tmp_path: Path) -> None:
    names = ["O", "I-A", "I-B", "B-A"]
    model = make_model("bert", TASK, num_labels=len(names), max_position_embeddings=48)
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    model.save_pretrained(tmp_path / "model")
    make_pieces().save_pretrained(tmp_path / "model")
    for scheme, tags in SCHEMES.items():
        rows = [{"tokens": list("abcdef"), "ner_tags": tags}]
        job = job_of(tmp_path / scheme, rows, str(tmp_path / "model"), "evaluate")
        [folder] = [one for one in Path(prepare(job).samples).iterdir() if one.is_dir()]
        [sample] = Samples(folder)
        assert [names[t] for t in sample["tags"] if t != IGNORED] == SCHEMES["IOB1"]
