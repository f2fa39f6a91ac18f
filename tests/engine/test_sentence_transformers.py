"""sentence-transformers loads a trained model and agrees with predict and evaluate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.models.trained_model import read_trained
from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job, Purpose
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of
from tests.engine.runs import WORDS, Row, make_whole_job, triplets, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
EMBED, RERANK, SPARSE = "sentence-similarity", "text-ranking", "sparse-encoding"
# longer than any limit here; without the truncated words, a reranker would judge the text as wrong
LONG = " ".join(WORDS[number] for number in (*range(9), *range(20, 30), *range(50, 90)))
TEXTS = ["w7 w8", "w5", LONG, "w9 w60 w61"]
PROMPTS = {"query_prompt": "w20 w21 ", "text_prompt": "w22 "}


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARED)


def told(
    job: Job, model: str, purpose: Purpose, folder: Path, rows: list[Row], **options: Any
) -> dict[str, Any]:
    """Return the result of evaluate or predict for a trained model on separate rows."""
    data = write_data(folder / "rows", {"test" if purpose == PREDICT else "validation": rows})
    kept = {
        name: value
        for name, value in read_trained(Path(model))["options"].items()
        if not name.endswith(("_column", "_columns"))  # these rows have other columns
    }
    changed = replace(job.recipe.options, **{**kept, **options})
    recipe = replace(job.recipe, model=model, data=data, options=changed)
    run = replace(job, run_dir=folder / "run", recipe=recipe, purpose=purpose)
    run.run_dir.mkdir(parents=True)
    return result_of(run)


def predictions(job: Job, model: str, folder: Path, rows: list[Row], **options: Any) -> list[Any]:
    found = told(job, model, PREDICT, folder, rows, **options)
    [file] = Path(found["predictions"]).iterdir()
    return [json.loads(line)["prediction"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", PROMPTS),
        ("bert", {**PROMPTS, "matryoshka_dims": (32, 16, 8)}),
        ("bert", {**PROMPTS, "lora_r": 4, "merge_adapters": True}),
        ("bert", {"pooling": "cls"}),
        ("llama", {**PROMPTS, "pooling": "lasttoken"}),
        ("bert", {**PROMPTS, "pooling": "max"}),
        ("bert", {**PROMPTS, "pooling": "mean_sqrt_len_tokens", "normalize": False}),
        ("llama", {**PROMPTS, "pooling": "weightedmean"}),
        ("bert", {**PROMPTS, "loss": "margin_mse"}),
    ],
    ids=[
        "prompts",
        "matryoshka",
        "adapters",
        "cls",
        "lasttoken",
        "max",
        "sqrt",
        "weightedmean",
        "margins",
    ],
)
def test_an_embedder(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    """`encode` gives the vectors of predict; the evaluator gives the metrics of evaluate.

    A model that a teacher's margins have trained compares dot products. Decoders pad on the left,
    as Qwen3-Embedding's tokenizer does.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.evaluation import InformationRetrievalEvaluator

    train, searched = triplets(60, 1), triplets(20, 2)
    by_dots = options.get("loss") == "margin_mse"
    train = [{**row, "label": [6.0, -1.0, 2.0]} for row in train] if by_dots else train
    data = write_data(tmp_path / "data", {"train": train})
    before = write_model(tmp_path / "model", kind, EMBED)
    side = {"padding_side": "left" if options.get("pooling") == "lasttoken" else "right"}
    settings = Path(before) / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **side}))
    job = make_whole_job(
        tmp_path / "runs/one", EMBED, data, before,
        {**options, "max_length": 24}, batch_size=20, max_steps=3, learning_rate=5e-3,
    )  # fmt: skip
    saved = result_of(job)["model"]
    model = SentenceTransformer(saved, device="cpu")
    assert model.tokenizer.padding_side == side["padding_side"]
    assert model.similarity_fn_name == ("dot" if by_dots else "cosine")
    rows = [{"query": text} for text in TEXTS]
    queries = torch.tensor(predictions(job, saved, tmp_path / "queries", rows))
    texts = torch.tensor(predictions(
        job, saved, tmp_path / "texts", rows, query_prompt=options.get("text_prompt")
    ))  # fmt: skip
    assert torch.allclose(torch.tensor(model.encode_query(TEXTS)), queries, atol=1e-5)
    assert torch.allclose(torch.tensor(model.encode_document(TEXTS)), texts, atol=1e-5)
    named = model.encode(TEXTS, prompt_name="query" if model.prompts.get("query") else None)
    assert torch.allclose(torch.tensor(named), queries, atol=1e-5)
    assert torch.allclose(queries, texts, atol=1e-2) == ("query_prompt" not in options)
    assert by_dots != torch.allclose(queries.norm(dim=1), torch.ones(len(queries))) or (
        options.get("normalize") is False
    )
    corpus = {row["positive"]: row["positive"] for row in searched}
    asked = {row["query"]: row["query"] for row in searched}
    relevant: dict[str, set[str]] = {}
    for row in searched:
        relevant.setdefault(row["query"], set()).add(row["positive"])
    found = told(job, saved, EVALUATE, tmp_path / "measured", [
        {"query": row["query"], "positive": row["positive"]} for row in searched
    ])["metrics"]  # fmt: skip
    evaluator = InformationRetrievalEvaluator(
        asked, corpus, relevant, accuracy_at_k=[1],
        precision_recall_at_k=[10, 100], mrr_at_k=[10], ndcg_at_k=[10], name="x",
    )  # fmt: skip
    kind = "dot" if by_dots else "cosine"  # the evaluator measures both if they may differ
    theirs = {name.removeprefix(f"x_{kind}_").replace("@", "_at_"): value
              for name, value in evaluator(model).items()}  # fmt: skip
    names = ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100")
    assert {n: found[n] for n in names} == pytest.approx({n: theirs[n] for n in names}, abs=1e-5)


def test_a_sparse_encoder(tmp_path: Path) -> None:
    """`SparseEncoder` gives the weights of predict, and its evaluator the metrics of evaluate."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator

    data = write_data(tmp_path / "data", {"train": triplets(60, 1)})
    job = make_whole_job(
        tmp_path / "runs/one", SPARSE, data,
        write_model(tmp_path / "model", "bert", SPARSE, head=True),
        {**PROMPTS, "max_length": 24, "document_regularizer_weight": 0.1}, batch_size=20,
        max_steps=30, learning_rate=5e-3, gradient_accumulation_steps=2,
    )  # fmt: skip
    saved = result_of(job)["model"]
    card = (Path(saved) / "README.md").read_text()
    assert "from sentence_transformers import SparseEncoder" in card
    model = SparseEncoder(saved, device="cpu")
    assert model.max_seq_length == 24
    rows = [{"query": text} for text in TEXTS]
    ours = predictions(job, saved, tmp_path / "queries", rows)
    vectors = model.encode_query(TEXTS, convert_to_sparse_tensor=False)
    for vector, weights in zip(vectors, ours, strict=True):
        ids = model.tokenizer.convert_tokens_to_ids([*weights])
        assert vector.nonzero().squeeze(1).tolist() == sorted(ids)
        assert vector[ids].tolist() == pytest.approx([*weights.values()], abs=1e-5)
        assert [*weights.values()] == sorted(weights.values(), reverse=True)
    searched = triplets(20, 2)
    found = told(job, saved, EVALUATE, tmp_path / "measured", [
        {"query": row["query"], "positive": row["positive"]} for row in searched
    ])["metrics"]  # fmt: skip
    relevant: dict[str, set[str]] = {}
    for row in searched:
        relevant.setdefault(row["query"], set()).add(row["positive"])
    evaluator = SparseInformationRetrievalEvaluator(
        {row["query"]: row["query"] for row in searched},
        {row["positive"]: row["positive"] for row in searched}, relevant, accuracy_at_k=[1],
        precision_recall_at_k=[10, 100], mrr_at_k=[10], ndcg_at_k=[10], name="x",
    )  # fmt: skip
    theirs = {name.removeprefix("x_dot_").removeprefix("x_").replace("@", "_at_"): value
              for name, value in evaluator(model).items()}  # fmt: skip
    theirs["document_active_dims"] = theirs["corpus_active_dims"]
    assert found == pytest.approx({name: theirs[name] for name in found}, abs=1e-5)
    assert 0 < found["document_active_dims"] < 97


@pytest.mark.parametrize(
    "options", [{}, {"lora_r": 4, "merge_adapters": True}], ids=["plain", "adapters"]
)
def test_a_reranker(tmp_path: Path, options: dict[str, Any]) -> None:
    """`predict` gives our scores, even for pairs that max_length truncates."""
    from sentence_transformers import CrossEncoder

    data = write_data(tmp_path / "data", {"train": triplets(60, 1)})
    job = make_whole_job(
        tmp_path / "runs/one", RERANK, data, write_model(tmp_path / "model", "bert", RERANK),
        {**options, "max_length": 16}, batch_size=20, max_steps=30, learning_rate=5e-3,
    )  # fmt: skip
    saved = result_of(job)["model"]
    rows = [{"query": "w7 w8", "text": text} for text in TEXTS]
    ours = predictions(job, saved, tmp_path / "new", rows)
    model = CrossEncoder(saved, device="cpu")
    pairs = [(row["query"], row["text"]) for row in rows]
    assert model.max_length == 16
    assert model.predict(pairs).tolist() == pytest.approx(ours, abs=1e-5)
    model.max_length = 32
    assert options or abs(model.predict(pairs[2:3])[0] - ours[2]) > 1e-4
