"""Preference tuning of a decoder on pairs of answers; the loss equals TRL's."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ftcluster_common.protocol.job import Job
from ftcluster_common.tasks.chat import PreferenceTuning
from ftcluster_kernels.cross_entropy import token_losses
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.comm.world import World
from ftcluster_train.engine import evaluation
from ftcluster_train.engine.adapters import add_adapters, linear_layers
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import adapters_of
from ftcluster_train.patching.patch_model import disable_dropout
from tests.engine import architectures
from tests.engine.beside import COMPARED
from tests.engine.jobs import make_job, make_task_of, result_of
from tests.engine.jobs import run as run_once
from tests.engine.models import CHAT, VOCABULARY, make_model, make_tokenizer
from tests.engine.runs import Row, make_whole_job, write_data
from tests.engine.test_instruction_tuning import write_chat_model

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "preference-tuning"
PAD, BEGIN, ANSWER = 0, 2, 3  # see CHAT


def pairs(count: int) -> list[Row]:
    """Write pairs whose chosen answers have even words."""
    return [
        {"prompt": f"w{5 + i % 9} w{7 + i % 5}", "chosen": f"w{20 + 2 * (i % 8)} w30",
         "rejected": f"w{21 + 2 * (i % 7)}"}
        for i in range(count)
    ]  # fmt: skip


def job_of(folder: Path, rows: list[Row], **changes: Any) -> Job:
    model = changes.pop("model", None) or write_chat_model(folder / "model")
    data = write_data(folder / "data", {"train": rows, "validation": rows[:20]})
    return make_whole_job(folder / "runs/one", TASK, data, model, **changes)


@pytest.mark.parametrize(
    ("options", "precision", "rate"),
    [({}, "fp32", 1e-3), ({"lora_r": 8, "merge_adapters": True}, "bf16", 1e-2)],
    ids=["all weights", "adapters in bf16"],
)
def test_a_trained_model_prefers(
    tmp_path: Path, options: dict[str, Any], precision: str, rate: float
) -> None:
    job = job_of(
        tmp_path, pairs(100), options=options, batch_size=8, precision=precision, max_steps=25,
        learning_rate=rate, eval_on_start=True, eval_strategy="epoch",
    )  # fmt: skip
    found = result_of(job)["metrics"]
    lines = [json.loads(one) for one in (job.run_dir / "events.jsonl").read_text().splitlines()]
    first = next(one["metrics"] for one in lines if one["event"] == "evaluation")
    log_2 = torch.tensor(2.0).log().item()
    assert first == pytest.approx({"loss": log_2, "accuracy": first["accuracy"], "margin": 0.0},
                                  abs=1e-5 if precision == "fp32" else 2e-3)  # fmt: skip
    assert found["accuracy"] > 0.95
    assert found["margin"] > 0.1
    assert found["loss"] < 0.9 * log_2


def test_the_reference_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    """A restart or a resumed run reads the stored reference, unless the file is damaged."""
    data = tmp_path / "data"
    job = job_of(data, pairs(20), batch_size=4, max_steps=2)
    inputs = prepare(job)
    train_set = Samples(Path(inputs.samples) / "train")
    read: list[dict[int, Any]] = []
    computed: list[int] = []
    predict = evaluation.predict

    def counted(*arguments: Any) -> Any:
        computed.append(1)
        return predict(*arguments)

    monkeypatch.setattr(evaluation, "predict", counted)
    continued = replace(
        job, prefix=data, run_dir=data / "runs/two", resume=("one",), must_resume=False
    )
    continued.run_dir.mkdir()
    for again in (job, job, continued):
        task = make_task_of(again)
        shutil.rmtree(again.run_dir / "samples", ignore_errors=True)
        run_once(again, make_model("llama", TASK), list(train_set), world, task=task)
        read.append(task._reference)
    assert len(computed) == 1
    assert read[0] == read[1] == read[2] != {}
    [kept] = job.run_dir.glob("reference-*.json")
    kept.write_text(kept.read_text()[:-20])
    shutil.rmtree(job.run_dir / "samples")
    run_once(job, make_model("llama", TASK), list(train_set), world)
    assert len(computed) == 2


@pytest.mark.parametrize("name", ["gpt2", "falcon", "llama", "gemma2", "opt"])
def test_nothing_is_dropped(name: str) -> None:
    """A model has no dropout, so training and evaluation give the same output."""
    kind = architectures.kinds(architectures.Size(64, 4, 2, 8, dropout=0.5))[name]
    model = architectures.make_kind(name, kind)
    tokens = torch.arange(12).unsqueeze(0) + 4
    exact = model.eval()(input_ids=tokens).logits
    assert not torch.allclose(model.train()(input_ids=tokens).logits, exact)
    if linear_layers(model):
        add_adapters(model, PreferenceTuning(lora_r=2, lora_dropout=0.5))
    disable_dropout(model)
    torch.testing.assert_close(model.train()(input_ids=tokens).logits, exact)
    adapters = adapters_of(model)
    assert len(adapters) == len(linear_layers(model))
    assert not any(adapter.dropout for adapter in adapters.values())


def test_what_is_learned(tmp_path: Path) -> None:
    """Texts, messages after a prompt, and conversations with a common beginning are equivalent."""
    asks = {"role": "user", "content": "w5 w6"}
    good, bad = ({"role": "assistant", "content": text} for text in ("w7", "w8 w9"))
    rows: list[Row] = [
        {"prompt": "w5 w6", "chosen": "w7", "rejected": "w8 w9"},
        {"prompt": [asks], "chosen": [good], "rejected": [bad]},
        {"prompt": "w5 w6", "chosen": [asks, good], "rejected": [asks, bad]},
    ]
    tokens = [BEGIN, 5, 6, PAD, BEGIN, ANSWER, 7, PAD]
    tokens += [BEGIN, 5, 6, PAD, BEGIN, ANSWER, 8, 9, PAD]
    for number, row in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        [sample] = Samples(Path(prepare(job_of(folder, [row])).samples) / "train")
        assert sample["input_ids"] == tokens
        assert sample["documents"] == [8, 9]
        assert [tokens[target] for target in sample["targets"]] == [7, PAD, 8, 9, PAD]
        assert sample["counts"] == [2, 3]


def test_samples_of_all_sets_have_numbers_of_their_own(tmp_path: Path) -> None:
    folder = Path(prepare(job_of(tmp_path, pairs(30))).samples)
    numbers = [
        one["number"][0] for name in ("train", "validation") for one in Samples(folder / name)
    ]
    assert sorted(numbers) == list(range(50))


def test_answers_that_are_too_long(tmp_path: Path) -> None:
    rows = [*pairs(3), {"prompt": "w5 " * 40, "chosen": "w6", "rejected": "w7"}]
    rows.append({"prompt": "w5", "chosen": "w6 " * 40, "rejected": "w7"})
    assert prepare(job_of(tmp_path / "a", rows)).notices[:2] == [
        "train: 1 of 5 samples were truncated to 40 tokens",
        "train: 1 of 5 samples were skipped, because their answers are behind the first 40 tokens",
    ]
    with pytest.raises(TrainError, match="in train: all answers are behind the first 40 tokens"):
        prepare(job_of(tmp_path / "b", rows[3:4]))


@pytest.mark.parametrize("frozen", [True, False])
def test_losses_of_tokens(frozen: bool) -> None:
    """Gradients are scaled by the gradient of each token's loss."""
    torch.manual_seed(1)
    hidden = torch.randn(37, 12, requires_grad=True)
    weight = torch.randn(71, 12, requires_grad=not frozen)
    tokens, factors = torch.randint(71, (37,)), torch.randn(37)
    wanted = (hidden,) if frozen else (hidden, weight)
    found = token_losses(hidden, weight, tokens)
    exact = torch.nn.functional.cross_entropy(hidden @ weight.T, tokens, reduction="none")
    torch.testing.assert_close(found, exact)
    for one, other in zip(
        torch.autograd.grad(found, wanted, factors),
        torch.autograd.grad(exact, wanted, factors),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_some_labels_are_wrong(tmp_path: Path) -> None:
    """With label smoothing, the loss is the cross-entropy of labels that are wrong that often.

    TRL computes that for one pair with `loss_type="aot"` and `label_smoothing`.
    """
    job = make_job(tmp_path, TASK, label_smoothing_factor=0.2)
    task = make_task_of(job)
    beta, counts = 0.1, (3, 5, 2, 4)  # counts of two pairs
    logits = torch.randn(sum(counts), VOCABULARY, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(VOCABULARY, (sum(counts),))
    start = torch.tensor([[-30.0, -9.0], [-8.0, -40.0]], dtype=torch.float64)
    targets = {
        "places": torch.arange(sum(counts)), "tokens": tokens, "counts": torch.tensor(counts),
        "reference": start,
    }  # fmt: skip
    outputs = SimpleNamespace(logits=logits.float()[None])
    found = task.loss(outputs, targets)
    likely = logits.log_softmax(-1).gather(-1, tokens[:, None]).split(counts)
    (chosen, rejected) = (torch.stack([one.sum() for one in likely]).view(2, 2) - start).T
    labels = torch.full((2,), 0.8, dtype=torch.float64)
    exact = binary_cross_entropy_with_logits(
        beta * (chosen - rejected), labels, reduction="sum"
    )  # fmt: skip
    assert found.item() == pytest.approx(exact.item(), rel=1e-5)
    torch.testing.assert_close(
        *(torch.autograd.grad(one, logits)[0] for one in (found, exact)), rtol=1e-4, atol=1e-6
    )
    samples = [{"number": [number]} for number in range(2)]
    task.set_reference(samples, start.tolist())
    now = torch.stack([one.sum() for one in likely]).view(2, 2).tolist()
    assert task.score(now, samples)["loss"] == pytest.approx(exact.item() / 2, rel=1e-5)


def test_loss_and_gradients_are_those_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(COMPARED)
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    torch.manual_seed(3)
    start, model = make_model("llama", TASK), make_model("llama", TASK)
    with torch.no_grad():  # simulates some training
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT
    rows = pairs(6)
    settings = DPOConfig(
        output_dir=str(tmp_path / "trl"), beta=0.3, use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=6, gradient_checkpointing=False,
    )  # fmt: skip
    chats = [
        {name: [{"role": "user" if name == "prompt" else "assistant", "content": row[name]}]
         for name in row}
        for row in rows
    ]  # fmt: skip
    theirs = copy.deepcopy(model)
    trainer = DPOTrainer(
        theirs, ref_model=start, args=settings, train_dataset=Dataset.from_list(chats),
        processing_class=tokenizer,
    )  # fmt: skip
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(6)])
    expected = trainer.compute_loss(theirs, inputs)
    expected.backward()

    folder = tmp_path / "model"
    start.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    job = job_of(tmp_path, rows, model=str(folder), options={"beta": 0.3})
    samples = list(Samples(Path(prepare(job).samples) / "train"))
    task = make_task_of(job)
    with torch.no_grad(), task.evaluation_kernels(start.eval()):
        outputs = start(**task.collate(samples).inputs)
        task.set_reference(samples, task.predictions(outputs, samples))
    task.use_fused_loss(model)
    batch = task.collate(samples)
    with task.evaluation_kernels(model.train()):
        loss = task.loss(model(**batch.inputs), batch.targets) / len(samples)
        loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for (name, one), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("loss_type", ["orpo", "simpo", "simpo with smoothing"])
def test_losses_without_a_reference_are_those_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss_type: str
) -> None:
    """TRL's trainers get our tokens, because theirs have no chat template's end of a message."""
    monkeypatch.syspath_prepend(COMPARED)
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    model = make_model("llama", TASK)
    tokenizer = make_tokenizer()
    rows = pairs(6)
    smoothing = 0.2 if "smoothing" in loss_type else 0.0
    common = {
        "output_dir": str(tmp_path / "trl"), "use_cpu": True, "bf16": False, "report_to": "none",
        "beta": 0.7, "remove_unused_columns": False,
    }  # fmt: skip
    options: dict[str, Any] = {"beta": 0.7, "loss_type": loss_type.partition(" ")[0]}
    if loss_type == "orpo":
        kind, settings = ORPOTrainer, ORPOConfig(**common)
    else:
        options["simpo_gamma"] = 0.4
        kind, settings = CPOTrainer, CPOConfig(
            loss_type="simpo", simpo_gamma=0.4, cpo_alpha=0.0, label_smoothing=smoothing, **common
        )  # fmt: skip
    theirs = copy.deepcopy(model)
    trainer = kind(
        theirs, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    job = job_of(tmp_path, rows, options=options, label_smoothing_factor=smoothing)
    samples = list(Samples(Path(prepare(job).samples) / "train"))
    expected, logged = trainer.get_batch_loss_metrics(theirs.train(), batch_for_trl(samples))
    expected.backward()

    task = make_task_of(job)
    assert not task.needs_reference
    task.use_fused_loss(model)
    total = 0.0
    with task.evaluation_kernels(model.train()):
        parts = [samples[:2], samples[2:]]  # the loss is that of the whole step
        task.begin_step(parts, lambda _: pytest.fail("there is no further pass"), Traffic())
        for part in parts:
            batch = task.collate(part)
            loss = task.loss(model(**batch.inputs), batch.targets) / len(samples)
            loss.backward()
            total += loss.item()
    assert total == pytest.approx(expected.item(), rel=1e-5)
    for (name, ours), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-3, atol=1e-6, msg=name)
    with torch.no_grad():
        metrics = task.score(task.predict(model.eval(), samples, bf16=False), samples)
    assert metrics == pytest.approx(
        {
            "loss": expected.item(), "accuracy": logged["rewards/accuracies"],
            "margin": logged["rewards/margins"],
        },
        rel=1e-4, abs=1e-6,
    )  # fmt: skip


def batch_for_trl(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Return padded tokens, masks and labels of both answers, as TRL's collator names them."""
    batch = {}
    for place, name in enumerate(("chosen", "rejected")):
        tokens, labels = [], []
        for sample in samples:
            border = sample["documents"][0]
            begin, end = (0, border) if not place else (border, len(sample["input_ids"]))
            ids = sample["input_ids"][begin:end]
            tokens.append(torch.tensor(ids))
            targets = {target - begin for target in sample["targets"]}
            labels.append(torch.tensor([ids[i] if i in targets else -100 for i in range(len(ids))]))
        pad = torch.nn.utils.rnn.pad_sequence
        masks = [torch.ones_like(ids) for ids in tokens]
        batch[f"{name}_input_ids"] = pad(tokens, batch_first=True)
        batch[f"{name}_attention_mask"] = pad(masks, batch_first=True)
        batch[f"{name}_labels"] = pad(labels, batch_first=True, padding_value=-100)
    return batch
