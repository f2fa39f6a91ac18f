"""A teacher's scores of a query's texts: the losses equal those of sentence-transformers."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.embed.in_batch_negatives import BatchTexts
from ftcluster_train.engine.tasks.embed.pair_losses import teacher_loss
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.beside import COMPARED
from tests.engine.jobs import run_rank
from tests.engine.runs import Row, make_whole_job, triplets, write_data, write_model
from tests.engine.test_in_batch_negatives import loss_of
from tests.engine.test_multi_vector_encoding import write_encoder
from tests.engine.test_projections import write_embedder

pytestmark = pytest.mark.usefixtures("one_world")
EMBED, COLBERT, SPARSE = "sentence-similarity", "multi-vector-encoding", "sparse-encoding"
MARGINS, KL = "margin_mse", "distill_kl_div"


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARED)


def scored(count: int, seed: int) -> list[Row]:
    """Write triplets with a teacher's scores, of the text of the query first."""
    draw = random.Random(seed)
    return [
        {**row, "scores": [draw.uniform(low, low + 3) for low in (4, 0, -2)]}
        for row in triplets(count, seed)
    ]


def write_base(folder: Path, task: str) -> str:
    if task == EMBED:
        return write_embedder(folder, normalize=False)
    if task == COLBERT:
        return write_encoder(folder, {"strategy": "fixed", "length": 8, "attend": False})
    return write_model(folder / "base", "bert", SPARSE, head=True)


def encoder_and_losses(task: str, folder: str) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """Return sentence-transformers' encoder and its losses by our names."""
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
    from sentence_transformers.multi_vector_encoder import losses as of_tokens
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sparse_encoder import losses as of_words

    if task == EMBED:
        model = SentenceTransformer(folder, device="cpu")
        return model, {MARGINS: losses.MarginMSELoss, KL: losses.DistillKLDivLoss}
    if task == COLBERT:
        model = MultiVectorEncoder(folder, device="cpu")
        margins, kl = of_tokens.MultiVectorMarginMSELoss, of_tokens.MultiVectorDistillKLDivLoss
        return model, {MARGINS: margins, KL: kl}

    def with_regularizer(loss: Callable[..., Any]) -> Callable[..., Any]:
        def made(model: Any, **settings: Any) -> Any:
            inner = loss(model, **settings)
            return of_words.SpladeLoss(
                model, inner, query_regularizer_weight=0.02, document_regularizer_weight=0.01
            )

        return made

    return SparseEncoder(folder, device="cpu"), {
        MARGINS: with_regularizer(of_words.SparseMarginMSELoss),
        KL: with_regularizer(of_words.SparseDistillKLDivLoss),
    }


def loss_of_sentence_transformers(
    task: str, folder: str, rows: Sequence[Row], name: str, settings: dict[str, Any]
) -> tuple[Any, torch.Tensor]:
    """Return the model with the gradients of the loss over all rows, and the loss."""
    model, losses = encoder_and_losses(task, folder)
    model.eval()[1].train()  # outside a training, SpladePooling overwrites its input
    columns = [[row["query"] for row in rows], [row["positive"] for row in rows]]
    columns += [[row["negatives"][n] for row in rows] for n in range(2)]
    features = []
    for number, column in enumerate(columns):
        kind = "document" if number else "query"
        prompted = {"prompt": model.prompts.get(kind), "task": kind} if task == COLBERT else {}
        more = {"task": kind} if task == COLBERT else {}
        features.append({**model.preprocess(column, **prompted), **more})
    labels = torch.tensor([row["scores"] for row in rows])
    loss = losses[name](model, **settings)(features, labels)
    loss = sum(loss.values()) if isinstance(loss, dict) else loss
    loss.backward()
    return model, loss.detach()


@pytest.mark.parametrize("task_name", [EMBED, COLBERT, SPARSE])
@pytest.mark.parametrize(
    ("name", "settings"),
    [(MARGINS, {}), (KL, {"temperature": 1.0}), (KL, {"temperature": 2.5})],
    ids=["margins", "kl", "temperature"],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    tmp_path: Path, world: World, task_name: str, name: str, settings: dict[str, Any], parts: int
) -> None:
    rows = scored(8, 1)
    options: dict[str, Any] = {"loss": name, **settings}
    if task_name == COLBERT:
        options["dimension"] = None
    if task_name == SPARSE:
        weights = {"query_regularizer_weight": 0.02, "document_regularizer_weight": 0.01}
        options |= {**weights, "regularizer_warmup_ratio": 0.0}
    base = write_base(tmp_path, task_name)
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    job = make_whole_job(tmp_path / "runs/one", task_name, data, base, options)
    write_inputs(job.run_dir, prepare(job))
    inputs = read_inputs(job.run_dir)
    task, model, _ = load(job, inputs)
    task.check_model(model)
    samples = list(Samples(Path(inputs.samples) / "train"))
    batches = [samples] if parts == 1 else [samples[:3], samples[3:]]
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    loss, _ = loss_of(task, model.eval(), batches, world, kernels)
    theirs, wanted = loss_of_sentence_transformers(task_name, base, rows, name, settings)
    assert loss / len(rows) == pytest.approx(wanted.item(), rel=1e-5)
    gradients = {layer.partition("model.")[2]: p.grad for layer, p in theirs.named_parameters()}
    if task_name != SPARSE:
        dense = theirs[2 if task_name == EMBED else 1]
        gradients["projections.0.linear.weight"] = dense.linear.weight.grad
    compared = 0
    for layer, p in model.named_parameters():
        if p.grad is not None and gradients.get(layer) is not None:
            difference = (p.grad / len(rows) - gradients[layer]).abs().max()
            assert difference < 1e-5 + 1e-3 * gradients[layer].abs().max(), layer
            compared += 1
    assert compared > 10


def test_normalized_scores_are_those_of_pylates_formula() -> None:
    """The reference repeats pylate/losses/distillation.py, with torch's loss."""
    torch.manual_seed(3)
    scores = torch.randn(4, 3).double().mul(5).requires_grad_()
    labels = torch.randn(4, 3).double() * 3
    lowest, highest = scores.min(1, keepdim=True).values, scores.max(1, keepdim=True).values
    normalized = (scores - lowest) / (highest - lowest + 1e-8)
    wanted = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)(
        normalized.log_softmax(-1), labels.log_softmax(-1)
    )
    [gradient] = torch.autograd.grad(wanted, scores)
    texts = BatchTexts(
        torch.arange(16), torch.tensor([0, 1, 2, 2] * 4), slice(0, 4), [16],
        torch.full((4,), torch.nan), (labels[:, :1] - labels[:, 1:]).flatten(),
    )  # fmt: skip
    loss = teacher_loss(KL, lambda row: scores[row.start // 4], texts, normalize=True) / 4
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    [found] = torch.autograd.grad(loss, scores)
    assert torch.allclose(found, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("task_name", "name"), [(EMBED, KL), (COLBERT, KL), (COLBERT, MARGINS), (SPARSE, KL)]
)
def test_a_model_learns_a_teachers_scores(tmp_path: Path, task_name: str, name: str) -> None:
    """The data of the validation need no scores."""
    data = write_data(tmp_path / "data", {"train": scored(60, 1), "validation": triplets(8, 2)})
    job = make_whole_job(
        tmp_path / "runs/one", task_name, data, write_base(tmp_path, task_name),
        {"loss": name, **({"dimension": None} if task_name == COLBERT else {})}, batch_size=20,
        max_steps=15, learning_rate=5e-3, eval_strategy="epoch",
    )  # fmt: skip
    events = run_rank(job)
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < 0.8 * losses[0]
    assert "ndcg_at_10" in events[-1]["metrics"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"scores": [1.0]}, r"train.jsonl:1: scores is \[1.0\], not the margins of the negatives"),
        ({"negatives": []}, "train.jsonl:1: there is no negative, and the loss compares texts"),
        ({"scores": None}, "train.jsonl:1: scores is "),
    ],
)
@pytest.mark.parametrize("task_name", [COLBERT, SPARSE])
def test_rows_without_a_teachers_scores_are_refused(
    tmp_path: Path, task_name: str, change: Row, problem: str
) -> None:
    rows = [{**row, **change} for row in scored(4, 1)]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows})
    base = write_model(tmp_path / "base", "bert", task_name, head=task_name == SPARSE)
    job = make_whole_job(tmp_path / "runs/one", task_name, data, base, {"loss": KL})
    with pytest.raises(TrainError, match=problem):
        prepare(job)
