"""Adapters of encoders equal peft's: loss, gradients, merged weights, and loading with peft."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_common.tasks.chat import InstructionTuning
from ftcluster_kernels import attention_heads, products
from ftcluster_kernels.cross_entropy import linear_cross_entropy
from ftcluster_kernels.documents import document_mask
from ftcluster_kernels.lora import Adapter
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import (
    _plus_adapter,
    add_adapters,
    merge_adapters,
    save_adapters,
)
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of, run_rank
from tests.engine.models import make_model, make_tokenizer
from tests.engine.peft_names import by_name, by_name_of_peft
from tests.engine.runs import make_whole_job, triplets, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
EMBED, RERANK = "sentence-similarity", "text-ranking"
LORA = {"lora_r": 4, "lora_alpha": 6.0}


def job_of(
    folder: Path, task: str, kind: str = "bert", options: Any = None, **training: Any
) -> Job:
    data = write_data(folder / "data", {"train": triplets(60, 1), "validation": triplets(10, 2)})
    model = write_model(folder / "model", kind, task)
    return make_whole_job(
        folder / "runs/one", task, data, model, {**LORA, **(options or {})}, **training
    )


def loss_of(task: Task, model: Any, samples: list[Sample]) -> torch.Tensor:
    """Return the loss of texts that predict the next token, or of pairs."""
    batch = task.collate(samples)
    outputs = call_model(model, batch.inputs)
    if task.options.__class__.__name__ == "TextRanking":
        return task.loss(outputs, batch.targets)
    pooled = functional.normalize(task.pool(outputs, batch.targets), dim=-1)  # type: ignore[attr-defined]
    return functional.cross_entropy(20 * pooled @ pooled.roll(1, 0).T, torch.arange(len(pooled)))


@pytest.mark.parametrize(
    ("name", "kind", "targets"),
    [
        (EMBED, "bert", ()),
        (EMBED, "modernbert", ("Wqkv", "Wo")),
        (RERANK, "bert", ()),
        (RERANK, "roberta", ("dense",)),
        (RERANK, "distilbert", ()),
    ],
)
def test_loss_gradients_and_merged_weights_are_those_of_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, targets: tuple[str, ...]
) -> None:
    job = job_of(tmp_path, name, kind, {"lora_target_modules": targets})
    write_inputs(job.run_dir, prepare(job))
    task, model, samples = rank.load(job, read_inputs(job.run_dir))
    task.check_model(model)
    assert job.recipe.adapters
    add_adapters(model, job.recipe.adapters)
    for layer, parameter in model.named_parameters():
        if layer.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path / "adapters"
    folder.mkdir()
    save_adapters(model, job.recipe, folder)

    monkeypatch.syspath_prepend(COMPARED)
    import peft

    kinds = {
        EMBED: (AutoModel, {}),
        RERANK: (AutoModelForSequenceClassification, {"num_labels": 1}),
    }
    kind_of_model, settings = kinds[name]
    base = kind_of_model.from_pretrained(job.recipe.model, **settings)
    other = peft.PeftModel.from_pretrained(base, folder, is_trainable=True)
    few = [samples["validation"][number] for number in range(6)]
    with KernelMode(context=context_of(model)):
        loss = loss_of(task, model, few)
        loss.backward()
    expected = loss_of(task, other, few)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    theirs, ours = by_name_of_peft(other), by_name(model)
    assert theirs.keys() == ours.keys()
    assert any("classifier" in weight for weight in ours) == (name == RERANK)
    for weight, parameter in ours.items():
        torch.testing.assert_close(
            parameter.grad, theirs[weight].grad, rtol=1e-3, atol=1e-6, msg=weight
        )

    merge_adapters(model)
    merged = other.merge_and_unload().state_dict()
    assert merged.keys() == model.state_dict().keys()
    for weight, values in model.state_dict().items():
        torch.testing.assert_close(values, merged[weight], rtol=1e-6, atol=1e-6, msg=weight)


@pytest.mark.needs("amx", "compiler")
@pytest.mark.parametrize("size", [8, pytest.param(40, marks=pytest.mark.long)])
def test_a_decoder_on_tiles_has_the_gradients_of_peft(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Packed sequences in bf16 have the gradients of peft, which gets each alone in fp32."""
    monkeypatch.syspath_prepend(COMPARED)
    import peft

    torch.manual_seed(9)
    config = LlamaConfig(
        vocab_size=640, hidden_size=512, intermediate_size=544, num_hidden_layers=2,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    ours = LlamaForCausalLM(config)
    lora = peft.LoraConfig(
        r=size, lora_alpha=12, target_modules="all-linear", init_lora_weights=False
    )
    theirs = peft.get_peft_model(copy.deepcopy(ours), lora)
    add_adapters(ours, InstructionTuning(lora_r=size, lora_alpha=12))
    given = {name.replace(".default.weight", ""): p for name, p in theirs.named_parameters()}
    adapters = {n: p for n, p in ours.named_parameters() if p.requires_grad}
    for name, parameter in adapters.items():
        parameter.data.copy_(given[f"base_model.model.{name}"])

    lengths = [300, 37, 263, 100]
    rows = [torch.randint(640, (length,)) for length in lengths]
    sum(theirs(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows).backward()

    adapted, attended = [], []
    tiles, forward = products.product_on_tiles, attention_heads.forward
    monkeypatch.setattr(
        products, "product_on_tiles", lambda *args: adapted.append(len(args) > 3) or tiles(*args)
    )
    monkeypatch.setattr(
        attention_heads, "forward", lambda *args: attended.append(1) or forward(*args)
    )
    ours.bfloat16()
    positions = torch.cat([torch.arange(length) for length in lengths])
    learned = torch.cat([torch.arange(length) < length - 1 for length in lengths])
    every = torch.cat(rows)
    with (
        KernelMode([Attention(with_dropout=False).patch()], context=context_of(ours)),
        torch.autocast("cpu", torch.bfloat16),
    ):
        hidden = ours.model(
            every[None], document_mask(lengths), positions[None], use_cache=False
        ).last_hidden_state
        targets = every.roll(-1)[learned]
        linear_cross_entropy(hidden[0, learned], ours.lm_head.weight, targets).backward()
    # each block has seven layers, but in the first block queries, keys and values need no gradient
    # of their input; in addition the logits, and the gradient of the hidden states
    assert (sum(adapted), len(adapted), len(attended)) == (2 * 7 * 2 - 3, 2 * 7 * 2 - 3 + 2, 2)
    for name, parameter in adapters.items():
        exact = given[f"base_model.model.{name}"].grad
        error = float((parameter.grad.float() - exact).norm() / exact.norm())
        assert error < 0.03, (name, error)


def test_a_trained_embedder_loads_with_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train in bf16; sentence-transformers' files are beside the adapters."""
    job = job_of(
        tmp_path, EMBED, batch_size=20, max_steps=20, learning_rate=2e-2, precision="bf16",
        gradient_accumulation_steps=2, save_strategy="steps", save_steps=10, eval_on_start=True,
        eval_strategy="steps", eval_steps=10, load_best_model_at_end=True,
    )  # fmt: skip
    events = run_rank(job)
    first, *_, found = (one["metrics"] for one in events if one["event"] == "evaluation")
    assert found["ndcg_at_10"] > first["ndcg_at_10"] + 0.1
    [reloaded, *_] = [one for one in events if one["event"] == "reloaded"]
    assert 0 < reloaded["difference"] < 0.05
    folder = Path(events[-1]["model"])
    files = {path.name for path in folder.iterdir()}
    assert {"adapter_model.safetensors", "modules.json", "1_Pooling", "tokenizer.json"} <= files
    assert "model.safetensors" not in files
    # the card names no base model if that is a folder
    assert "base_model_relation" not in (folder / "README.md").read_text()

    monkeypatch.syspath_prepend(COMPARED)
    import peft

    base = AutoModel.from_pretrained(job.recipe.model)
    merged = peft.PeftModel.from_pretrained(base, folder).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    make_tokenizer().save_pretrained(tmp_path / "merged")
    recipe = replace(job.recipe, model=str(tmp_path / "merged"), tokenizer=str(folder))
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=recipe, purpose=EVALUATE)
    assert result_of(again)["metrics"] == pytest.approx(events[-1]["metrics"], abs=0.03)


def test_a_merged_reranker_is_a_plain_model(tmp_path: Path) -> None:
    """Merge a reranker, whose base checkpoint has no pooler either."""
    job = job_of(
        tmp_path, RERANK, batch_size=30, max_steps=30, learning_rate=1e-2, eval_strategy="steps",
        eval_steps=30, eval_on_start=True, options={"merge_adapters": True},
    )  # fmt: skip
    plain = make_model("bert", RERANK)
    plain.bert.pooler = None
    plain.bert.save_pretrained(job.recipe.model)
    events = run_rank(job)
    first, found = (one["metrics"] for one in events if one["event"] == "evaluation")
    assert found["loss"] < first["loss"] - 0.02
    folder = Path(events[-1]["model"])
    assert (folder / "model.safetensors").exists()
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 32
    again = replace(job.recipe, model=str(folder))
    job = replace(job, run_dir=tmp_path / "runs/two", recipe=again, purpose=EVALUATE)
    assert result_of(job)["metrics"] == pytest.approx(found, abs=1e-5)


def test_weights_that_would_stay_random_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, EMBED)
    model = make_model("bert", EMBED)
    weights = model.state_dict()
    del weights["encoder.layer.1.output.dense.weight"]
    model.save_pretrained(job.recipe.model, state_dict=weights)
    with pytest.raises(
        TrainError, match=r"lacks the weights encoder\.layer\.1\.output\.dense\.weight"
    ):
        run_rank(job)


@pytest.mark.parametrize(("task", "said"), [("masked-lm", True), (EMBED, False), (RERANK, False)])
def test_weights_that_are_random_are_said(tmp_path: Path, task: str, said: bool) -> None:
    """Report random weights: a language model's head should be in its checkpoint."""
    job = job_of(tmp_path, EMBED, max_steps=1)
    data = str(tmp_path / "data")
    if task == "masked-lm":
        data = write_data(tmp_path / "texts", {"train": [{"text": "w5 w6 w7 w8"}] * 40})
    job = make_whole_job(tmp_path / "runs/two", task, data, job.recipe.model, max_steps=1)
    notices = [one["message"] for one in run_rank(job) if one["event"] == "notice"]
    random = [one for one in notices if one.startswith("RANDOM at first: ")]
    assert bool(random) == said
    if said:
        assert "lacks the weights cls.predictions.bias and 4 more, " in random[0]


def test_adapters_of_fp32_beside_weights_in_bf16() -> None:
    """`generate` combines both on hosts with bf16 instructions, where nothing casts."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).bfloat16()
    down, up = torch.randn(2, 8), torch.randn(8, 2)
    one, x = layers[0], torch.randn(3, 8).bfloat16()
    plain = one(x)
    factors = torch.nn.Parameter(down), torch.nn.Parameter(up)
    one.register_forward_hook(partial(_plus_adapter, Adapter(*factors, 2.0)))
    assert torch.equal(one(x), (plain + 2 * (x.float() @ down.T @ up.T)).bfloat16())
    assert layers(x).dtype == torch.bfloat16


@pytest.mark.parametrize("name", [EMBED, RERANK])
def test_adapters_are_measured_with_their_base(tmp_path: Path, name: str) -> None:
    job = job_of(
        tmp_path, name, batch_size=30, max_steps=20, learning_rate=2e-2, eval_strategy="steps",
        eval_steps=20, eval_on_start=True,
    )  # fmt: skip
    events = run_rank(job)
    first, found = (one["metrics"] for one in events if one["event"] == "evaluation")
    assert found != first
    folder = events[-1]["model"]
    assert not (Path(folder) / "config.json").exists()
    recipe = replace(job.recipe, model=folder, options=replace(job.recipe.options, lora_r=None))
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=recipe, purpose=EVALUATE)
    assert result_of(again)["metrics"] == pytest.approx(found, abs=1e-5)
