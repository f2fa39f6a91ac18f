"""Multi-vector encoders: losses, scores and files equal those of sentence-transformers."""

import json
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.data.data_sets import DataSet, with_names
from ftcluster_common.models.sentence_modules import TokenVectors, read_multi_vector
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.multi_vector import token_vectors
from ftcluster_train.engine.tasks.multi_vector.token_vectors import max_similarities
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of
from tests.engine.runs import Row, make_whole_job, triplets, write_data, write_model
from tests.engine.test_in_batch_negatives import loss_of
from tests.engine.test_sentence_transformers import EVALUATE, TEXTS, predictions, told

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "multi-vector-encoding"
SKIPPED = ["w5", "w6", "w7", "w8"]  # two of them begin a text that belongs to a query
PROMPTS = {"query": "w20 ", "document": "w21 w22 "}


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARED)


def write_encoder(folder: Path, expansion: dict[str, Any] | None, kind: str = "bert") -> str:
    """Let sentence-transformers write a multi-vector encoder."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    plain = write_model(folder / "plain", kind, TASK)
    torch.manual_seed(6)
    reads = "token_embeddings"
    parts = [
        Transformer(
            plain, document_length=24, query_length=None if expansion else 8,
            query_expansion=expansion,
        ),
        Dense(
            32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name=reads
        ),
        MultiVectorMask(skiplist_words=SKIPPED),
        Normalize(module_input_name=reads),
    ]  # fmt: skip
    MultiVectorEncoder(modules=parts, prompts=PROMPTS).save(str(folder / "encoder"))
    return str(folder / "encoder")


def loss_of_sentence_transformers(folder: str, rows: Sequence[Row]) -> tuple[Any, torch.Tensor]:
    """Return the model with the gradients of the loss over all rows, and the loss."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder.losses import (
        MultiVectorMultipleNegativesRankingLoss,
    )

    model = MultiVectorEncoder(folder, device="cpu").eval()
    columns = [[row["query"] for row in rows], [row["positive"] for row in rows]]
    columns += [[row["negatives"][n] for row in rows] for n in range(2)]
    features = []
    for number, column in enumerate(columns):
        task = "document" if number else "query"
        features.append({**model.preprocess(column, prompt=PROMPTS[task], task=task), "task": task})
    loss = MultiVectorMultipleNegativesRankingLoss(model, scale=1.5)(features)
    loss.backward()
    return model, loss.detach()


@pytest.mark.parametrize(
    ("kind", "expansion"),
    [
        ("bert", None),
        ("bert", {"strategy": "fixed", "length": 8, "attend": False}),
        ("distilbert", {"strategy": "fixed", "length": 8, "attend": True}),
    ],
    ids=["plain", "expanded", "attended"],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    tmp_path: Path, world: World, kind: str, expansion: dict[str, Any] | None, parts: int
) -> None:
    rows = triplets(8, 1)
    before = write_encoder(tmp_path, expansion, kind)
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    job = make_whole_job(tmp_path / "one", TASK, data, before, {"scale": 1.5, "dimension": None})
    job.run_dir.mkdir(parents=True, exist_ok=True)
    write_inputs(job.run_dir, prepare(job))
    inputs = read_inputs(job.run_dir)
    task, model, _ = load(job, inputs)
    task.check_model(model)
    samples = list(Samples(Path(inputs.samples) / "train"))
    batches = [samples] if parts == 1 else [samples[:3], samples[3:]]
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    model.eval()
    loss, _ = loss_of(task, model, batches, world, kernels)
    theirs, wanted = loss_of_sentence_transformers(before, rows)
    assert loss / len(rows) == pytest.approx(wanted.item(), rel=1e-5)
    gradients = {name.partition("model.")[2]: p.grad for name, p in theirs.named_parameters()}
    gradients["projections.0.linear.weight"] = theirs[1].linear.weight.grad
    compared = 0
    for name, p in model.named_parameters():
        if p.grad is not None and gradients.get(name) is not None:
            difference = (p.grad / len(rows) - gradients[name]).abs().max()
            assert difference < 1e-5 + 1e-3 * gradients[name].abs().max(), name
            compared += 1
    assert compared > 10
    assert model.projections[0].linear.weight.grad.norm() > 1e-3


def test_scores_are_those_of_the_formula_for_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is the paper's sum of maxima, text by text, in fp64."""
    torch.manual_seed(2)
    texts = [torch.randn(length, 5) for length in (3, 1, 6, 2, 4, 5, 1)]
    queries, documents = texts[:3], texts[2:]
    wanted = torch.tensor([
        [(q.double() @ d.double().T).max(1).values.sum() for d in documents] for q in queries
    ])  # fmt: skip
    for limit in (1, 60, 10**6):
        monkeypatch.setattr(token_vectors, "AT_ONCE", limit)
        ours = [one.clone().requires_grad_() for one in texts]
        scores = max_similarities(ours[:3], ours[2:])
        assert torch.allclose(scores.double(), wanted, atol=1e-5)
        with torch.no_grad():
            assert torch.equal(max_similarities(ours[:3], ours[2:]), scores)
        exact = [one.double().requires_grad_() for one in texts]
        sums = [(q @ d.T).max(1).values.sum() for q in exact[:3] for d in exact[2:]]
        factors = torch.randn(len(sums))
        (scores.flatten() * factors).sum().backward()
        (torch.stack(sums) * factors.double()).sum().backward()
        for one, other in zip(ours, exact, strict=True):
            assert torch.allclose(one.grad.double(), other.grad, atol=1e-5)


def test_a_document_without_compared_tokens_has_the_smallest_score() -> None:
    query = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    other = torch.nn.functional.normalize(torch.randn(2, 4), dim=-1)
    nothing = torch.empty(0, 4)
    for documents in ([nothing], [nothing, nothing], [other, nothing]):
        scores = max_similarities([query], documents)[0]
        assert scores[-1] == -3
        assert scores.isfinite().all()


@pytest.mark.parametrize("task", [TASK, "sparse-encoding"])
def test_several_data_sets_are_mixed(tmp_path: Path, task: str) -> None:
    parts = [
        write_data(tmp_path / name, {"train": triplets(12, seed), "validation": triplets(6, seed)})
        for name, seed in (("first", 1), ("second", 2))
    ]
    model = write_model(tmp_path / "model", "bert", task, head=True)
    job = make_whole_job(
        tmp_path / "runs/one", task, parts[0], model, max_steps=2, batch_size=6,
        eval_strategy="epoch",
    )  # fmt: skip
    data = with_names([*map(DataSet, parts)])
    metrics = result_of(replace(job, recipe=replace(job.recipe, data=data)))["metrics"]
    assert {"ndcg_at_10", "ndcg_at_10_first", "ndcg_at_10_second"} <= metrics.keys()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {"query_expansion": True, "skip_punctuation": True}),
        ("roberta", {"query_prompt": "w20 ", "text_prompt": "w21 w22 "}),
    ],
    ids=["expanded", "prompts"],
)
def test_a_new_encoder_is_trained_and_loads_in_sentence_transformers(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """`encode_document` gives the vectors of predict; the evaluator the metrics of evaluate."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder.evaluation import (
        MultiVectorInformationRetrievalEvaluator,
    )

    searched = [{k: row[k] for k in ("query", "positive")} for row in triplets(20, 2)]
    data = write_data(tmp_path / "data", {"train": triplets(100, 1), "validation": searched})
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, write_model(tmp_path / "model", kind, TASK), options,
        batch_size=20, max_steps=40, learning_rate=5e-3, eval_strategy="epoch", eval_on_start=True,
    )  # fmt: skip
    result = result_of(job)
    saved = result["model"]
    tokens = TokenVectors(
        8, 24, options.get("query_expansion", False), False,
        tuple(string.punctuation) if options.get("skip_punctuation") else (),
    )  # fmt: skip
    modules = read_multi_vector(Path(saved))
    assert modules is not None
    assert modules.tokens == tokens
    model = MultiVectorEncoder(saved, device="cpu")
    ours = predictions(job, saved, tmp_path / "new", [{"query": text} for text in TEXTS])
    theirs = model.encode_document(TEXTS)
    for vectors, wanted in zip(ours, theirs, strict=True):
        assert torch.tensor(vectors).shape == wanted.shape
        assert torch.allclose(torch.tensor(vectors), wanted, atol=1e-5)
    relevant: dict[str, set[str]] = {}
    for row in searched:
        relevant.setdefault(row["query"], set()).add(row["positive"])
    evaluator = MultiVectorInformationRetrievalEvaluator(
        {row["query"]: row["query"] for row in searched},
        {row["positive"]: row["positive"] for row in searched}, relevant, accuracy_at_k=[1],
        precision_recall_at_k=[10, 100], mrr_at_k=[10], ndcg_at_k=[10], name="x",
    )  # fmt: skip
    measured = told(job, saved, EVALUATE, tmp_path / "measured", searched)["metrics"]
    found = {name.removeprefix("x_maxsim_").replace("@", "_at_"): value
             for name, value in evaluator(model).items()}  # fmt: skip
    assert measured == pytest.approx({name: found[name] for name in measured}, abs=1e-5)
    assert result["metrics"] == pytest.approx(measured, abs=1e-5)


def test_an_encoder_of_sentence_transformers_is_trained_on(tmp_path: Path) -> None:
    """The settings stay: prompts, expansion, skipped tokens and projection."""
    from sentence_transformers import MultiVectorEncoder

    expansion = {"strategy": "fixed", "length": 8, "attend": False}
    before = write_encoder(tmp_path, expansion)
    data = write_data(tmp_path / "data", {"train": triplets(20, 1)})
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, before, {"dimension": None}, batch_size=10, max_steps=2,
        learning_rate=1e-3,
    )  # fmt: skip
    saved = result_of(job)["model"]
    old, new = (MultiVectorEncoder(folder, device="cpu") for folder in (before, saved))
    assert (new.prompts, new[0].query_expansion) == (PROMPTS, old[0].query_expansion)
    assert (new[0].document_length, new[2].skiplist_words) == (24, SKIPPED)
    assert new[1].linear.weight.shape == (16, 32)
    assert 0 < (new[1].linear.weight - old[1].linear.weight).abs().max() < 0.01
    queries = new.encode_query(["w9 w10", "w11"])
    assert [len(query) for query in queries] == [8, 8]


@pytest.mark.parametrize(
    ("change", "options", "problem"),
    [
        (("3_Normalize", {}), {"dimension": 7}, "have 16 elements, not 7"),
        (("2_MultiVectorMask", {"skiplist_tasks": ["query"]}), {}, "has settings that are not sup"),
        (("1_Dense", {"module_input_name": "x"}), {}, "has another input than token_embeddings"),
    ],
)
def test_other_encoders_are_refused(
    tmp_path: Path, change: tuple[str, dict[str, Any]], options: dict[str, Any], problem: str
) -> None:
    before = write_encoder(tmp_path, None)
    config = Path(before) / change[0] / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change[1]}))
    data = write_data(tmp_path / "data", {"train": triplets(12, 1)})
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, before, {"dimension": None, **options}, max_steps=1
    )
    with pytest.raises(TrainError, match=problem):
        result_of(job)
