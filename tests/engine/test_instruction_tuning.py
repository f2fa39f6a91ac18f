"""Instruction tuning of a decoder on conversations; its adapters equal peft's."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.adapters import CONFIG, WEIGHTS
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.chat.marked_texts import target_tokens
from ftcluster_train.errors import TrainError
from tests.engine.beside import COMPARED
from tests.engine.jobs import make_job, make_task_of, result_of, run
from tests.engine.models import CHAT, make_model, make_tokenizer
from tests.engine.runs import WORDS, Row, make_whole_job, write_data

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "instruction-tuning"
PAD, BEGIN, ANSWER = 0, 2, 3  # see CHAT


def write_chat_model(folder: Path, kind: str = "llama", template: str | None = CHAT) -> str:
    make_model(kind, TASK).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def chats(count: int, seed: int) -> list[Row]:
    """Write conversations whose answers repeat the last word of the question."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        messages = []
        for _ in range(draw.randrange(1, 3)):
            words = draw.choices(WORDS[:20], k=draw.randrange(1, 7))
            messages += [
                {"role": "user", "content": " ".join(words)},
                {"role": "assistant", "content": f"{words[-1]} {words[-1]}"},
            ]
        rows.append({"messages": messages})
    return rows


def job_of(folder: Path, rows: list[Row], **changes: Any) -> Job:
    model = changes.pop("model", None) or write_chat_model(folder / "model")
    data = write_data(folder / "data", {"train": rows, "validation": rows[:20]})
    return make_whole_job(folder / "runs/one", TASK, data, model, **changes)


@pytest.mark.parametrize(
    ("options", "precision", "rate", "share"),
    [
        pytest.param({}, "fp32", 5e-3, 0.5, marks=pytest.mark.long),
        ({"packing": True}, "bf16", 5e-3, 0.5),
        ({"lora_r": 8}, "fp32", 3e-2, 0.97),
        pytest.param(
            {"lora_r": 8, "lora_dropout": 0.1}, "bf16", 3e-2, 0.97, marks=pytest.mark.long
        ),
        ({"lora_r": 8, "load_in_4bit": True}, "bf16", 3e-2, 0.97),
    ],
    ids=["all weights", "packed", "adapters", "adapters in bf16", "adapters of NF4"],
)
def test_a_trained_model_answers(
    tmp_path: Path, options: dict[str, Any], precision: str, rate: float, share: float
) -> None:
    job = job_of(
        tmp_path, chats(200, 1), options={**options, "merge_adapters": "lora_r" in options},
        batch_size=8, precision=precision, max_steps=60, learning_rate=rate,
        eval_on_start=True, eval_strategy="epoch",
    )  # fmt: skip
    found = result_of(job)
    lines = map(json.loads, (job.run_dir / "events.jsonl").read_text().splitlines())
    before = next(one["metrics"]["loss"] for one in lines if one["event"] == "evaluation")
    assert found["metrics"]["loss"] < share * before

    changed = replace(job.recipe, model=found["model"])
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=changed, purpose=EVALUATE)
    allowed = 1e-4 if precision == "fp32" else 0.02
    assert result_of(again)["metrics"] == pytest.approx(found["metrics"], rel=allowed)


def made(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    """Return the losses of a sample's target tokens, from transformers with one text at a time."""
    losses, start = [], 0
    for length in sample["documents"]:
        tokens = torch.tensor(sample["input_ids"][start : start + length])
        logits = model.eval()(input_ids=tokens.unsqueeze(0)).logits[0]
        targets = [t - start for t in sample["targets"] if start <= t < start + length]
        losses += [cross_entropy(logits[t - 1], tokens[t]) for t in targets]
        start += length
    return torch.stack(losses)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_no_document_sees_another_one(tmp_path: Path, world: World, kind: str) -> None:
    """Loss and gradients of a step equal the results for each document alone."""
    draw = random.Random(3)
    samples: list[Sample] = []
    for lengths in ([7, 2, 9], [12], [3, 5], [20], [4, 4, 4, 4]):
        tokens = [draw.randrange(4, 97) for _ in range(sum(lengths))]
        starts = {sum(lengths[:i]) for i in range(len(lengths))}
        targets = [i for i in range(len(tokens)) if i not in starts and draw.random() < 0.5]
        targets = targets or [1]
        samples.append({"input_ids": tokens, "targets": targets, "documents": lengths})
    job = make_job(
        tmp_path, TASK, batch_size=5, max_steps=1, gradient_accumulation_steps=2,
        max_grad_norm=0, learning_rate=1e-3,
    )  # fmt: skip
    found = run(job, make_model(kind, TASK), samples, world, validation=samples)
    reference = make_model(kind, TASK)
    losses = torch.cat([made(reference, sample) for sample in samples])
    assert found.losses[0] == pytest.approx(losses.mean().item(), rel=1e-5)
    losses.mean().backward()
    norm = torch.stack([p.grad.norm() for p in reference.parameters() if p.grad is not None]).norm()
    assert found.of("step")[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_what_is_learned(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"messages": [
            {"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7"},
            {"role": "user", "content": "w8"}, {"role": "assistant", "content": "w9"},
        ]},
    ]  # fmt: skip
    inputs = prepare(job_of(tmp_path, rows))
    [sample] = Samples(Path(inputs.samples) / "train")
    tokens = [BEGIN, 5, 6, PAD, BEGIN, ANSWER, 7, PAD, BEGIN, 8, PAD, BEGIN, ANSWER, 9, PAD]
    assert sample["input_ids"] == tokens
    assert [tokens[target] for target in sample["targets"]] == [7, PAD, 9, PAD]
    assert sample["documents"] == [15]


def test_without_a_template(tmp_path: Path) -> None:
    rows = [{"prompt": "w5 w6 ", "completion": "w7"}]
    model = write_chat_model(tmp_path / "model", template=None)
    job = job_of(tmp_path, rows, model=model, options={"chat_template": False})
    [sample] = Samples(Path(prepare(job).samples) / "train")
    tokens = sample["input_ids"]
    assert tokens == [BEGIN, 5, 6, 7, ANSWER, ANSWER]  # the end-of-text token and BERT's last token
    assert [tokens[target] for target in sample["targets"]] == [7, ANSWER]


def test_long_conversations(tmp_path: Path) -> None:
    rows = [
        {"prompt": " ".join(WORDS[:length]), "completion": "w5 w6 w7"} for length in (2, 30, 32, 50)
    ]
    inputs = prepare(job_of(tmp_path, rows, options={"max_length": 38, "packing": True}))
    assert inputs.notices[:3] == [
        "train: 1 of 4 samples were truncated to 38 tokens",
        "train: 1 of 4 samples were skipped, because their answers are behind the first 38 tokens",
        "train: 3 conversations in 3 samples",
    ]
    alone = {"prompt": " ".join(WORDS[:50]), "completion": "w5"}
    with pytest.raises(TrainError, match="all answers are behind the first 38 tokens"):
        prepare(job_of(tmp_path / "two", [alone], options={"max_length": 38}))


def dropping(folder: Path) -> str:
    return write_chat_model(folder, template="{% for m in messages %}{{ m.role }} {% endfor %}")


def refusing(folder: Path) -> str:
    return write_chat_model(folder, template="{{ raise_exception('no system here') }}")


def without(folder: Path) -> str:
    return write_chat_model(folder, template=None)


def with_code(folder: Path) -> str:
    model = Path(write_chat_model(folder))
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "mine.py").write_text("raise SystemError('it was run')\n")
    return str(model)


def quantized(folder: Path) -> str:
    config = Path(write_chat_model(folder)) / "config.json"
    how = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": how}))
    return str(folder)


@pytest.mark.parametrize(
    ("write", "options", "said"),
    [
        (dropping, {}, "train.jsonl:1: the chat template omits message 1, of the role user"),
        (refusing, {}, "train.jsonl:1: the chat template rejects the conversation: no system here"),
        (without, {}, "has no chat template"),
        (with_code, {}, "needs Python code of its own, which ftcluster does not execute"),
        (write_chat_model, {"lora_r": 4, "lora_target_modules": ("q_proj", "c_attn", "lm_head")},
         "the model has no layer c_attn; lm_head is the output layer"),
        (quantized, {"lora_r": 4, "load_in_4bit": True}, "are already quantized (bitsandbytes)"),
    ],
    ids=["dropping", "refusing", "without", "with code", "targets", "quantized"],
)  # fmt: skip
def test_models_that_are_refused(
    tmp_path: Path, write: Callable[[Path], str], options: dict[str, Any], said: str
) -> None:
    job = job_of(tmp_path, chats(30, 1), model=write(tmp_path / "model"), options=options)
    with pytest.raises(TrainError) as caught:
        result_of(job)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("kind", "changes"), [("bert", {}), ("bert", {"is_decoder": True}), ("llama", {}), ("gpt2", {})]
)
def test_which_models_keep_documents_apart(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    task = make_task_of(make_job(tmp_path, TASK))
    model = make_model(kind, TASK, **changes)
    if kind == "bert" and not changes:
        with pytest.raises(TrainError, match="which is not a decoder"):
            task.check_model(model)
    else:
        task.check_model(model)


def test_adapters_are_those_of_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """peft computes the same addend from a folder with our adapters."""
    job = job_of(
        tmp_path, chats(60, 1), batch_size=8, max_steps=6, learning_rate=1e-2,
        options={"lora_r": 4, "lora_target_modules": ("q_proj", "down_proj"), "lora_alpha": 6.0},
        save_strategy="steps", save_steps=3, eval_strategy="steps", eval_steps=3,
        load_best_model_at_end=True,
    )  # fmt: skip
    found = result_of(job)
    folder = Path(found["model"])
    assert {CONFIG, WEIGHTS, "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "model.safetensors").exists()
    config = json.loads((folder / CONFIG).read_text())
    assert config["target_modules"] == ["down_proj", "q_proj"]
    assert config["base_model_name_or_path"] == job.recipe.model
    saved = {path.name for path in (job.run_dir / "checkpoints").iterdir()}
    assert saved == {"checkpoint-3", "checkpoint-6"}

    monkeypatch.syspath_prepend(COMPARED)
    import peft

    base = AutoModelForCausalLM.from_pretrained(job.recipe.model)
    loaded = peft.PeftModel.from_pretrained(base, folder)
    merged = loaded.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    make_tokenizer().save_pretrained(tmp_path / "merged")
    changed = replace(job.recipe, model=str(tmp_path / "merged"), tokenizer=job.recipe.model)
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=changed, purpose=EVALUATE)
    assert result_of(again)["metrics"] == pytest.approx(found["metrics"], rel=1e-4)


def test_tokens_of_spaces_are_learned_where_offsets_leave_them_out() -> None:
    """The offsets of RoBERTa's, BART's and OPT's tokenizers omit spaces."""
    text = "Q: code? A: def f():\n    if x:\n        return  1   \n"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text] * 5, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    tokens = tokenizer.encode(text)
    begin = text.index("A:") + 2
    learned = target_tokens(tokens.offsets, [(begin, len(text))])
    assert any(start == end for start, end in tokens.offsets)
    assert tokenizer.decode([tokens.ids[number] for number in learned]) == text[begin:]
