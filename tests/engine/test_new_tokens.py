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
    BertTokenizer,
    EncoderDecoderModel,
)

from ftcluster_common.models.adapter_config import continued, read_adapters
from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import add_adapters, save_adapters
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.generation import load_decoder
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.new_tokens import (
    add_token_rows,
    extend_embeddings,
    extend_tokenizer,
    rows_by_layer,
    token_ids,
)
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
    triplets,
    write_data,
)

pytestmark = pytest.mark.usefixtures("one_world")
CHAT, DPO, CLASSIFY, CLM, MLM, SEQ2SEQ, EMBED = (
    "instruction-tuning", "preference-tuning", "text-classification", "causal-lm", "masked-lm",
    "seq2seq-lm", "sentence-similarity",
)  # fmt: skip
ROWS = {
    CHAT: completions, DPO: preferences, CLASSIFY: classes, CLM: classes, MLM: classes,
    SEQ2SEQ: summaries, EMBED: triplets,
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
    likely = token_log_probabilities(call_model(model, batch.inputs), batch.targets, task.head)
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
    assert f"3 new tokens were added to the vocabulary: ids {IDS[0]} to {IDS[-1]}" in notice
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


@pytest.mark.parametrize(
    ("tied", "precision"), [(True, "fp32"), (False, "bf16")], ids=["tied", "untied in bf16"]
)
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
    _, model, _ = rank.load(evaluation, read_inputs(evaluation.run_dir))
    few = {"input_ids": torch.tensor([[4, *IDS, 9]])}
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


def test_rows_without_a_token_are_used_first(tmp_path: Path) -> None:
    """A model with more rows than tokens keeps its size; the free rows start at the mean."""
    model = make_model("llama", CLM, tie_word_embeddings=False)
    model.resize_token_embeddings(VOCABULARY + 8)
    torch.nn.init.normal_(model.get_input_embeddings().weight[VOCABULARY:], mean=50)
    model.save_pretrained(tmp_path / "base")
    make_tokenizer().save_pretrained(tmp_path / "base")
    _, trained, _ = loaded(job_of(tmp_path, CLM, str(tmp_path / "base")))
    for layer in (trained.get_input_embeddings(), trained.get_output_embeddings()):
        assert len(layer.weight) == VOCABULARY + 8
        mean = layer.weight[:VOCABULARY].mean(0)
        torch.testing.assert_close(layer.weight[IDS], mean.expand(3, -1))
    free = trained.get_input_embeddings().weight[VOCABULARY + 3 :]
    assert torch.equal(free, model.get_input_embeddings().weight[VOCABULARY + 3 :])


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"merge_adapters": True}, "fp32"),
        ({"merge_adapters": True, "use_dora": True}, "bf16"),
        ({"load_in_4bit": True}, "bf16"),
        ({"load_in_4bit": True, "merge_adapters": True}, "bf16"),
    ],
    ids=["merged", "merged in bf16", "NF4", "merged NF4"],
)
def test_other_ways_of_saving(tmp_path: Path, options: dict[str, Any], precision: str) -> None:
    """The saved model generates as the trained one, and its rows differ from their start."""
    base = base_of(tmp_path / "base", CHAT, "llama", tie_word_embeddings=False)
    job = job_of(
        tmp_path, CHAT, base, {"lora_r": 4, **options}, max_steps=4, learning_rate=1e-2,
        eval_strategy="epoch",
    )  # fmt: skip
    job = replace(job, precision=precision, recipe=replace(job.recipe, precision=precision))
    events = run_rank(job)
    folder = Path(events[-1]["model"])
    model = load_decoder(str(folder), tmp_path, torch.float32)
    assert len(model.get_input_embeddings().weight) == VOCABULARY + 3
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        rows = layer.weight[IDS]
        assert (rows[0] - rows[1]).abs().max() > 1e-3
    evaluation = replace(
        job, run_dir=tmp_path / "runs/evaluation", purpose=EVALUATE,
        recipe=replace(
            job.recipe, model=str(folder), options=replace(job.recipe.options, lora_r=None),
            new_tokens=(), new_special_tokens=(),
        ),
    )  # fmt: skip
    measured = result_of(evaluation)["metrics"]
    assert measured["loss"] == pytest.approx(events[-1]["metrics"]["loss"], rel=2e-2)


def test_adapters_with_rows_are_continued(tmp_path: Path) -> None:
    """A further training trains the same rows, from their saved values; merging keeps them."""
    base = base_of(tmp_path / "base", CHAT, "llama", tie_word_embeddings=True)
    first = job_of(tmp_path, CHAT, base, {"lora_r": 4}, max_steps=4, learning_rate=1e-2)
    folder = Path(result_of(first)["model"])
    name = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    rows = load_file(folder / "adapter_model.safetensors")[name]
    implied, problems = continued({}, read_adapters(folder), first.recipe.spec)
    assert not problems
    assert implied.pop("adapter_base") == base

    def further(run: str, **changes: Any) -> Job:
        job = job_of(tmp_path, CHAT, str(folder), run=run, max_steps=1, learning_rate=1e-3)
        options = replace(job.recipe.options, **{**implied, **changes})
        return replace(
            job, recipe=replace(
                job.recipe, options=options, adapter_base=base, new_tokens=("w4",),
                new_special_tokens=(),
            ),
        )  # fmt: skip

    saved = Path(result_of(further("two"))["model"])
    assert read_adapters(saved).token_ids == {
        "model.embed_tokens": (4, *IDS)
    }  # the same, and the listed token
    after = load_file(saved / "adapter_model.safetensors")[name]
    step = (after[1:] - rows).abs().max()
    assert 0 < step < 1.1e-3
    whole = Path(result_of(further("three", lora_r=None))["model"])
    merged = AutoModelForCausalLM.from_pretrained(whole).get_input_embeddings().weight[IDS]
    assert 0 < (merged - rows).abs().max() < 1.1e-3


def test_a_chat_template_ends_answers_with_a_new_token(tmp_path: Path) -> None:
    """The loss and the generation know the token that the template writes after an answer."""
    base = base_of(tmp_path / "base", CHAT, "llama")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = TEMPLATE.replace("[PAD]", SPECIAL[0])
    tokenizer.save_pretrained(base)
    job = job_of(tmp_path, CHAT, base, max_steps=2)
    folder = Path(result_of(job)["model"])
    samples = Samples(Path(read_inputs(job.run_dir).samples) / "train")
    whole = [sample for sample in samples if len(sample["input_ids"]) < 40]  # max_length
    assert len(whole) > 40
    assert all(IDS[2] in (sample["input_ids"][n] for n in sample["targets"]) for sample in whole)
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert IDS[2] in ends
    assert AutoTokenizer.from_pretrained(folder).chat_template == tokenizer.chat_template


def word_pieces(folder: Path) -> str:
    """Write a tokenizer that lowers texts, as BERT's, with an unused token."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "[unused1]",
        "heart",
        "##s",
        "co",
        "##vid",
    ]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_tokens_of_the_vocabulary_are_not_added_twice(tmp_path: Path) -> None:
    folder = word_pieces(tmp_path / "model")
    recipe = job_of(tmp_path, CLASSIFY, folder).recipe
    listed = replace(recipe, new_tokens=("heart", "COVID"), new_special_tokens=("[unused1]", "[E]"))
    extended, new, notices = extend_tokenizer(listed, folder, tmp_path / "extended")
    assert new == [10, 11]
    tokenizer = AutoTokenizer.from_pretrained(extended)
    ids = tokenizer("hearts covid [unused1][E]", add_special_tokens=False)["input_ids"]
    assert ids == [6, 7, 10, 5, 11]
    assert len(tokenizer) == 12
    text = " ".join(notices)
    assert "heart is already in the vocabulary" in text
    assert "[unused1]: the vocabulary had this text" in text
    # the second time, nothing is left to do
    again, new, _ = extend_tokenizer(listed, extended, tmp_path / "again")
    assert (again, new) == (extended, [])
    with pytest.raises(TrainError, match=r"does not read '(covid|COVID)' as one token"):
        extend_tokenizer(replace(listed, new_tokens=("COVID", "covid")), folder, tmp_path / "x")


def test_what_cannot_have_new_tokens_is_refused(tmp_path: Path) -> None:
    """The refusal comes before the ranks start, and names a way out."""
    for task, kind, reason in (
        (MLM, "bert", "has a bias, which peft leaves out"),
        (EMBED, "bert", "sentence-transformers cannot load adapters with new tokens"),
    ):
        base = base_of(tmp_path / task, task, kind)
        options = {"lora_r": 4}
        with pytest.raises(TrainError, match=reason) as refusal:
            prepare(job_of(tmp_path / task, task, base, options))
        assert "merge_adapters=true" in (refusal.value.hint or "")
        prepare(job_of(tmp_path / task, task, base, {**options, "merge_adapters": True}))
    parts = [make_model("bert", CLM, is_decoder=decodes) for decodes in (False, True)]
    pair = EncoderDecoderModel(encoder=parts[0].base_model, decoder=parts[1])
    with pytest.raises(TrainError, match="type encoder-decoder cannot have new tokens"):
        extend_embeddings(pair, IDS)


@pytest.mark.usefixtures("peft")
@pytest.mark.parametrize(("task", "kind"), [(CHAT, "llama"), (CLASSIFY, "bert")])
def test_the_card_shows_how_to_load_the_tokens(tmp_path: Path, task: str, kind: str) -> None:
    base = base_of(tmp_path / "base", task, kind)
    job = job_of(tmp_path, task, base, {"lora_r": 4}, max_steps=2, learning_rate=1e-2)
    folder = Path(result_of(job)["model"])
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace('"base"', repr(base)).replace('"FOLDER"', repr(str(folder))), names)
    rows = names["model"].merge_and_unload().get_input_embeddings().weight[IDS]
    saved = load_file(folder / "adapter_model.safetensors")
    [trained] = [
        v for n, v in saved.items() if "embed" in n and n.endswith("trainable_tokens_delta")
    ]
    assert torch.equal(rows, trained)
