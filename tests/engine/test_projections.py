"""Dense modules behind a transformer: embeddings and trainings equal sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftcluster_common.models.sentence_modules import IDENTITY, Dense, read_modules
from ftcluster_train.engine.data.download import hash_of_weights
from ftcluster_train.engine.projections import model_class_with
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.skipped_rows import why_not_skipped
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of
from tests.engine.runs import make_whole_job, triplets, write_data, write_model
from tests.engine.test_sentence_transformers import EVALUATE, TEXTS, predictions, told

pytestmark = pytest.mark.usefixtures("one_world")
EMBED = "sentence-similarity"
LAYERS = (Dense(32, 16), Dense(16, 8, False, IDENTITY))


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARED)


def write_embedder(folder: Path, normalize: bool = True) -> str:
    """Let sentence-transformers write an embedder with two Dense modules."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    plain = write_model(folder / "plain", "bert", EMBED)
    torch.manual_seed(5)
    parts = [
        modules.Transformer(plain), modules.Pooling(32), modules.Dense(32, 16),
        modules.Dense(16, 8, bias=False, activation_function=torch.nn.Identity()),
    ]  # fmt: skip
    model = SentenceTransformer(modules=[*parts, *([modules.Normalize()] if normalize else [])])
    model.save(str(folder / "dense"))
    return str(folder / "dense")


def step_of_sentence_transformers(folder: str, rows: list[dict[str, Any]], rate: float) -> Any:
    """Return the model after a step of AdamW with MultipleNegativesRankingLoss on all rows."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    model = SentenceTransformer(folder, device="cpu")
    names = ("query", "positive")
    columns = [[row[name] for row in rows] for name in names]
    columns += [[row["negatives"][n] for row in rows] for n in range(2)]
    loss = losses.MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    value = loss([model.preprocess(column) for column in columns], None)
    value.backward()
    optimizer.step()
    return model.eval()


@pytest.mark.parametrize("normalize", [True, False])
def test_a_model_with_dense_modules_is_trained_as_in_sentence_transformers(
    tmp_path: Path, normalize: bool
) -> None:
    from sentence_transformers import SentenceTransformer

    rows = triplets(12, 1)
    before = write_embedder(tmp_path, normalize)
    data = write_data(tmp_path / "data", {"train": rows, "validation": triplets(20, 2)})
    job = make_whole_job(
        tmp_path / "runs/one", EMBED, data, before, batch_size=12, max_steps=1,
        learning_rate=5e-3, weight_decay=0.0, max_grad_norm=0.0, lr_scheduler_type="constant",
        eval_strategy="epoch",
    )  # fmt: skip
    result = result_of(job)
    saved = result["model"]
    modules = read_modules(Path(saved))
    assert modules is not None
    assert (modules.dense, modules.normalize) == (LAYERS, normalize)
    assert not any("projections" in name for name in load_file(Path(saved) / "model.safetensors"))
    model = SentenceTransformer(saved, device="cpu")
    ours = torch.tensor(
        predictions(job, saved, tmp_path / "new", [{"query": text} for text in TEXTS])
    )
    assert ours.shape == (len(TEXTS), 8)
    assert torch.allclose(torch.tensor(model.encode(TEXTS)), ours, atol=1e-5)
    theirs = step_of_sentence_transformers(before, rows, 5e-3)
    for ours_of, theirs_of in zip((model[2], model[3]), (theirs[2], theirs[3]), strict=True):
        close = (ours_of.linear.weight - theirs_of.linear.weight).abs() < 1e-4
        # AdamW's first step divides gradients by themselves, also those of rounding errors
        assert close.float().mean() > 0.99
    untrained = SentenceTransformer(before, device="cpu")
    assert not torch.allclose(untrained[2].linear.weight, model[2].linear.weight, atol=1e-3)
    measured = told(job, saved, EVALUATE, tmp_path / "measured", triplets(20, 2))["metrics"]
    assert measured == pytest.approx(result["metrics"], abs=1e-5)


@pytest.mark.needs("avx2", "compiler")
def test_models_with_dense_modules_skip_rows_of_padding(tmp_path: Path) -> None:
    """The layers transform single tokens, so they are no reason to compute padding."""
    folder = write_embedder(tmp_path)
    model = model_class_with(lambda *_: (LAYERS, ()), 2).from_pretrained(folder)
    assert why_not_skipped(model) == ""
    model.encoder.layer[0].register_forward_hook(lambda *_: None)
    assert "a hook on encoder.layer.0" in why_not_skipped(model)


def test_the_best_checkpoint_has_its_own_projections(tmp_path: Path) -> None:
    """A training that gets worse ends with the weights of its first evaluation."""
    before = write_embedder(tmp_path)
    data = write_data(tmp_path / "data", {"train": triplets(24, 1), "validation": triplets(20, 2)})
    job = make_whole_job(
        tmp_path / "runs/one", EMBED, data, before, batch_size=12, max_steps=4, learning_rate=1e-2,
        eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
        load_best_model_at_end=True, metric_for_best_model="ndcg_at_10", greater_is_better=False,
    )  # fmt: skip
    result = result_of(job)
    assert result["step"] == 2
    best = tmp_path / "runs/one/checkpoints/checkpoint-2"
    for name in ("2_Dense", "3_Dense"):
        wanted = load_file(best / name / "model.safetensors")
        found = load_file(Path(result["model"]) / name / "model.safetensors")
        assert wanted.keys() == found.keys()
        assert all(torch.equal(wanted[key], found[key]) for key in wanted)


def test_a_teacher_may_have_dense_modules(tmp_path: Path) -> None:
    teacher = write_embedder(tmp_path)
    before = hash_of_weights(Path(teacher))
    layer = Path(teacher) / "2_Dense/model.safetensors"
    weights = {name: values.clone() for name, values in load_file(layer).items()}
    save_file({name: 2 * values for name, values in weights.items()}, layer)
    assert hash_of_weights(Path(teacher)) != before, "predictions of another teacher are cached"
    save_file(weights, layer)
    student = write_embedder(tmp_path / "student")
    data = write_data(tmp_path / "data", {"train": [{"text": text} for text in TEXTS]})
    job = make_whole_job(
        tmp_path / "runs/one", EMBED, data, student,
        {"loss": "mse", "validation_split_percentage": 50.0}, {"teacher": teacher}, max_steps=1,
        batch_size=2, learning_rate=0.0, eval_strategy="epoch",
    )  # fmt: skip
    metrics = result_of(job)["metrics"]
    assert metrics["cosine"] == pytest.approx(1, abs=1e-5)  # student and teacher are equal


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"activation_function": "evil.Tanh"}, "has the activation 'evil.Tanh', not supported"),
        ({"use_residual": True}, "has a residual connection, not supported"),
        ({"out_features": 15}, "cannot be loaded"),
    ],
)
def test_other_dense_modules_are_refused(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    before = write_embedder(tmp_path)
    config = Path(before) / "2_Dense/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    data = write_data(tmp_path / "data", {"train": triplets(12, 1)})
    job = make_whole_job(tmp_path / "runs/one", EMBED, data, before, max_steps=1)
    with pytest.raises(TrainError, match=problem):
        result_of(job)
