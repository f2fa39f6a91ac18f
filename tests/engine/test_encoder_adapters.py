"""Adapters of encoders of three kinds: sentence-transformers and peft agree on the same files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from ftcluster_common.models.adapter_config import continued, read_adapters
from ftcluster_common.protocol.job import PREDICT, Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import add_adapters
from ftcluster_train.engine.checkpoints import save_model
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.beside import with_compared
from tests.engine.jobs import result_of
from tests.engine.runs import Row, make_whole_job, triplets, write_data, write_model
from tests.engine.test_in_batch_negatives import loss_of
from tests.engine.test_multi_vector_encoding import write_encoder
from tests.engine.test_projections import write_embedder
from tests.engine.test_sentence_transformers import (
    EVALUATE,
    LONG,
    TEXTS,
    predictions,
    told,
)

pytestmark = pytest.mark.usefixtures("one_world")
EMBED, COLBERT, SPARSE = "sentence-similarity", "multi-vector-encoding", "sparse-encoding"
LORA = {"lora_r": 4, "lora_alpha": 6.0}
# the folder of an encoder's linear layer, which is trained in full beside the adapters
KINDS = {
    "dense": (EMBED, "2_Dense"), "new projection": (COLBERT, "1_Dense"),
    "encoder": (COLBERT, "1_Dense"), "sparse": (SPARSE, ""),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make peft and sentence-transformers importable; transformers remembers if peft is there."""
    yield from with_compared(monkeypatch)


def write_base(folder: Path, kind: str) -> str:
    if kind == "dense":
        return write_embedder(folder)
    if kind == "encoder":
        return write_encoder(folder, {"strategy": "fixed", "length": 8, "attend": False})
    return write_model(folder / "base", "bert", KINDS[kind][0], head=kind == "sparse")


def job_of(
    folder: Path, kind: str, options: Mapping[str, Any] | None = None, **training: Any
) -> Job:
    data = write_data(folder / "data", {"train": triplets(60, 1), "validation": triplets(12, 2)})
    job = make_whole_job(
        folder / "runs/one", KINDS[kind][0], data, write_base(folder, kind), **training
    )
    changed = {**LORA, **({"dimension": None} if kind == "encoder" else {}), **(options or {})}
    return replace(job, recipe=replace(job.recipe, options=replace(job.recipe.options, **changed)))


def loaded(task: str, folder: str) -> Any:
    """Return the encoder that sentence-transformers loads from a folder of adapters."""
    import sentence_transformers

    classes = {EMBED: "SentenceTransformer", COLBERT: "MultiVectorEncoder", SPARSE: "SparseEncoder"}
    return getattr(sentence_transformers, classes[task])(folder, device="cpu")


def loss_of_sentence_transformers(task: str, model: Any, rows: Sequence[Row]) -> torch.Tensor:
    from sentence_transformers.multi_vector_encoder import losses as of_tokens
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sparse_encoder import losses as of_words

    columns = [[row["query"] for row in rows], [row["positive"] for row in rows]]
    columns += [[row["negatives"][n] for row in rows] for n in range(2)]
    if task == COLBERT:
        features = []
        for number, column in enumerate(columns):
            kind = "document" if number else "query"
            prompt = model.prompts.get(kind)
            features.append({**model.preprocess(column, prompt=prompt, task=kind), "task": kind})
        return of_tokens.MultiVectorMultipleNegativesRankingLoss(model)(features)
    features = [model.preprocess(column) for column in columns]
    if task == EMBED:
        return losses.MultipleNegativesRankingLoss(model)(features, None)
    matching = of_words.SparseMultipleNegativesRankingLoss(model)
    parts = of_words.SpladeLoss(
        model, matching, query_regularizer_weight=0.02, document_regularizer_weight=0.01
    )(features)
    return sum(parts.values())


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_sentence_transformers(
    tmp_path: Path, world: World, kind: str
) -> None:
    """sentence-transformers reads the folder with peft, and trains the same parameters."""
    rows, name = triplets(8, 1), KINDS[kind][0]
    weights = {"query_regularizer_weight": 0.02, "document_regularizer_weight": 0.01}
    options = {**weights, "regularizer_warmup_ratio": 0.0} if kind == "sparse" else {}
    job = job_of(tmp_path, kind, {**options, "use_dora": kind == "sparse"})
    data = write_data(tmp_path / "eight", {"train": rows, "validation": rows})
    job = replace(job, recipe=replace(job.recipe, data=data))
    write_inputs(job.run_dir, prepare(job))
    inputs = read_inputs(job.run_dir)
    task, model, _ = rank.load(job, inputs)
    task.check_model(model)
    assert job.recipe.adapters
    add_adapters(model, job.recipe.adapters)
    torch.manual_seed(4)
    for layer, parameter in model.named_parameters():
        if layer.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.1)
    save_model(model, task, tmp_path / "saved")

    theirs = loaded(name, str(tmp_path / "saved"))
    for layer, parameter in theirs.named_parameters():
        parameter.requires_grad_("lora_" in layer or ".linear." in layer)
    theirs.eval()[1].train()  # outside a training, SpladePooling overwrites its input
    wanted = loss_of_sentence_transformers(name, theirs, rows)
    wanted.backward()
    samples = list(Samples(Path(inputs.samples) / "train"))
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    parts = [samples[:3], samples[3:]]
    loss, _ = loss_of(task, model.eval(), parts, world, kernels, context_of(model))
    assert loss / len(rows) == pytest.approx(wanted.item(), rel=1e-5)
    trained = {
        layer.replace(".default", "").removesuffix(".weight"): parameter
        for layer, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    first = 2 if kind == "dense" else 1
    compared = 0
    for layer, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if layer.startswith("projections."):
            _, number, rest = layer.split(".", 2)
            other = trained.pop(f"{int(number) + first}.{rest}".removesuffix(".weight"))
        else:
            [named] = [key for key in trained if key.endswith(f".{layer}")]
            other = trained.pop(named)
        if other.grad is None:  # in the pooler
            assert parameter.grad is None
            continue
        gradient = parameter.grad / len(rows)
        limit = 1e-3 * other.grad.abs().max() + 1e-6
        assert (gradient - other.grad).abs().max() < limit, layer
        compared += 1
    assert not trained
    assert compared > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("merge", [False, True], ids=["alone", "merged"])
def test_a_trained_folder_loads_in_sentence_transformers(
    tmp_path: Path, kind: str, merge: bool
) -> None:
    """The scores are those of predict and of evaluate; a second training continues the folder."""
    name, layer = KINDS[kind]
    job = job_of(
        tmp_path, kind, {"merge_adapters": merge}, batch_size=20, max_steps=8, learning_rate=1e-2,
        eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4,
        load_best_model_at_end=True,
    )  # fmt: skip
    result = result_of(job)
    saved = result["model"]
    files = {path.name for path in Path(saved).iterdir()}
    assert ("model.safetensors" in files, "adapter_config.json" in files) == (merge, not merge)
    model = loaded(name, saved)
    ours = predictions(job, saved, tmp_path / "new", [{"query": t} for t in TEXTS], lora_r=None)
    encode = model.encode if name == EMBED else model.encode_document
    theirs = encode(TEXTS)
    for prediction, vector in zip(ours, theirs, strict=True):
        if name == SPARSE:
            ids = model.tokenizer.convert_tokens_to_ids([*prediction])
            dense = vector.to_dense()
            assert dense.nonzero().squeeze(1).tolist() == sorted(ids)
            prediction, vector = [*prediction.values()], dense[ids]
        expected = torch.as_tensor(vector)
        assert torch.allclose(torch.tensor(prediction), expected, atol=1e-5)
    measured = told(job, saved, EVALUATE, tmp_path / "measured", triplets(12, 2), lora_r=None)
    assert measured["metrics"] == pytest.approx(result["metrics"], abs=1e-5)
    if layer and kind != "new projection":  # the layer is trained in full
        before, after = (
            load_file(Path(folder) / layer / "model.safetensors")["linear.weight"]
            for folder in (job.recipe.model, saved)
        )
        assert 1e-4 < (after - before).abs().max() < 0.1
    if merge:
        return

    implied, problems = continued({}, read_adapters(Path(saved)), job.recipe.spec)
    assert not problems
    base = implied.pop("adapter_base")
    options = replace(job.recipe.options, **implied)
    recipe = replace(job.recipe, model=saved, adapter_base=base, options=options)
    training = replace(recipe.training, max_steps=1, learning_rate=0.0)
    again = replace(job, run_dir=tmp_path / "runs/again", recipe=replace(recipe, training=training))
    second = result_of(again)
    assert second["metrics"] == pytest.approx(result["metrics"], abs=1e-5)
    for file in ("adapter_model.safetensors", *([f"{layer}/model.safetensors"] if layer else [])):
        first, other = (load_file(Path(r["model"]) / file) for r in (result, second))
        assert all(torch.equal(first[key], other[key]) for key in first)


def test_an_embedder_of_peft_with_a_dense_module_is_evaluated(tmp_path: Path) -> None:
    """sentence-transformers has written adapters, with a Dense module that their base lacks."""
    import peft
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    plain = write_model(tmp_path / "plain", "bert", EMBED)
    torch.manual_seed(5)
    parts = [modules.Transformer(plain), modules.Pooling(32, "cls"), modules.Dense(32, 16)]
    model = SentenceTransformer(modules=parts, device="cpu")
    config = peft.LoraConfig(r=4, init_lora_weights=False, target_modules=["query", "value"])
    model.add_adapter(config)
    model.save(str(tmp_path / "adapters"))
    assert not (tmp_path / "adapters/config.json").exists()
    data = write_data(tmp_path / "data", {"train": triplets(12, 1)})
    job = make_whole_job(tmp_path / "runs/one", EMBED, data, plain, {"max_length": 24})
    texts = [text for text in TEXTS if text != LONG]  # both have their own limit of tokens
    asked = write_data(tmp_path / "asked", {"test": [{"query": text} for text in texts]})
    recipe = replace(job.recipe, model=str(tmp_path / "adapters"), data=asked)
    result = result_of(replace(job, recipe=recipe, purpose=PREDICT))
    [file] = Path(result["predictions"]).iterdir()
    ours = [json.loads(line)["prediction"] for line in file.read_text().splitlines()]
    expected = torch.tensor(model.encode(texts))
    assert expected.shape == (len(texts), 16)
    assert torch.allclose(torch.tensor(ours), expected, atol=1e-5)
    # peft alone reads the adapters of the transformer
    other = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(plain), tmp_path / "adapters")
    assert any("lora_A" in name for name, _ in other.named_parameters())


def test_a_dense_module_beside_weights_in_bf16_is_not_rounded(tmp_path: Path) -> None:
    job = job_of(tmp_path, "dense", max_steps=1, learning_rate=0.0, precision="bf16")
    saved = result_of(job)["model"]
    before, after = (
        load_file(Path(folder) / "2_Dense/model.safetensors")
        for folder in (job.recipe.model, saved)
    )
    assert after["linear.weight"].dtype == torch.float32
    assert torch.equal(before["linear.weight"], after["linear.weight"])


@pytest.mark.parametrize(("kind", "target"), [("dense", "linear"), ("encoder", "projections")])
def test_a_dense_module_gets_no_adapter(tmp_path: Path, kind: str, target: str) -> None:
    job = job_of(tmp_path, kind, {"lora_target_modules": ("query", target)}, max_steps=1)
    with pytest.raises(TrainError, match="lora_target_modules does not fit"):
        result_of(job)


def test_a_damaged_dense_module_beside_adapters_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, "dense", max_steps=1)
    saved = Path(result_of(job)["model"])
    (saved / "2_Dense/model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(TrainError, match="2_Dense cannot be loaded"):
        told(job, str(saved), EVALUATE, tmp_path / "measured", triplets(12, 2), lora_r=None)
