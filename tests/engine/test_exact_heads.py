"""Numbers and ranks use a last layer in fp32, and scores use the activation in the files."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job
from ftcluster_train.engine.models import load_model
from ftcluster_train.engine.optim.flat_params import FlatWeights
from ftcluster_train.engine.optim.sharded_weights import ShardedWeights
from ftcluster_train.engine.tasks.rerank.metrics import ranking_metrics
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.exact_heads import exact_parameters
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.beside import COMPARED
from tests.engine.jobs import make_job, result_of, run_rank
from tests.engine.models import KINDS, MODEL_CLASSES, VOCABULARY, make_tokenizer
from tests.engine.runs import WORDS, Row, make_whole_job, numbers, write_data

pytestmark = pytest.mark.usefixtures("one_world")
RANK = "text-ranking"
CLASSIFY = "text-classification"
HEADS = ["bert", "roberta", "distilbert", "modernbert", "gpt2", "llama", "t5", "bart"]


def write_scorer(folder: Path, kind: str = "bert", spread: float = 0.3) -> str:
    """Write a model with one output, whose weights vary more than in a new model."""
    config_class, settings = KINDS[kind]
    config = config_class(
        vocab_size=VOCABULARY, pad_token_id=0, **settings(0.0), num_labels=1,
        problem_type="regression", initializer_range=spread,
    )  # fmt: skip
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def job_with(
    folder: Path, task: str, rows: list[Row], model: str, purpose: Any = "train", **changes: Any
) -> Job:
    splits = {"test": rows} if purpose == PREDICT else {"train": rows, "validation": rows}
    data = write_data(folder / "data", splits)
    precision = changes.pop("precision", "bf16")
    job = make_whole_job(folder / "runs/one", task, data, model, **changes)
    recipe = replace(job.recipe, precision=precision)
    return replace(job, recipe=recipe, precision=precision, purpose=purpose)


def answers_of(job: Job) -> list[float]:
    [file] = Path(result_of(job)["predictions"]).iterdir()
    return [json.loads(line)["prediction"] for line in file.read_text().splitlines()]


def ranked(count: int) -> list[Row]:
    draw = random.Random(5)
    return [
        {"query": f"w7 {WORDS[number % 9]}", "text": " ".join(draw.choices(WORDS, k=9)),
         "label": int(draw.random() < 0.3)}
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_numbers_have_more_digits_than_bf16(tmp_path: Path, kind: str) -> None:
    model = write_scorer(tmp_path / "model", kind)
    with torch.no_grad():  # a price near 1,500, which bf16 rounds to a multiple of 8
        loaded = AutoModelForSequenceClassification.from_pretrained(model)
        [*_, head] = [m for m in loaded.modules() if isinstance(m, torch.nn.Linear)]
        if head.bias is None:
            head.weight.mul_(1500)
        else:
            head.bias.fill_(1500.0)
        loaded.save_pretrained(model)
    rows = [{"text": row["text"]} for row in numbers(40, 3)]
    options = {"regression": True}
    jobs = {
        precision: job_with(tmp_path / precision, CLASSIFY, rows, model, PREDICT,
                            options=options, precision=precision)
        for precision in ("bf16", "fp32")
    }  # fmt: skip
    rounded, exact = (answers_of(job) for job in jobs.values())
    assert len(set(rounded)) == len(set(exact)) == 40
    assert rounded == pytest.approx(exact, abs=0.1 * max(map(abs, exact)))
    assert torch.tensor(rounded).bfloat16().double().tolist() != rounded


def test_ranks_are_those_of_fp32(tmp_path: Path) -> None:
    """Scores that would be equal in bf16 keep an order close to fp32's."""
    model, rows = write_scorer(tmp_path / "model", spread=0.05), ranked(120)
    found = {
        precision: result_of(
            job_with(tmp_path / precision, RANK, rows, model, EVALUATE, precision=precision)
        )["metrics"]
        for precision in ("bf16", "fp32")
    }
    # the lower layers are rounded, which moves ranks by up to 0.035; ties would cost 0.09
    assert found["bf16"]["ndcg_at_10"] == pytest.approx(found["fp32"]["ndcg_at_10"], abs=0.05)
    scores = answers_of(
        job_with(tmp_path / "predict", RANK,
                 [{"query": row["query"], "text": row["text"]} for row in rows], model, PREDICT)
    )  # fmt: skip
    assert len(set(scores)) > 100


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("weights", [FlatWeights, ShardedWeights])
def test_heads_stay_in_fp32_in_training(
    tmp_path: Path, kind: str, weights: Callable[[PreTrainedModel, torch.dtype], Any]
) -> None:
    folder = write_scorer(tmp_path, kind)
    recipe = replace(make_job(tmp_path / "job", CLASSIFY).recipe, from_scratch=False)
    config = KINDS[kind][0].from_pretrained(folder)
    model = load_model(MODEL_CLASSES[CLASSIFY], recipe, folder, config)
    kept = weights(model, torch.bfloat16)
    exact = exact_parameters(model)
    heads = {name: p for name, p in model.named_parameters() if p in exact}
    assert {p.shape[0] for p in heads.values()} == {1}  # only the last layer
    assert {p.dtype for p in heads.values()} == {torch.float32}
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16
    if weights is ShardedWeights:
        kept.start_gather()
        kept.pending_gathers.wait()
    tokens = torch.tensor([[2, 5, 6, 7, 3]])
    with KernelMode(context=context_of(model)), torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=tokens).logits
    assert logits.dtype == torch.float32
    logits.sum().backward()
    assert {p.grad.dtype for p in heads.values()} == {torch.float32}


def test_a_language_model_has_no_such_head(tmp_path: Path) -> None:
    for task in ("causal-lm", "sentence-similarity", "seq2seq-lm"):
        job = make_job(tmp_path / task, task)
        kind = "bart" if task == "seq2seq-lm" else "gpt2"
        config_class, settings = KINDS[kind]
        config = config_class(vocab_size=VOCABULARY, pad_token_id=0, **settings(0.0))
        model = load_model(MODEL_CLASSES[task], job.recipe, "config:x", config)
        assert exact_parameters(model) == set()


def test_equal_scores_share_their_ranks_as_in_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARED)
    from sklearn.metrics import ndcg_score

    draw = random.Random(1)
    for _ in range(12):
        count = draw.randrange(2, 30)
        scores = [float(draw.randrange(1, 5)) for _ in range(count)]
        relevant = [True, *(draw.random() < 0.3 for _ in range(count - 1))]
        found = ranking_metrics([(scores, relevant)])
        assert found["ndcg_at_10"] == pytest.approx(ndcg_score([relevant], [scores], k=10))
        # the other metrics are means over random orders
        orders = []
        for _ in range(1000):
            order = sorted(range(count), key=lambda n: (-scores[n], draw.random()))
            rank = next(place for place, n in enumerate(order, start=1) if relevant[n])
            orders.append((1 / rank if rank <= 10 else 0.0, float(rank == 1)))
        reciprocal, first = (sum(column) / len(orders) for column in zip(*orders, strict=True))
        assert found["mrr_at_10"] == pytest.approx(reciprocal, abs=0.06)
        assert found["accuracy_at_1"] == pytest.approx(first, abs=0.06)


IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
FORMS: dict[str, dict[str, Any]] = {
    "4.0": {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}},
    "4.0, sigmoid": {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.0.1"}},
    "3.0": {"sbert_ce_default_activation_function": IDENTITY},
    "6.0": {},
    "none": {},
}


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_sentence_transformers(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare an unchanged model, and a model that was trained from it."""
    monkeypatch.syspath_prepend(COMPARED)
    from sentence_transformers import CrossEncoder

    model = write_scorer(tmp_path / "model")
    file = Path(model) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | FORMS[form]))
    if form == "6.0":  # the form that version 6.0 writes itself
        peer = CrossEncoder(model, device="cpu", activation_fn=torch.nn.Identity())
        peer.save_pretrained(model := str(tmp_path / "written"))
    rows = [{"query": row["query"], "text": row["text"]} for row in ranked(9)]
    training = job_with(tmp_path / "train", RANK, ranked(60), model, precision="fp32", max_steps=2)
    for name, folder in (("plain", model), ("trained", result_of(training)["model"])):
        job = job_with(tmp_path / name, RANK, rows, folder, PREDICT, precision="fp32")
        theirs = CrossEncoder(folder, device="cpu")
        theirs.max_length = 32
        wanted = theirs.predict([(row["query"], row["text"]) for row in rows]).tolist()
        assert answers_of(job) == pytest.approx(wanted, abs=1e-4)
        outside = any(not 0 <= score <= 1 for score in wanted)
        assert outside is (form in ("4.0", "3.0", "6.0"))


@pytest.mark.parametrize(
    "path",
    ["os.system", "torch.nn.modules.linear.Linear", "torch.hub.load", "Identity", "evil.Sigmoid"],
)
@pytest.mark.parametrize("purpose", [PREDICT, EVALUATE, "train"])
def test_other_activations_are_refused(tmp_path: Path, path: str, purpose: Any) -> None:
    model = write_scorer(tmp_path / "model")
    file = Path(model) / "config.json"
    named = {"sentence_transformers": {"activation_fn": path}}
    file.write_text(json.dumps(json.loads(file.read_text()) | named))
    rows = ranked(9)
    job = job_with(tmp_path / "run", RANK, rows, model, purpose, max_steps=1)
    with pytest.raises(TrainError, match=f"has the unknown activation {path} for its scores"):
        result_of(job)


def test_predictions_that_are_all_alike_are_reported(tmp_path: Path) -> None:
    model = write_scorer(tmp_path / "model")
    loaded = AutoModelForSequenceClassification.from_pretrained(model)
    torch.nn.init.zeros_(loaded.classifier.weight)
    torch.nn.init.constant_(loaded.classifier.bias, 5.53125)
    loaded.save_pretrained(model)
    rows = numbers(20, 3)
    job = job_with(tmp_path / "one", CLASSIFY, rows, model, EVALUATE, options={"regression": True})
    said = [event["message"] for event in run_rank(job) if event["event"] == "notice"]
    assert any("validation: ALL 20 PREDICTIONS ARE ALIKE, from 5.53125" in text for text in said)
    usual = job_with(
        tmp_path / "two", CLASSIFY, rows, write_scorer(tmp_path / "other"), EVALUATE,
        options={"regression": True},
    )  # fmt: skip
    said = [event["message"] for event in run_rank(usual) if event["event"] == "notice"]
    assert not any("ALIKE" in text for text in said)
