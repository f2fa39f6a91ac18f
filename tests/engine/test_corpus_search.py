"""Searches with bounded memory find the same documents as a comparison of all vectors at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.job import Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.embed import corpus_search
from ftcluster_train.engine.tasks.embed.corpus_search import BestDocuments
from tests.engine.beside import COMPARED
from tests.engine.runs import WORDS, make_whole_job, write_model

WORLD = World(rank=0, size=1, backend="gloo")
EMBED, SPARSE, COLBERT = "sentence-similarity", "sparse-encoding", "multi-vector-encoding"
NAMES = ("ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100")


def test_the_best_documents_are_those_of_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(7, 300, generator=generator)
    scores[:, 50:90] = scores[:, 10:50]  # equal scores
    scores[0, 5], scores[0, 6], scores[1, 7] = -0.0, 0.0, torch.finfo(torch.float32).min
    best = BestDocuments(7, 20)
    for some in torch.randperm(300, generator=generator).split(13):
        best.add(0, scores[:3, some], some)
        best.add(3, scores[3:, some], some)
    in_order = torch.sort(scores + 0.0, dim=1, descending=True, stable=True).indices
    assert torch.equal(best.documents(), in_order[:, :20])
    every = BestDocuments(7, 400)
    every.add(0, scores, torch.arange(300))
    assert torch.equal(every.documents()[:, :300], in_order)
    assert (every.documents()[:, 300:] == -1).all()


def corpus(
    folder: Path, shared: bool
) -> tuple[dict[str, str], dict[str, str], dict[str, set[str]]]:
    """Write a folder in BEIR's format; return its queries, texts and relevant texts.

    Args:
        shared: True if one query is also a text of the corpus.
    """
    draw = torch.Generator().manual_seed(5)

    def text(length: int) -> str:
        numbers = torch.randint(5, 90, (length,), generator=draw).tolist()
        return " ".join(WORDS[number] for number in numbers)

    texts = {f"d{number}": text(3 + number % 40) for number in range(150)}
    queries = {f"q{number}": text(4) for number in range(12)}
    if shared:
        queries["q12"] = texts["d7"]
    relevant = {
        query: {f"d{7 * number + step}" for step in range(1 + number % 3)}
        for number, query in enumerate(queries)
    }
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", texts), ("queries", queries)):
        lines = [json.dumps({"_id": number, "text": of_row}) for number, of_row in rows.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    judged = [f"{query}\t{text}\t1" for query, of_query in relevant.items() for text in of_query]
    for split in ("train", "dev"):
        lines = ["query-id\tcorpus-id\tscore", *judged]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
    return queries, texts, relevant


def loaded(folder: Path, task: str, **options: Any) -> tuple[Job, Any, Any, Any]:
    model = write_model(folder / "model", "bert", task, head=task == SPARSE)
    job = make_whole_job(
        folder / "run", task, str(folder / "data"), model, {**options, "max_length": 16}
    )
    write_inputs(job.run_dir, prepare(job))
    of_task, of_model, sets = load(job, read_inputs(job.run_dir))
    of_task.check_model(of_model)
    return job, of_task, of_model, sets


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("task", [EMBED, SPARSE, COLBERT])
def test_small_parts_give_the_same_metrics(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path / "data", shared=True)
    options = {"matryoshka_dims": (32, 8)} if task == EMBED else {}
    _, of_task, model, sets = loaded(tmp_path, task, **options)
    validation = {"validation": sets["validation"]}
    whole = evaluate(of_task, model, validation, WORLD, False).metrics
    kept: list[int] = []
    compare = type(of_task).compare

    def counted(self: Any, documents: Any) -> Any:
        kept.append(len(documents))
        return compare(self, documents)

    monkeypatch.setattr(type(of_task), "compare", counted)
    monkeypatch.setattr(type(of_task), "compared_queries", 5)
    monkeypatch.setattr(corpus_search, "MOST_DOCUMENTS", 9)
    monkeypatch.setattr(corpus_search, "MERGED", 4)
    parts = evaluate(of_task, model, validation, WORLD, False).metrics
    assert parts == pytest.approx(whole, abs=1e-9)
    assert (max(kept), sum(kept)) == (9, 150)
    # the text that is also a query is a sample of its own if queries have other tokens
    assert len(sets["validation"]) == 150 + 12 + (task == COLBERT)


@pytest.mark.usefixtures("one_world")
def test_a_corpus_has_the_metrics_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(COMPARED)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.models import Pooling, Transformer

    queries, texts, relevant = corpus(tmp_path / "data", shared=False)
    monkeypatch.setattr(corpus_search, "MOST_DOCUMENTS", 9)
    _, task, model, sets = loaded(tmp_path, EMBED)
    found = evaluate(task, model, {"validation": sets["validation"]}, WORLD, False).metrics
    transformer = Transformer(str(tmp_path / "model"), max_seq_length=16)
    theirs = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")],
        device="cpu",
    )
    evaluator = InformationRetrievalEvaluator(
        queries, texts, relevant, accuracy_at_k=[1], precision_recall_at_k=[10, 100],
        mrr_at_k=[10], ndcg_at_k=[10], name="x",
    )  # fmt: skip
    measured = {
        name.removeprefix("x_cosine_").replace("@", "_at_"): value
        for name, value in evaluator(theirs).items()
    }
    assert 0 < measured["recall_at_100"] < 1
    assert {n: found[n] for n in NAMES} == pytest.approx({n: measured[n] for n in NAMES}, abs=1e-6)
