"""Liked and disliked answers become a decoder that gives liked ones; the loss is TRL's."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.job import Job
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError
from tests.engine.beside import COMPARED
from tests.engine.jobs import make_task_of, result_of
from tests.engine.models import CHAT, make_model, make_tokenizer
from tests.engine.runs import Row, make_whole_job, write_data
from tests.engine.test_instruction_tuning import write_chat_model

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "unpaired-preference-tuning"
PAD, BEGIN, ANSWER = 0, 2, 3  # see CHAT
LIKED = (True, False, False, True, True, False)


def judged(count: int) -> list[Row]:
    """Answers with even words are liked, and those with odd words are not."""
    rows: list[Row] = []
    for i in range(count):
        label = LIKED[i % len(LIKED)]
        answer = f"w{20 + 2 * (i % 8)} w30" if label else f"w{21 + 2 * (i % 7)}"
        rows.append({"prompt": f"w{5 + i % 9} w{7 + i % 5}", "completion": answer, "label": label})
    return rows


def job_of(folder: Path, rows: list[Row], **changes: Any) -> Job:
    model = changes.pop("model", None) or write_chat_model(folder / "model")
    data = write_data(folder / "data", {"train": rows, "validation": rows[:20]})
    return make_whole_job(folder / "runs/one", TASK, data, model, **changes)


def train_set_of(job: Job) -> list[Any]:
    return list(Samples(Path(prepare(job).samples) / "train"))


def test_a_trained_model_prefers_liked_answers(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, judged(100), batch_size=8, precision="fp32", max_steps=25, learning_rate=1e-3,
        eval_on_start=True, eval_strategy="epoch",
    )  # fmt: skip
    metrics = result_of(job)["metrics"]
    lines = [json.loads(line) for line in (job.run_dir / "events.jsonl").read_text().splitlines()]
    first = next(line["metrics"] for line in lines if line["event"] == "evaluation")
    zero = {"loss": 0.5, "kl": 0, "margin": 0, "chosen_reward": 0, "rejected_reward": 0}
    assert first == pytest.approx(zero, abs=1e-5)
    assert metrics["margin"] > 0.1
    assert metrics["chosen_reward"] > 0 > metrics["rejected_reward"]
    assert metrics["loss"] < 0.48


def test_each_prompt_has_an_answer_to_another_prompt(tmp_path: Path) -> None:
    """Rows with the prompt of the row before them skip its answer."""
    rows: list[Row] = [
        {"prompt": "w5", "completion": "w6", "label": 1},
        {"prompt": "w5", "completion": "w7", "label": 0},
        {"messages": None, "prompt": "w8", "completion": "w9 w10", "label": 1},
        {"prompt": "w8", "completion": "w11", "label": 0},
    ]
    rows = [{name: row[name] for name in ("prompt", "completion", "label")} for row in rows]
    pairs = {}
    for sample in train_set_of(job_of(tmp_path, rows)):
        first, other = (
            [tokens[target] for target in sample[targets]]
            for tokens, targets in (
                (sample["input_ids"], "targets"), (sample["other_ids"], "other_targets")
            )
        )  # fmt: skip
        begin = sample["targets"][0]
        assert sample["input_ids"][:begin] == sample["other_ids"][:begin]
        pairs[tuple(first[:-1])] = tuple(other[:-1])
    assert pairs == {(6,): (11,), (7,): (11,), (9, 10): (7,), (11,): (7,)}


def test_only_the_last_message_is_judged(tmp_path: Path) -> None:
    said = [("user", "w5"), ("assistant", "w6"), ("user", "w7"), ("assistant", "w8")]
    messages = [{"role": role, "content": text} for role, text in said]
    other = [*messages[:1], {"role": "assistant", "content": "w9"}]
    rows: list[Row] = [
        {"messages": messages, "label": "thumbs_up"},
        {"messages": other, "label": "\N{THUMBS DOWN SIGN}"},
    ]
    samples = train_set_of(job_of(tmp_path, rows))
    learned = {
        tuple(sample["input_ids"][target] for target in sample["targets"]): sample["label"]
        for sample in samples
    }
    assert learned == {(8, PAD): [1], (9, PAD): [0]}


@pytest.mark.parametrize("label", [True, False])
def test_labels_that_are_all_alike(tmp_path: Path, label: bool) -> None:
    rows = [{**row, "label": label} for row in judged(6)]
    kind = "liked" if label else "disliked"
    with pytest.raises(TrainError, match=f"train: all answers .6. are {kind}"):
        prepare(job_of(tmp_path, rows))


def test_the_weights_that_balance_the_labels(tmp_path: Path) -> None:
    """TRL warns with the same numbers: desirable_weight in [0.2, 0.27]."""
    rows = [{**row, "label": number % 6 > 0} for number, row in enumerate(judged(60))]
    notices = prepare(job_of(tmp_path, rows)).notices
    assert any("a desirable_weight from 0.2 to 0.27 for these numbers" in line for line in notices)
    (tmp_path / "balanced").mkdir()
    balanced = job_of(tmp_path / "balanced", rows, options={"desirable_weight": 0.25})
    assert not any("desirable_weight" in line for line in prepare(balanced).notices)


def step_loss(task: Task, model: Any, samples: list[Any], parts: int) -> float:
    """Return the mean loss of a step with so many micro-batches, after its backward passes."""

    def forward(batch: Any) -> Any:
        inputs, targets = task.collate(batch)
        return call_model(model, inputs), targets

    size = len(samples) // parts
    batches = [samples[begin : begin + size] for begin in range(0, len(samples), size)]
    total = 0.0
    with task.evaluation_kernels(model.train()):
        with torch.no_grad():
            task.begin_step(batches, forward, Traffic())
        for batch in batches:
            loss = task.loss(*forward(batch)) / len(samples)
            loss.backward()
            total += loss.item()
    return total


@pytest.mark.parametrize("weights", [{}, {"desirable_weight": 0.5, "undesirable_weight": 1.5}])
def test_loss_gradients_and_metrics_are_those_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: dict[str, float]
) -> None:
    monkeypatch.syspath_prepend(COMPARED)
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    torch.manual_seed(3)
    start, model = make_model("llama", TASK), make_model("llama", TASK)
    with torch.no_grad():  # as after some learning
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT
    rows = judged(6)
    settings = KTOConfig(
        output_dir=str(tmp_path / "trl"), beta=0.3, use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=6, gradient_checkpointing=False, **weights,
    )  # fmt: skip
    chats = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
            "label": row["label"],
        }
        for row in rows
    ]
    theirs = copy.deepcopy(model)
    trainer = KTOTrainer(
        theirs, ref_model=start, args=settings, train_dataset=Dataset.from_list(chats),
        processing_class=tokenizer,
    )  # fmt: skip
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(6)])
    expected = trainer.compute_loss(theirs.train(), inputs)
    expected.backward()
    logged = {name: values[-1] for name, values in trainer._metrics["train"].items()}

    folder = tmp_path / "model"
    start.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    job = job_of(tmp_path, rows, model=str(folder), options={"beta": 0.3, **weights})
    samples = train_set_of(job)
    task = make_task_of(job)
    with torch.no_grad():
        task.set_reference(samples, task.predict(start.eval(), samples, bf16=False))
    task.use_fused_loss(model)
    for parts in (1, 3):  # the KL divergence is that of the whole step
        model.zero_grad()
        assert step_loss(task, model, samples, parts) == pytest.approx(expected.item(), rel=1e-5)
        for (name, ours), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, other.grad, rtol=1e-3, atol=1e-6, msg=name)
    assert logged["kl"] > 0
    with torch.no_grad():
        metrics = task.score(task.predict(model.eval(), samples, bf16=False), samples)
    assert metrics == pytest.approx(
        {
            "loss": expected.item(), "kl": logged["kl"], "margin": logged["rewards/margins"],
            "chosen_reward": logged["rewards/chosen"],
            "rejected_reward": logged["rewards/rejected"],
        },
        rel=1e-4,
    )  # fmt: skip
