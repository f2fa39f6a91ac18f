"""New tokens: transformers and peft compute the same, and load the result."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import add_adapters, save_adapters
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.new_tokens import add_token_rows, rows_by_layer, token_ids
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of, run_rank
from tests.engine.models import CHAT as TEMPLATE
from tests.engine.models import VOCABULARY, make_model, make_tokenizer
from tests.engine.runs import (
    classes,
    completions,
    make_whole_job,
    preferences,
    summaries,
    write_data,
)

pytestmark = pytest.mark.usefixtures("one_world")
CHAT, DPO, CLASSIFY, CLM, MLM, SEQ2SEQ = (
    "instruction-tuning", "preference-tuning", "text-classification", "causal-lm", "masked-lm",
    "seq2seq-lm",
)  # fmt: skip
ROWS = {
    CHAT: completions, DPO: preferences, CLASSIFY: classes, CLM: classes, MLM: classes,
    SEQ2SEQ: summaries,
}  # fmt: skip
CLASS_OF = {
    CHAT: AutoModelForCausalLM, DPO: AutoModelForCausalLM, CLM: AutoModelForCausalLM,
    MLM: AutoModelForMaskedLM, SEQ2SEQ: AutoModelForSeq2SeqLM,
    CLASSIFY: AutoModelForSequenceClassification,
}  # fmt: skip
NEW, SPECIAL = ("<a>", "<b>"), ("<|c|>",)
IDS = [VOCABULARY, VOCABULARY + 1, VOCABULARY + 2]


@pytest.fixture
def peft(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(COMPARED)
    import peft

    return peft


def data_of(folder: Path, task: str) -> str:
    """Write data in which three of ten words are new tokens, also in answers."""
    data = write_data(folder, {"train": ROWS[task](60, 1), "validation": ROWS[task](8, 2)})
    for file in folder.iterdir():
        text = file.read_text()
        for digit, token in zip("567", (*NEW, *SPECIAL), strict=True):
            text = re.sub(rf"\bw\d*{digit}\b", token, text)
        file.write_text(text)
    return data


def base_of(folder: Path, task: str, kind: str, **changes: Any) -> str:
    make_model(kind, task, **changes).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE if task in (CHAT, DPO) else None
    tokenizer.save_pretrained(folder)
    return str(folder)


def job_of(
    folder: Path, task: str, model: str, options: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None, run: str = "one", **training: Any,
) -> Job:  # fmt: skip
    data = data_of(folder / "data", task)
    listed = {"new_tokens": NEW, "new_special_tokens": SPECIAL, **(recipe or {})}
    return make_whole_job(folder / "runs" / run, task, data, model, options, listed, **training)


def loaded(job: Job) -> tuple[Any, Any, Sequence[Any]]:
    """Return task, model and six samples, as a rank begins with them."""
    write_inputs(job.run_dir, prepare(job))
    task, model, samples = rank.load(job, read_inputs(job.run_dir))
    task.check_model(model)
    if job.recipe.adapters:
        add_adapters(model, job.recipe.adapters)
        add_token_rows(model, token_ids(task.tokenizer, job.recipe.listed_tokens))
    return task, model.eval(), [samples["train"][number] for number in range(6)]


def loss_of(task: Any, model: Any, samples: Sequence[Any]) -> torch.Tensor:
    torch.manual_seed(7)
    drawn = [task.draw(sample, number, 0) for number, sample in enumerate(samples)]
    batch = task.collate(drawn)
    loss: torch.Tensor = task.loss(call_model(model, batch.inputs), batch.targets)
    return loss


@pytest.mark.parametrize(
    ("task_name", "kind"), [(CLM, "gpt2"), (CHAT, "llama"), (MLM, "bert"), (CLASSIFY, "bert")]
)
def test_all_weights_are_those_of_transformers(tmp_path: Path, task_name: str, kind: str) -> None:
    """The loss and all gradients equal those of `add_tokens` and `resize_token_embeddings`."""
    base = base_of(tmp_path / "base", task_name, kind)
    task, model, few = loaded(job_of(tmp_path, task_name, base))
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([*NEW])
    tokenizer.add_tokens([*SPECIAL], special_tokens=True)
    assert tokenizer.get_vocab() == task.tokenizer.get_vocab()
    other = CLASS_OF[task_name].from_pretrained(base).eval()
    other.resize_token_embeddings(len(tokenizer))
    assert model.config.vocab_size == other.config.vocab_size == VOCABULARY + 3
    for name, weight in model.named_parameters():
        theirs = other.get_parameter(name)
        torch.testing.assert_close(weight, theirs, rtol=0, atol=1e-5, msg=name)
        theirs.data.copy_(weight)  # without the noise of 1e-6 that transformers adds to the mean
    assert any(number in sample["input_ids"] for number in IDS for sample in few)
    task.packs_documents = False
    loss, expected = loss_of(task, model, few), loss_of(task, other, few)
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, weight in model.named_parameters():
        theirs = other.get_parameter(name).grad
        torch.testing.assert_close(weight.grad, theirs, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("task_name", "kind", "changes", "fused"),
    [
        (CLM, "gpt2", {}, True),
        (CHAT, "llama", {"tie_word_embeddings": False}, True),
        (CHAT, "llama", {"tie_word_embeddings": True}, False),
        (DPO, "llama", {"tie_word_embeddings": True}, True),
        (MLM, "bert", {}, True),
        (SEQ2SEQ, "t5", {"tie_word_embeddings": True}, True),
        (CLASSIFY, "bert", {}, False),
    ],
    ids=["tied", "untied", "logits", "pairs", "bias", "encoder-decoder", "classifier"],
)
def test_rows_beside_adapters_are_those_of_peft(
    tmp_path: Path, peft: Any, task_name: str, kind: str, changes: dict[str, Any], fused: bool
) -> None:
    """peft loads the saved rows, and has the same loss and gradients."""
    base = base_of(tmp_path / "base", task_name, kind, **changes)
    options = {"lora_r": 4, "merge_adapters": task_name == MLM}
    job = job_of(tmp_path, task_name, base, options)
    task, model, few = loaded(job)
    rows = rows_by_layer(model)
    assert len(rows) == 1 + (changes.get("tie_word_embeddings") is False)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "trainable_tokens" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path / "adapters"
    folder.mkdir()
    save_adapters(model, job.recipe, folder)

    plain = CLASS_OF[task_name].from_pretrained(base)
    plain.resize_token_embeddings(VOCABULARY + 3)
    other = peft.PeftModel.from_pretrained(plain, folder, is_trainable=True).eval()
    task.packs_documents = False
    if task_name == DPO:
        task._references = {}  # the reference answers are not needed for the likelihoods
    head = task.use_fused_loss(model) if fused else None
    assert (head is not None) == fused
    with KernelMode(head=head, context=context_of(model)):
        loss = measure(task, model, few)
        loss.backward()
    task.head = None
    expected = measure(task, other, few)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    theirs = {
        name.replace(".default", "").replace(".modules_to_save", ""): parameter.grad
        for name, parameter in other.named_parameters()
        if parameter.requires_grad
    }
    mine = {
        f"base_model.model.{name}" + ".weight" * name.endswith(("lora_A", "lora_B")): p.grad
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    assert theirs.keys() == mine.keys()
    assert any("trainable_tokens_delta" in name for name in mine)
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-3, atol=1e-5, msg=name)
        assert gradient.abs().max() > 0, name


def measure(task: Any, model: Any, samples: Sequence[Any]) -> torch.Tensor:
    if task.name != DPO:
        return loss_of(task, model, samples)
    from ftcluster_train.engine.tasks.chat.preference_losses import token_log_probabilities

    batch = task.collate(samples)
    likely = token_log_probabilities(
        call_model(model, batch.inputs), batch.targets, task.head
    )
    return (likely * torch.linspace(-1, 1, len(likely))).sum()


def events_of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def test_a_trained_model_has_the_tokens(tmp_path: Path) -> None:
    """transformers loads model and tokenizer; a further training adds nothing."""
    base = base_of(tmp_path / "base", CHAT, "llama")
    settings: dict[str, Any] = {"max_steps": 6, "learning_rate": 1e-2}
    first = job_of(tmp_path, CHAT, base, **settings)
    events = run_rank(first)
    [notice] = [e["message"] for e in events_of(events, "notice") if "new tokens" in e["message"]]
    assert f"3 new tokens: ids {IDS[0]} to {IDS[-1]}" in notice
    losses = [event["loss"] for event in events_of(events, "step")]
    assert losses[-1] < losses[0]
    folder = events[-1]["model"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("w9<b>w9 <|c|>", add_special_tokens=False)["input_ids"] == [
        tokenizer.get_vocab()[token] for token in ("w9", "<b>", "w9", "<|c|>")
    ]
    assert tokenizer.decode(IDS, skip_special_tokens=True).split() == ["<a>", "<b>"]
    trained = AutoModelForCausalLM.from_pretrained(folder)
    assert trained.config.vocab_size == len(tokenizer) == VOCABULARY + 3
    rows = trained.get_input_embeddings().weight[IDS]
    assert not torch.equal(rows[0], rows[1])  # both started at the mean

    again = run_rank(job_of(tmp_path, CHAT, folder, run="two", **settings))
    notices = " ".join(event["message"] for event in events_of(again, "notice"))
    assert "<a>, <b>, <|c|> are already in the vocabulary" in notices
    assert "new tokens" not in notices
    assert len(AutoTokenizer.from_pretrained(again[-1]["model"])) == VOCABULARY + 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_adapters_with_rows(tmp_path: Path, peft: Any, tied: bool, precision: str) -> None:
    """Only the new rows change; peft, an evaluation, and a resumed run have the same model."""
    base = base_of(tmp_path / "base", CHAT, "llama", tie_word_embeddings=tied)
    settings: dict[str, Any] = {
        "max_steps": 4, "learning_rate": 1e-2, "eval_strategy": "epoch", "save_strategy": "steps",
        "save_steps": 2, "precision": precision,
    }  # fmt: skip
    job = job_of(tmp_path, CHAT, base, {"lora_r": 4}, **settings)
    events = run_rank(job)
    folder = events[-1]["model"]
    config = json.loads((Path(folder) / "adapter_config.json").read_text())
    by_layer = {"model.embed_tokens": IDS, "lm_head": IDS}
    assert config["trainable_token_indices"] == (IDS if tied else by_layer)
    saved = load_file(Path(folder) / "adapter_model.safetensors")
    rows = saved["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"]
    assert rows.dtype == torch.float32
    assert not torch.equal(rows[0], rows[1])

    other = peft.AutoPeftModelForCausalLM.from_pretrained(folder).eval()
    evaluation = replace(
        job, run_dir=tmp_path / "runs/evaluation", purpose=EVALUATE,
        recipe=replace(job.recipe, model=folder, new_tokens=(), new_special_tokens=()),
    )  # fmt: skip
    [before] = [e for e in events_of(events, "evaluation") if e["step"] == 4]
    measured = result_of(evaluation)["metrics"]
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert measured["loss"] == pytest.approx(before["metrics"]["loss"], rel=tolerance)
    task, model, samples = rank.load(evaluation, read_inputs(evaluation.run_dir))
    few = task.collate([samples["validation"][n] for n in range(4)]).inputs
    with torch.inference_mode():
        torch.testing.assert_close(
            call_model(model.eval(), few).logits, call_model(other, few).logits,
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
    plain = AutoModelForCausalLM.from_pretrained(base)
    merged = other.merge_and_unload()
    for layer in ("get_input_embeddings", "get_output_embeddings"):
        weights = [getattr(each, layer)().weight for each in (plain, merged)]
        assert torch.equal(weights[0], weights[1][:VOCABULARY])

    checkpoint = str(job.run_dir / "checkpoints/checkpoint-2")
    again = job_of(
        tmp_path, CHAT, base, {"lora_r": 4}, run="two", **settings,
        resume_from_checkpoint=checkpoint,
    )  # fmt: skip
    resumed = run_rank(again)
    assert [event["step"] for event in events_of(resumed, "step")] == [3, 4]
    weights = load_file(Path(resumed[-1]["model"]) / "adapter_model.safetensors")
    assert weights.keys() == saved.keys()
    for name, values in weights.items():
        assert torch.equal(values, saved[name]), name
