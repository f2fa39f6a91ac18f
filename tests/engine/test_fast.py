"""User scripts with the kernels of `run --fast`: equal results, and the logged lines.

Gradients are compared as in test_gradients; `./test gradients` tests all architectures.
"""

import copy
import inspect
import json
import os
import statistics
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
    activations,
)

from ftcluster_kernels import linear, simd
from ftcluster_train import fast
from ftcluster_train.patching import registry, script_functions
from ftcluster_train.patching.skipped_rows import FIRST_TOKEN, MASKED_KEYS
from ftcluster_train.rank.script import STARTUP
from tests.engine.architectures import FEW, long_but, make_kind
from tests.engine.jobs import make_job, make_task_of
from tests.engine.test_gradients import (
    EVERYTHING,
    KINDS,
    LEAST,
    MEDIAN,
    MEDIAN_IN_FP32,
    MOST_IN_FP32,
    TIMES,
    errors,
    make_batches,
    plain,
)
from tests.programs import NODE_PATH

TORCH_DROPOUT = functional.dropout
FEWEST = ("minilm", "modernbert", "t5", "llama")
REPLACED = [
    (functional, "dropout"), (functional, "scaled_dot_product_attention"),
    (functional, "cross_entropy"), (functional, "linear"), (functional, "gelu"),
    (functional, "silu"), (functional, "layer_norm"), (torch, "compile"),
    (activations.NewGELUActivation, "forward"), (activations.FastGELUActivation, "forward"),
    (PreTrainedModel, "post_init"), (PreTrainedModel, "__setstate__"),
    (torch.nn.Module, "__reduce_ex__"),
]  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable the kernels until the end of the test."""
    for place, name in REPLACED:
        monkeypatch.setattr(place, name, getattr(place, name))
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(sys.modules["torch.optim.optimizer"], name, OrderedDict())
    fast.enable()


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Any:
    """Return the lines that were logged since the last call."""
    registry.report_once.cache_clear()
    registry.suggest_bf16.cache_clear()

    def look() -> list[str]:
        lines = capfd.readouterr().err.splitlines()
        return [line.removeprefix("fast: ") for line in lines if line.startswith("fast: ")]

    return look


def attention_inputs(length: int = 12, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, 4, length, 8, dtype=dtype).requires_grad_() for _ in range(3)]


class Errors:
    """Errors of a model's gradients compared with transformers in fp32."""

    def __init__(self, name: str, folder: Path) -> None:
        kind = KINDS[name]
        self._model, self._task = make_kind(name, kind), make_task_of(make_job(folder, kind.task))
        self._batches = make_batches(name, "right")
        self._exact = self._gradients(bf16=False)

    def _gradients(self, bf16: bool) -> list[Any]:
        models = [copy.deepcopy(self._model) for _ in self._batches]
        if functional.dropout is not TORCH_DROPOUT:
            for model in models:
                fast.enable(model)
        pairs = zip(models, self._batches, strict=True)
        return [plain(model, self._task, batch, bf16) for model, batch in pairs]

    def now(self, bf16: bool) -> dict[str, float]:
        """Return relative errors by parameter with the functions that torch has at present."""
        return errors(self._gradients(bf16), self._exact)


of_architectures = pytest.mark.parametrize("name", KINDS if EVERYTHING else long_but(FEWEST, FEW))


@of_architectures
def test_gradients_in_fp32(
    tmp_path: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Errors(name, tmp_path)
    request.getfixturevalue("enabled")
    monkeypatch.setattr(script_functions, "MANY_CLASSES", 100)
    found = measured.now(bf16=False)
    assert max(found.values()) < MOST_IN_FP32
    assert statistics.median(found.values()) < MEDIAN_IN_FP32


@of_architectures
def test_gradients_are_as_exact_as_those_of_autocast(
    tmp_path: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Errors(name, tmp_path)
    stock = measured.now(bf16=True)
    request.getfixturevalue("enabled")
    monkeypatch.setattr(script_functions, "MANY_CLASSES", 100)
    ours = measured.now(bf16=True)
    assert ours.keys() == stock.keys()
    worse = {n: (e, stock[n]) for n, e in ours.items() if e > max(TIMES * stock[n], LEAST)}
    assert worse == {}
    assert statistics.median(e / stock[n] for n, e in ours.items()) < MEDIAN


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(dtype: torch.dtype, reduction: str) -> None:
    logits = (torch.randn(400, 5003) * 3).to(dtype).requires_grad_()
    targets = torch.randint(5003, (400,))
    targets[::7] = -1
    options: Any = {"ignore_index": -1, "reduction": reduction}
    exact = functional.cross_entropy(logits.double(), targets, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = functional.cross_entropy(logits, targets, **options)
    assert type(found.grad_fn).__name__ != type(exact.grad_fn).__name__
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), exact, rtol=1e-5)
    upstream = torch.randn_like(found)
    (wanted,) = torch.autograd.grad(exact, logits, upstream.double())
    (gradient,) = torch.autograd.grad(found, logits, upstream, retain_graph=True)
    assert gradient.dtype == dtype
    off = torch.finfo(dtype).eps
    assert torch.allclose(gradient, wanted, rtol=off, atol=float(wanted.abs().max()) * 1e-6)
    (again,) = torch.autograd.grad(found, logits, upstream)
    assert torch.equal(again, gradient)


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.usefixtures("enabled")
def test_norms_and_activations_under_autocast() -> None:
    """Linear layers use the rounded output of norms, and gradients equal torch's up to rounding."""
    x, weight, bias = (torch.randn(size).requires_grad_() for size in ((6, 40), (40,), (40,)))
    matrix = torch.randn(40, 40).requires_grad_()
    inputs = [x, weight, bias, matrix]

    def gradients(norm: Any, gelu: Any, silu: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = functional.linear(norm(x, (40,), weight, bias), matrix)
            hidden = gelu(hidden) + gelu(hidden, approximate="tanh") + silu(hidden)
            loss = (hidden.float() + norm(x, (40,), weight, bias)).square().mean()
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, inputs)])

    names = ("layer_norm", "gelu", "silu")
    found = gradients(*(getattr(functional, name) for name in names))
    wanted = gradients(*(inspect.unwrap(getattr(functional, name)) for name in names))
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_has_the_probability_that_was_asked_for(dtype: torch.dtype) -> None:
    values = torch.ones(2_000_000, dtype=dtype, requires_grad=True)
    found = functional.dropout(values, 0.1)
    assert float((found == 0).float().mean()) == pytest.approx(0.1, abs=6 * 0.3 / 2_000_000**0.5)
    assert found.unique().tolist() == [0, float(torch.tensor(1 / 0.9, dtype=dtype))]
    # attention to equal keys: the mean over the remaining ones of 1,024 keys, times 1 / 0.9
    query, key = (torch.zeros(4, 4, 1024, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    value = torch.ones(4, 4, 1024, 8, dtype=dtype)
    mean = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1).double().mean()
    assert mean.item() == pytest.approx(1, abs=6 * 0.33 / (16 * 1024 * 1024) ** 0.5 + 1e-4)


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.usefixtures("enabled")
def test_modules_are_replaced_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_kind("llama", KINDS["llama"])
    inputs = {"input_ids": torch.arange(20).view(2, 10)}

    @torch.no_grad()
    def evaluate() -> torch.Tensor:
        return model(**inputs).logits

    before = evaluate()
    model.train()
    assert not any("forward" in vars(module) for module in model.modules())
    loss = model(**inputs, labels=inputs["input_ids"]).loss
    assert {"activations", "norm", "rotary"} <= {*fast.kernels_in_use(loss, model)}
    forwards = [module.forward for module in model.modules() if "forward" in vars(module)]
    assert len(forwards) == 2 + 1 + 1  # the two norms of the layer, the last norm, and the MLP

    for forward in forwards:
        monkeypatch.setattr(forward, "fused", None)  # makes any call of the kernel fail
    torch.testing.assert_close(evaluate(), before)
    copied = copy.deepcopy(model)
    assert not any("forward" in vars(module) for module in copied.modules())
    copied(**inputs)
    assert copied.model.norm.forward._module is copied.model.norm
    assert copied.state_dict().keys() == model.state_dict().keys()


@pytest.mark.usefixtures("enabled")
def test_a_checkpoint_draws_the_same_masks_again() -> None:
    """With the older kind of checkpointing, the first pass keeps no graph."""
    model = AutoModel.from_config(AutoConfig.for_model(**BERT)).train()
    tokens = torch.randint(100, (2, 12))
    found = []
    for kind in (None, True, False):
        if kind is not None:
            model.gradient_checkpointing_enable({"use_reentrant": kind})
        model.zero_grad()
        torch.manual_seed(3)
        model(inputs_embeds=torch.randn(2, 12, 32).requires_grad_()).last_hidden_state.sum()
        torch.manual_seed(3)
        embedded = model.embeddings.word_embeddings(tokens)
        model(inputs_embeds=embedded).last_hidden_state.square().sum().backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat(gradients))
    for other in found[1:]:  # a pass without a graph uses torch's own functions
        assert (other - found[0]).norm() < 1e-5 * found[0].norm()


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.usefixtures("enabled")
def test_what_does_not_fit_is_said_once(said: Any) -> None:
    query, key, value = attention_inputs(dtype=torch.float16)
    for _ in range(2):
        functional.scaled_dot_product_attention(query, key, value)
    assert said() == ["torch computes attention with tensors of torch.float16"]
    tensors = attention_inputs(dtype=torch.bfloat16)
    functional.scaled_dot_product_attention(*tensors, attn_mask=torch.ones(12, 12, dtype=bool))
    assert said() == ["torch computes attention with a mask with 2 dimensions"]
    functional.scaled_dot_product_attention(*attention_inputs(1500, torch.bfloat16))
    assert said() == ["torch computes attention with more than 1024 tokens"]
    logits = torch.randn(3, 5000, requires_grad=True)
    functional.cross_entropy(logits, torch.tensor([1, 2, 3]), label_smoothing=0.1)
    assert said() == ["torch computes the cross entropy if it has class weights or label smoothing"]
    torch.compile(torch.nn.Linear(2, 2))
    assert said() == ["a compiled model runs the code of torch.compile, not our kernels"]
    AutoModel.from_config(AutoConfig.for_model(**BERT, hidden_act="quick_gelu"))
    assert said() == [
        "the activation QuickGELUActivation uses its own code, because it has no kernel"
    ]


@pytest.mark.usefixtures("enabled")
def test_another_rank_says_nothing(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    functional.scaled_dot_product_attention(*attention_inputs(dtype=torch.float16))
    assert said() == []


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.usefixtures("enabled")
def test_fp32_is_kept_and_said(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert simd.is_available()  # loads the library for this CPU, before /proc/cpuinfo is replaced
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : avx2 avx512_bf16 \n")
    found = functional.scaled_dot_product_attention(*attention_inputs())
    assert found.dtype == torch.float32
    (line,) = said()
    assert line.startswith(
        "the script trains in fp32, but with AVX512-BF16 this CPU is faster in bf16"
    )
    registry.suggest_bf16.cache_clear()
    registry.report_once.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        cast = functional.scaled_dot_product_attention(*attention_inputs())
    assert cast.dtype == torch.bfloat16  # as with torch
    amd, intel, cooper_lake = (
        f"vendor_id : {vendor}\nmodel : {model}\nflags : avx2 avx512_bf16\n"
        for vendor, model in (("AuthenticAMD", 17), ("GenuineIntel", 207), ("GenuineIntel", 85))
    )
    for cpuinfo, suggested in ((amd, 1), (intel, 0), (cooper_lake, 1), ("flags : avx2\n", 0)):
        registry.suggest_bf16.cache_clear()
        registry.report_once.cache_clear()
        monkeypatch.setattr(Path, "read_text", lambda *_, text=cpuinfo, **__: text)
        functional.scaled_dot_product_attention(*attention_inputs())
        assert len(said()) == suggested


@pytest.mark.usefixtures("enabled")
def test_calls_that_no_kernel_is_made_for() -> None:
    """Evaluations, transforms of torch.func and other devices give torch's results."""
    values = torch.randn(3, 8)
    masked = torch.func.vmap(functional.dropout, randomness="different")(values)
    assert masked.shape == values.shape
    assert functional.dropout(values.to("meta")).device.type == "meta"
    assert functional.gelu(values.to("meta")).device.type == "meta"
    assert functional.silu(values.bfloat16(), inplace=True).grad_fn is None
    with torch.autocast("cpu", torch.bfloat16):  # dtypes that autocast does not change
        found = functional.layer_norm(values.double(), (8,), torch.ones(8).double())
        assert found.dtype == torch.float64
    tensors = attention_inputs()
    with torch.no_grad():
        found = functional.scaled_dot_product_attention(*tensors)
        assert torch.equal(found, inspect.unwrap(functional.scaled_dot_product_attention)(*tensors))
    assert functional.dropout(values, 0.5, training=False) is values


POSITIONS = 16  # size of DeBERTa's table of positions
# for each layer, whether it computes only rows of first tokens
LAST_LAYER = {"albert": [0] * 6, "deberta-v2": [1, 1, 1, 0, 0, 0], "modernbert": [1, 1, 1, 0]}


def small_config(name: str) -> PretrainedConfig:
    """Return a small configuration of a model type, with its names for sizes and dropout."""
    small = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "intermediate_size": 64, "embedding_size": 16, "hidden_dropout_prob": 0.0, "dim": 32,
        "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0, "n_heads": 4,
        "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "hidden_dim": 64,
        "n_layers": 2, "relative_attention": True, "max_relative_positions": 8,
        "pos_att_type": ["c2p", "p2c"], "mlp_dropout": 0.0, "embedding_dropout": 0.0,
        "pooler_dropout": 0.0, "qa_dropout": 0.0,
        **({"pad_token_id": 0} if name == "modernbert" else {}),
    }  # fmt: skip
    return AutoConfig.for_model(name, **small)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the rows of each matrix multiplication of a linear layer."""
    monkeypatch.setattr(linear, "MUCH_WORK", 0)
    rows: list[int] = []
    product = linear.product

    def note_rows(input: torch.Tensor, weight: torch.Tensor, *bias: Any) -> torch.Tensor:
        if bias:  # a matmul of the forward pass; matmuls of gradients have no bias
            rows.append(input.shape[:-1].numel())
        return product(input, weight, *bias)

    monkeypatch.setattr(linear, "product", note_rows)
    return rows


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the width of each batch at its embeddings, without hooks, which scripts may use."""
    widths: list[int] = []
    embedding = functional.embedding

    def note_width(input: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
        if len(weight) == 100:
            widths.append(input.shape[1])
        return embedding(input, weight, *others)

    monkeypatch.setattr(functional, "embedding", note_width)
    return widths


@pytest.mark.parametrize("name", FIRST_TOKEN)
def test_what_no_classifier_reads_is_left_out(
    name: str, request: pytest.FixtureRequest, rows: list[int], widths: list[int]
) -> None:
    config = small_config(name)
    torch.manual_seed(2)
    mask = (torch.arange(16) < torch.tensor([9, 4, 11])[:, None]).long()
    inputs = {"input_ids": torch.randint(5, 100, (3, 16)) * mask, "attention_mask": mask}
    found, hidden = [], []
    for ours in (False, True):
        if ours:
            request.getfixturevalue("enabled")
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_config(config).train()
        del widths[:]
        loss = model(**inputs, labels=torch.tensor([0, 1, 0])).loss
        loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append((loss.item(), grads))
        of_training, rows[:] = list(rows), []
        hidden.append(model(**inputs, output_hidden_states=True).hidden_states)
        del rows[:]
        with torch.no_grad():
            model.eval()(**inputs)
        assert {3, POSITIONS, 48} >= {*rows}
        assert widths == [11 if ours else 16, 16, 16]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*hidden, strict=True))
    (stock_loss, stock), (loss, grads) = found
    assert loss == pytest.approx(stock_loss, abs=1e-5)
    assert grads.keys() == stock.keys()
    assert all(torch.allclose(grads[n], grad, atol=1e-5) for n, grad in stock.items())
    real = 9 + 4 + 11
    layers = [count for count in of_training if count != POSITIONS]
    if name in ("albert", "deberta-v2", "electra"):
        del layers[0]  # the layer from the embedding's size to the hidden size
    last = LAST_LAYER.get(name, [1, 1, 1, 1, 0, 0])
    assert layers[: len(last)] == [real] * len(last)
    expected = [3 if first else real for first in last]
    assert sorted(layers[len(last) : 2 * len(last)]) == sorted(expected)


@pytest.mark.parametrize("name", MASKED_KEYS)
def test_keys_and_values_of_padding_are_left_out(
    name: str, request: pytest.FixtureRequest, rows: list[int]
) -> None:
    """Skip padding on either side, unless a sample has no real token; the loss reads all states."""
    lengths, positions = torch.tensor([9, 4, 11])[:, None], torch.arange(16)
    behind, in_front = (positions < lengths).long(), (positions >= 16 - lengths).long()
    nothing = behind * torch.tensor([[1], [1], [0]])
    torch.manual_seed(2)
    tokens = torch.randint(5, 100, (3, 16))
    found = []
    for ours in (False, True):
        if ours:
            request.getfixturevalue("enabled")
        torch.manual_seed(1)
        model = AutoModelForTokenClassification.from_config(small_config(name)).train()
        for mask in (behind, in_front, nothing):
            output = model(input_ids=tokens, attention_mask=mask, labels=tokens % 2)
            output.loss.backward()
        found.append((output.logits, [p.grad for p in model.parameters()]))
    (stock_logits, stock), (logits, grads) = found
    assert torch.allclose(logits, stock_logits, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(grads, stock, strict=True))
    real = 9 + 4 + 11
    of_keys_and_values = 2 * 2 * len((behind, in_front))
    assert (rows.count(real), {*rows}) == (of_keys_and_values, {real, 48})
    del rows[:]
    model.eval()(input_ids=tokens, attention_mask=behind)
    assert {*rows} == {48}


@pytest.mark.usefixtures("enabled")
def test_an_interrupted_call_leaves_nothing(rows: list[int]) -> None:
    model = AutoModelForTokenClassification.from_config(small_config("bert")).train()
    tokens, mask = torch.ones(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.long)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = model.classifier.register_forward_pre_hook(interrupt)
    mask[:, 4:] = 0
    with pytest.raises(KeyboardInterrupt):
        model(input_ids=tokens, attention_mask=mask)
    hook.remove()
    for length in (5, 16):
        del rows[:]
        mask[:, :length] = 1
        model(input_ids=tokens, attention_mask=mask)
        assert {*rows} == {2 * length, 32}


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("second", [[0, 0, 0, 0], [0, 1, 1, 0]])
def test_padding_in_front_stays(second: list[int], widths: list[int]) -> None:
    """Padding on the left stays, even for a sample without any real token."""
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**BERT)).train()
    mask = torch.tensor([[1, 1, 0, 0], second])
    model(input_ids=torch.ones(2, 4, dtype=torch.long), attention_mask=mask)
    model(input_ids=torch.ones(1, 4, dtype=torch.long), attention_mask=mask[:1])
    assert widths == [4, 2]


def test_attention_by_its_name() -> None:
    """Replace attention by its name in one model, and nothing else."""
    config = AutoConfig.for_model(**BERT, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    tokens, mask = torch.randint(100, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 5:] = 0
    found = []
    for name in ("sdpa", "ftcluster"):
        torch.manual_seed(1)
        model = AutoModel.from_config(config, attn_implementation=name).train()
        model(tokens, attention_mask=mask).last_hidden_state[mask.bool()].square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert functional.dropout is TORCH_DROPOUT
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*found, strict=True))


SCRIPT = """
import importlib.util, json, os, sys
assert importlib.util.find_spec("torch")
import torch
from torch.nn.functional import dropout
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # read when transformers is imported
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

def trained(**changes):
    torch.manual_seed(0)
    rows = [{"input_ids": torch.randint(100, (24,)), "labels": i % 2} for i in range(32)]
    model = BertForSequenceClassification(BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, **changes))
    arguments = TrainingArguments(
        "out", use_cpu=True, bf16=True, max_steps=6, logging_steps=1, learning_rate=1e-2,
        report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
level = __import__("transformers").utils.logging.get_verbosity()
print(json.dumps([dropout.__code__.co_filename, level, trained(**off), trained()]))
"""


def trained(folder: Path, **environ: str) -> Any:
    """Return the random generator's state, the log level, and losses without and with dropout."""
    (folder / "script.py").write_text(SCRIPT)
    path = f"{STARTUP}{os.pathsep}{NODE_PATH}"
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, text=True, capture_output=True,
        check=False, env={**os.environ, "PYTHONPATH": path, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_an_unchanged_script(tmp_path: Path) -> None:
    stock, level, losses, _ = trained(tmp_path)
    assert "ftcluster_train" not in stock
    ours, same, found, dropped = trained(tmp_path, FTCLUSTER_FAST="1")
    assert "ftcluster_train" in ours
    assert same == level
    assert found == pytest.approx(losses, abs=0.01)
    assert dropped[-1] < 1.5
    assert dropped != losses
