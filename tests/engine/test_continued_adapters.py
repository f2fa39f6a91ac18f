"""A training continues adapters that peft or ftcluster has written, or merges them."""

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from ftcluster_common.given_files import GivenFileError
from ftcluster_common.models.adapter_config import continued, read_adapters
from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_kernels.lora import Adapter
from ftcluster_kernels.products import torch_linear
from ftcluster_train.engine import rank
from ftcluster_train.engine.adapters import add_adapters
from ftcluster_train.engine.continued import load_adapters
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.new_tokens import add_token_rows
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.batch_context import context_of
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.beside import COMPARED
from tests.engine.jobs import result_of, run_rank
from tests.engine.peft_names import by_name, by_name_of_peft
from tests.engine.runs import (
    classes,
    completions,
    make_whole_job,
    preferences,
    triplets,
    write_data,
    write_model,
)
from tests.engine.test_instruction_tuning import write_chat_model

pytestmark = pytest.mark.usefixtures("one_world")
CHAT, DPO, CLASSIFY, EMBED, RERANK = (
    "instruction-tuning", "preference-tuning", "text-classification", "sentence-similarity",
    "text-ranking",
)  # fmt: skip
ROWS = {CHAT: completions, DPO: preferences, CLASSIFY: classes, EMBED: triplets, RERANK: triplets}
WIDEST = 64  # inputs of the widest layer of the small models
PEFT_CLASSES: dict[str, tuple[Any, dict[str, Any], str]] = {
    CHAT: (AutoModelForCausalLM, {}, "CAUSAL_LM"),
    CLASSIFY: (AutoModelForSequenceClassification, {"num_labels": 3}, "SEQ_CLS"),
    EMBED: (AutoModel, {}, "FEATURE_EXTRACTION"),
}


@pytest.fixture
def peft(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(COMPARED)
    import peft

    return peft


def write_base(folder: Path, task: str, kind: str) -> str:
    if task in (CHAT, DPO):
        return write_chat_model(folder, kind)
    return write_model(folder, kind, task)


def adapters_of_peft(peft: Any, folder: Path, base: str, task: str, **settings: Any) -> Any:
    """Write adapters as a user of peft would after a training; return peft's model."""
    model_class, of_class, kind = PEFT_CLASSES[task]
    torch.manual_seed(3)
    plain = model_class.from_pretrained(base, **of_class)
    config = peft.LoraConfig(task_type=kind, init_lora_weights=False, **settings)
    model = peft.get_peft_model(plain, config)
    model.save_pretrained(folder)
    return model


def job_from(
    folder: Path, task: str, adapters: Path | str, run: str = "one",
    options: dict[str, Any] | None = None, **training: Any,
) -> Job:  # fmt: skip
    """Return a job whose recipe is completed as the control node completes it."""
    rows = ROWS[task]
    data = write_data(folder / f"data-{task}", {"train": rows(40, 1), "validation": rows(8, 2)})
    job = make_whole_job(folder / "runs" / run, task, data, str(adapters), options, **training)
    implied, problems = continued(options or {}, read_adapters(Path(adapters)), job.recipe.spec)
    assert not problems
    base = implied.pop("adapter_base")
    merged = replace(job.recipe.options, **{**implied, **(options or {})})
    return replace(job, recipe=replace(job.recipe, options=merged, adapter_base=base))


def loss_of(task: Any, model: Any, samples: list[Any]) -> torch.Tensor:
    if task.name != EMBED:
        batch = task.collate(samples)
        outputs = call_model(model, batch.inputs)
        return task.loss(outputs, batch.targets)
    batch = task.collate(samples)
    pooled = functional.normalize(task.pool(call_model(model, batch.inputs), batch.targets), dim=-1)
    return functional.cross_entropy(20 * pooled @ pooled.roll(1, 0).T, torch.arange(len(pooled)))


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rslora": (CHAT, "llama", {"target_modules": ["q_proj", "down_proj"], "use_rslora": True}),
    "conv1d": (CHAT, "gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "dora": (CHAT, "llama", {"target_modules": "all-linear", "use_dora": True}),
    "pattern": (CHAT, "llama", {"target_modules": r".*layers\.1\.self_attn\.[qv]_proj"}),
    "one layer": (CHAT, "llama", {"target_modules": ["v_proj"], "layers_to_transform": [0]}),
    "tokens": (CHAT, "llama", {"target_modules": ["v_proj"], "trainable_token_indices": [9, 4]}),
    "tokens of two layers": (
        CHAT,
        "llama",
        {
            "target_modules": ["v_proj"],
            "trainable_token_indices": {"embed_tokens": [9, 4], "lm_head": [4, 7, 2]},
        },
    ),
    "classifier": (CLASSIFY, "bert", {"target_modules": ["query", "value"]}),
    "embedder": (
        EMBED,
        "bert",
        {"target_modules": "all-linear", "exclude_modules": r"pooler\.dense"},
    ),
}
# DoRA computes the lengths of rows without the adapted weight, and trained rows of the output layer
# get their gradients from a matmul of these rows alone
OTHER_OPERATIONS = ("dora", "tokens of two layers")


@dataclass(frozen=True)
class Compared:
    """Results of ftcluster and of peft from the same adapters and samples.

    Attributes:
        losses: losses of ftcluster and of peft.
        gradients: both gradients of each trained parameter, by its name.
        tokens: number of tokens in the samples.
    """

    losses: tuple[float, float]
    gradients: dict[str, tuple[torch.Tensor, torch.Tensor]]
    tokens: int


def compare(folder: Path, peft: Any, case: str) -> Compared:
    """Continue adapters of peft; the trained parameters must have exactly the saved values."""
    task_name, kind, settings = CASES[case]
    base = write_base(folder / "base", task_name, kind)
    adapters_of_peft(peft, folder / "adapters", base, task_name, r=4, lora_alpha=6, **settings)
    job = job_from(folder, task_name, folder / "adapters")
    write_inputs(job.run_dir, prepare(job))
    task, model, samples = rank.load(job, read_inputs(job.run_dir))
    task.check_model(model)
    assert job.recipe.adapters
    add_adapters(model, job.recipe.adapters)
    token_ids = read_adapters(folder / "adapters").token_ids
    add_token_rows(model, (), token_ids)
    load_adapters(model, folder / "adapters")

    model_class, of_class, _ = PEFT_CLASSES[task_name]
    plain = model_class.from_pretrained(base, **of_class)
    other = peft.PeftModel.from_pretrained(plain, folder / "adapters", is_trainable=True)
    few = [samples["train"][number] for number in range(6)]
    for either in (model, other):
        either.eval()
    task.packs_documents = False
    with KernelMode(context=context_of(model)):
        loss = loss_of(task, model, few)
        loss.backward()
    expected = loss_of(task, other, few)
    expected.backward()
    theirs, ours = by_name_of_peft(other), by_name(model)
    assert theirs.keys() == ours.keys()
    gradients = {}
    for name, parameter in ours.items():
        values, gradient = theirs[name].data, theirs[name].grad
        if "trainable_tokens" in name:  # ours are in the order of the ids
            layer = name.removeprefix("base_model.model.").partition(".token_adapter")[0]
            order = torch.tensor(token_ids[layer]).argsort()
            values, gradient = values[order], gradient[order]
        assert torch.equal(parameter.data, values), name
        gradients[name] = parameter.grad, gradient
    tokens = sum(len(sample["input_ids"]) for sample in few)
    return Compared((loss.item(), expected.item()), gradients, tokens)


def in_order_of_peft(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    adapter: Adapter,
    sums: Any,  # noqa: ARG001
) -> torch.Tensor:
    """Compute a linear layer with an adapter by the operations of peft, in their order.

    Autograd adds the gradients of the input in the reverse order.
    """
    output = torch_linear(input, weight, bias)
    return output + torch_linear(torch_linear(input, adapter.down), adapter.up) * adapter.scale


@pytest.mark.parametrize("case", [name for name in CASES if name not in OTHER_OPERATIONS])
def test_in_the_order_of_peft_loss_and_gradients_are_equal(
    tmp_path: Path, peft: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp32_residuals, "linear_with_adapter", in_order_of_peft)
    found = compare(tmp_path, peft, case)
    assert found.losses[0] == found.losses[1]
    for name, (own, theirs) in found.gradients.items():
        assert torch.equal(own, theirs), name


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_of_adapters_only_rounds_differently(
    tmp_path: Path, peft: Any, case: str
) -> None:
    """The kernel adds the adapter's matmul to the layer's output, and scales before this matmul."""
    found = compare(tmp_path, peft, case)
    assert found.losses[0] == pytest.approx(found.losses[1], rel=1e-6)
    # a gradient sums over the tokens, and its terms over the inputs of both layers; each addition
    # rounds by at most half of fp32's eps
    rounding = (found.tokens + 2 * WIDEST) * torch.finfo(torch.float32).eps / 2
    for name, (own, theirs) in found.gradients.items():
        most = rounding * float(theirs.abs().max())
        torch.testing.assert_close(own, theirs, rtol=0, atol=most, msg=name)


def test_continued_adapters_load_with_peft(tmp_path: Path, peft: Any) -> None:
    """The result has the settings of the adapters, other values, and the name of their base."""
    base = write_base(tmp_path / "base", CLASSIFY, "bert")
    adapters_of_peft(
        peft, tmp_path / "adapters", base, CLASSIFY, r=4, lora_alpha=6,
        target_modules=["query", "value"],
    )  # fmt: skip
    job = job_from(tmp_path, CLASSIFY, tmp_path / "adapters", max_steps=6, learning_rate=1e-2)
    result = Path(result_of(job)["model"])
    config = json.loads((result / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == (base, 4)
    assert (config["lora_alpha"], sorted(config["target_modules"])) == (6, ["query", "value"])
    before, after = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (tmp_path / "adapters", result)
    )
    # rank and shapes stay, and all factors are trained
    factors = [name for name in before if "lora_" in name]
    assert factors
    assert all(not torch.equal(before[name], after[name]) for name in factors)

    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    other = peft.PeftModel.from_pretrained(plain, result).eval()
    again = replace(
        job, run_dir=tmp_path / "runs/two", purpose=EVALUATE,
        recipe=replace(job.recipe, model=str(result), adapter_base=None),
    )  # fmt: skip
    again.run_dir.mkdir()
    write_inputs(again.run_dir, prepare(again))
    task, model, samples = rank.load(again, read_inputs(again.run_dir))
    few = task.collate([samples["validation"][n] for n in range(8)]).inputs
    with torch.inference_mode():
        torch.testing.assert_close(
            call_model(model.eval(), few).logits, call_model(other, few).logits,
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip


def likelihoods(model: Any, samples: Samples) -> list[list[float]]:
    """Return the log-probabilities of both answers of each pair, one text at a time."""
    found = []
    for sample in samples:
        begin, pair = 0, []
        for length in sample["documents"]:
            tokens = torch.tensor([sample["input_ids"][begin : begin + length]])
            targets = [t - begin for t in sample["targets"] if begin <= t < begin + length]
            with torch.inference_mode():
                logs = model(input_ids=tokens).logits[0].log_softmax(-1)
            pair.append(sum(logs[t - 1, tokens[0, t]].item() for t in targets))
            begin += length
        found.append(pair)
    return found


def test_preference_tuning_after_instruction_tuning(tmp_path: Path, peft: Any) -> None:
    """The reference is the base with the adapters; a resumed run ends with the same weights."""
    base = write_base(tmp_path / "base", CHAT, "llama")
    data = write_data(tmp_path / "chats", {"train": completions(40, 1)})
    first = make_whole_job(
        tmp_path / "runs/sft", CHAT, data, base, {"lora_r": 4}, max_steps=10, learning_rate=3e-2
    )
    tuned = result_of(first)["model"]

    settings: dict[str, Any] = {
        "max_steps": 4, "learning_rate": 1e-2, "eval_on_start": True, "save_strategy": "steps",
        "save_steps": 2,
    }  # fmt: skip
    job = job_from(tmp_path, DPO, tuned, "dpo", **settings)
    assert (job.recipe.lora_r, job.recipe.adapter_base) == (4, base)
    events = run_rank(job)
    start = next(event["metrics"] for event in events if event["event"] == "evaluation")
    [loss, *_] = [event["loss"] for event in events if event["event"] == "step"]
    assert (start["loss"], start["margin"]) == (pytest.approx(math.log(2), abs=1e-6), 0)
    assert loss == pytest.approx(math.log(2), abs=1e-6)

    plain = AutoModelForCausalLM.from_pretrained(base)
    reference = peft.PeftModel.from_pretrained(plain, tuned).eval()
    train_set = Samples(Path(read_inputs(job.run_dir).samples) / "train")
    [kept] = job.run_dir.glob(f"reference-*{train_set.about['sha256'][:16]}.json")
    expected = torch.tensor(likelihoods(reference, train_set))
    torch.testing.assert_close(
        torch.tensor(json.loads(kept.read_text())), expected, rtol=1e-4, atol=1e-4
    )
    alone = likelihoods(AutoModelForCausalLM.from_pretrained(base).eval(), train_set)
    assert (torch.tensor(alone) - expected).abs().max() > 0.01  # the adapters matter

    checkpoint = str(job.run_dir / "checkpoints/checkpoint-2")
    again = job_from(tmp_path, DPO, tuned, "again", **settings, resume_from_checkpoint=checkpoint)
    resumed = run_rank(again)
    assert [event["step"] for event in resumed if event["event"] == "step"] == [3, 4]
    weights = [
        load_file(Path(found[-1]["model"]) / "adapter_model.safetensors")
        for found in (events, resumed)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_stored_reference_belongs_to_its_adapters(tmp_path: Path, peft: Any) -> None:
    base = write_base(tmp_path / "base", CHAT, "llama")
    keys = []
    for alpha in (4, 8):
        folder = tmp_path / str(alpha)
        made = adapters_of_peft(
            peft, folder, base, CHAT, r=2, lora_alpha=8, target_modules=["q_proj"]
        )
        tensors = load_file(folder / "adapter_model.safetensors")
        save_file({n: t * alpha for n, t in tensors.items()}, folder / "adapter_model.safetensors")
        assert made
        job = job_from(tmp_path, DPO, folder, f"run-{alpha}")
        write_inputs(job.run_dir, prepare(job))
        keys.append(rank.load(job, read_inputs(job.run_dir))[0].reference_key)
    assert len({*keys, ""}) == 3


def test_merged_adapters_train_all_weights(tmp_path: Path, peft: Any) -> None:
    base = write_base(tmp_path / "base", CHAT, "llama")
    adapters_of_peft(
        peft, tmp_path / "adapters", base, CHAT, r=4, lora_alpha=6, target_modules="all-linear"
    )
    job = job_from(
        tmp_path, CHAT, tmp_path / "adapters", options={"lora_r": None}, max_steps=1,
        learning_rate=1e-9,
    )  # fmt: skip
    result = Path(result_of(job)["model"])
    plain = AutoModelForCausalLM.from_pretrained(base)
    merged = peft.PeftModel.from_pretrained(plain, tmp_path / "adapters").merge_and_unload()
    trained = AutoModelForCausalLM.from_pretrained(result).state_dict()
    for name, values in merged.state_dict().items():
        torch.testing.assert_close(trained[name], values, rtol=1e-5, atol=1e-6, msg=name)
    assert AutoTokenizer.from_pretrained(result).chat_template


def test_a_classifier_keeps_rows_of_its_head_by_name(tmp_path: Path) -> None:
    """Other classes continue with the rows of the saved head that have their names."""
    base = write_model(tmp_path / "base", "bert", CLASSIFY)
    named = [{**row, "label": ["c", "a", "b"][row["label"]]} for row in classes(40, 1)]
    data = write_data(tmp_path / "named", {"train": named})
    first = make_whole_job(
        tmp_path / "runs/first", CLASSIFY, data, base, {"lora_r": 4}, max_steps=4,
        learning_rate=1e-2,
    )  # fmt: skip
    tuned = Path(result_of(first)["model"])
    [head] = [
        tensor
        for name, tensor in load_file(tuned / "adapter_model.safetensors").items()
        if name.endswith("classifier.weight")
    ]
    job = job_from(tmp_path, CLASSIFY, tuned, "second")
    fewer = [row for row in named if row["label"] != "b"] + [{**named[0], "label": "new"}]
    changed = replace(job.recipe, data=write_data(tmp_path / "fewer", {"train": fewer * 2}))
    job = replace(job, recipe=changed)
    inputs = prepare(job)
    write_inputs(job.run_dir, inputs)
    _, model, _ = rank.load(job, read_inputs(job.run_dir))
    assert [*model.config.id2label.values()] == ["a", "c", "new"]
    torch.testing.assert_close(model.classifier.weight[:2].data, head[[0, 2]])
    assert any("keeps the rows of a, c by name" in notice for notice in inputs.notices)
    assert job.recipe.adapters
    add_adapters(model, job.recipe.adapters)
    load_adapters(model, tuned)  # the pooler is trained in full, as in the first training


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lora_r": 8}, "lora_r is 8, but the adapters in .* have 4"),
        ({"lora_alpha": 1.0}, "lora_alpha is 1.0, but the adapters in .* have 6.0"),
        ({"base": "gpt2"}, "the base model has no linear layer 'model.layers.0.self_attn.q_proj'"),
        ({"base": "wider"}, "q_proj has 64 inputs and 32 outputs, its adapter 32 and 32"),
        ({"base": "/nowhere"}, "the base model of the adapters in .*, /nowhere, is no folder"),
        ({"base": "adapters"}, "has adapters, but not their base model"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_before_the_ranks_start(
    tmp_path: Path, peft: Any, changes: dict[str, Any], problem: str
) -> None:
    base = write_base(tmp_path / "base", CHAT, "llama")
    adapters_of_peft(
        peft, tmp_path / "adapters", base, CHAT, r=4, lora_alpha=6, target_modules=["q_proj"]
    )
    job = job_from(tmp_path, CHAT, tmp_path / "adapters")
    recipe, other = job.recipe, changes.pop("base", None)
    if other == "gpt2":
        other = write_chat_model(tmp_path / "other", "gpt2")
    elif other == "wider":
        config = AutoConfig.from_pretrained(base, hidden_size=64)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
        AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "other")
        other = str(tmp_path / "other")
    elif other == "adapters":
        other = str(tmp_path / "adapters")
    recipe = replace(recipe, options=replace(recipe.options, **changes), adapter_base=other or base)
    with pytest.raises(TrainError, match=problem):
        prepare(replace(job, recipe=recipe))


def to_hub(cache: Path, name: str, folder: str | Path) -> str:
    """Copy a model's folder into the local cache of the Hub; return the model's name there."""
    repository = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("a" * 40)
    return name


def test_adapters_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe names their base model and rank; everything else is compared with the files."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    base = to_hub(cache, "own/base", write_base(tmp_path / "base", CLASSIFY, "bert"))
    data = write_data(tmp_path / "data", {"train": classes(40, 1), "validation": classes(8, 2)})
    first, some = (
        make_whole_job(
            tmp_path / "runs" / name, CLASSIFY, data, base, {"lora_r": 4, **options}, max_steps=2,
            learning_rate=1e-2, eval_strategy="epoch",
        )
        for name, options in (("all", {}), ("some", {"lora_target_modules": ("query",)}))
    )  # fmt: skip
    trained = result_of(first)
    adapters = to_hub(cache, "own/adapters", trained["model"])
    measured = replace(
        first, run_dir=tmp_path / "runs/measured", purpose=EVALUATE,
        recipe=replace(first.recipe, model=adapters),
    )  # fmt: skip
    assert result_of(measured)["metrics"] == pytest.approx(trained["metrics"])

    def continued_job(name: str, model: str = adapters, **options: Any) -> Job:
        recipe = {"adapter_base": base}
        return make_whole_job(
            tmp_path / "runs" / name, CLASSIFY, data, model, options, recipe, max_steps=2,
            learning_rate=1e-3,
        )  # fmt: skip

    result = Path(result_of(continued_job("again", lora_r=4))["model"])
    assert json.loads((result / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == base  # fmt: skip
    before, after = (
        load_file(Path(folder) / "adapter_model.safetensors")
        for folder in (trained["model"], result)
    )
    changes = [(after[name] - before[name]).abs().max() for name in before]
    assert 0 < max(changes) < 0.01  # two steps of at most 1e-3
    assert (Path(result_of(continued_job("merged"))["model"]) / "config.json").is_file()

    part = to_hub(cache, "own/part", result_of(some)["model"])
    for job, problem in (
        (continued_job("eight", lora_r=8), "lora_r is 8, but the adapters in .* have 4"),
        (continued_job("alpha", lora_r=4, lora_alpha=4.0), "lora_alpha is 4.0, .* have 8.0"),
        (continued_job("layers", part, lora_r=4), "the layer .* for which .* has no adapter"),
    ):
        with pytest.raises(TrainError, match=problem):
            prepare(job)
    job = continued_job("alone")
    with pytest.raises(TrainError, match="has adapters, but not their base model") as error:
        prepare(replace(job, recipe=replace(job.recipe, adapter_base=None)))
    assert "adapter_base=OWNER/NAME" in error.value.hint


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern="),
        ({"init_lora_weights": "pissa"}, "changes the base model's weights"),
        ({"bias": "all"}, "bias=all"),
        ({"target_modules": ["embed_tokens"]}, "not the adapter of a linear layer"),
    ],
)
def test_adapters_that_cannot_be_continued(
    tmp_path: Path, peft: Any, settings: dict[str, Any], problem: str
) -> None:
    """Each is written by peft, and refused with the reason and a remedy."""
    base = write_base(tmp_path / "base", CHAT, "llama")
    plain = AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(
        **{"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **settings}
    )
    peft.get_peft_model(plain, config).save_pretrained(tmp_path / "adapters")
    with pytest.raises(GivenFileError, match=problem) as error:
        read_adapters(tmp_path / "adapters")
    assert "merge_and_unload" in str(error.value)
