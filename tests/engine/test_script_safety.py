"""Scripts with hooks, saved models, threads and patches that train with `run --fast`."""

import copy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.models.llama import modeling_llama

from ftcluster_train.patching import fp32_residuals
from ftcluster_train.patching.batch_context import BatchContext, current_context
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.test_fast import BERT, enabled, small_config  # noqa: F401 - a fixture
from tests.engine.test_guards import differing, llama, made, step


class Reversed(nn.Module):  # type: ignore[misc]
    """An encoder whose head reads a norm's output, which a script's hooks see or change."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm = nn.Linear(16, 64), nn.LayerNorm(64)
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> Any:
        hidden = self.norm(self.encoder(x))
        change(hidden)
        return hidden, functional.cross_entropy(self.head(hidden).float(), x[:, 0].long() % 2)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a hook": lambda h: h.register_hook(lambda grad: -grad),
    "retain_grad": lambda h: h.retain_grad(),
    "detach_": lambda h: h.detach_(),
    "data": lambda h: h.data.mul_(3),
    "numpy": lambda h: h.detach().view(torch.int16).numpy().__imul__(0),
    "nothing": lambda _: None,
}


def gradients_of(change: Callable[[torch.Tensor], Any], context: Any) -> list[Any]:
    torch.manual_seed(5)
    model, x = Reversed(), torch.randn(32, 16)
    with context, torch.autocast("cpu", torch.bfloat16):
        hidden, loss = model(x, change)
    of_hidden = torch.autograd.grad(loss, hidden, retain_graph=True)[0] if hidden.grad_fn else None
    loss.backward()
    kept = hidden.grad if hidden.retains_grad else None
    return [loss.detach(), of_hidden, kept, *(p.grad for p in model.parameters())]


@pytest.mark.needs("avx2", "compiler")
@pytest.mark.parametrize("mode", ["fast", "train"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_done_with_the_output_of_a_norm(
    change: Any, mode: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = gradients_of(change, torch.enable_grad())
    if mode == "fast":
        request.getfixturevalue("enabled")
        found = gradients_of(change, torch.enable_grad())
    else:  # as with bf16 weights beside master weights
        patch = fp32_residuals.LAYER_NORM
        monkeypatch.setitem(vars(patch), "guard", lambda *_, **__: None)
        found = gradients_of(change, KernelMode())
    assert [x is None for x in found] == [x is None for x in wanted]
    for one, other in zip(found, wanted, strict=True):
        if other is not None:
            assert (one - other).norm() <= 0.03 * other.norm() + 1e-6


@pytest.mark.needs("avx2", "compiler")
def test_the_copy_of_a_norm_is_used_in_training_only_while_nobody_has_its_memory() -> None:
    weight = nn.Parameter(torch.ones(8))
    context = BatchContext(fp32_weights={weight: weight.detach()})
    with KernelMode(context=context), torch.autocast("cpu", torch.bfloat16):
        inside = current_context()
        assert inside
        assert inside.copies is not None
        for change in (lambda h: h + 1, lambda h: h.shape, lambda h: h.size(0)):
            output = functional.layer_norm(torch.randn(2, 8), (8,), weight)
            change(output)
            assert inside.copies.of(output) is not None
        for change in (
            lambda h: h.data, lambda h: h.detach(), lambda h: h.view(16), lambda h: h[0],
            lambda h: h.data_ptr(), lambda h: h.untyped_storage(), lambda h: h.mul_(2),
        ):  # fmt: skip
            output = functional.layer_norm(torch.randn(2, 8), (8,), weight)
            change(output)
            assert inside.copies.of(output) is None


def tokens_of(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    mask = (torch.arange(16) < torch.tensor([9, 4, 11])[:, None]).long()
    return {"input_ids": torch.randint(5, 100, (3, 16)) * mask, "attention_mask": mask}


SAVED: dict[str, Callable[[], nn.Module]] = {
    "Llama": llama,
    "BERT": lambda: AutoModelForSequenceClassification.from_config(small_config("bert")),
    "DistilBERT": lambda: AutoModelForTokenClassification.from_config(small_config("distilbert")),
    "torch's functions": lambda: nn.TransformerEncoderLayer(8, 2, 16, activation=functional.gelu),
}
LOAD = "import sys, torch; print(type(torch.load(sys.argv[1], weights_only=False)).__name__)"


def train(model: nn.Module) -> None:
    model.train()
    if not isinstance(model, PreTrainedModel):
        model(torch.randn(2, 3, 8)).sum().backward()
    elif isinstance(model, LlamaForCausalLM):
        step(model)
    else:
        model(**tokens_of(1), labels=torch.zeros(
            (3, 16) if "Token" in type(model).__name__ else 3, dtype=torch.long,
        )).loss.backward()  # fmt: skip


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED.keys())
def test_a_saved_model_holds_nothing_of_this_package(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    model = make()
    model.scale = functional.silu, functional.linear, functional.scaled_dot_product_attention
    train(model)
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    copied = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    torch.save(copied, tmp_path / "copied.pt")
    for name in ("model.pt", "copied.pt"):
        assert b"ftcluster" not in (tmp_path / name).read_bytes()
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (copied, loaded):
        train(other)
        assert other.state_dict().keys() == model.state_dict().keys()
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, tmp_path / "model.pt"], cwd=tmp_path, text=True,
        capture_output=True, check=False, env={"PATH": "", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == type(model).__name__, done.stderr


def doubled(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, x: 2 * forward(self, x)


@pytest.mark.parametrize("kind", ["LlamaRMSNorm", "LlamaMLP", "activation"])
def test_a_class_that_is_patched_after_the_first_step(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    activation = type(made(llama).model.layers[0].mlp.act_fn)
    of = activation if kind == "activation" else getattr(modeling_llama, kind)
    with monkeypatch.context() as patch:
        patch.setattr(of, "forward", doubled(of.forward))
        wanted = step(made(llama))
    request.getfixturevalue("enabled")
    model = made(llama)
    step(model)
    monkeypatch.setattr(of, "forward", doubled(of.forward))
    assert differing(step(model), wanted) == {}


def test_two_threads_that_train_models_of_their_own(request: pytest.FixtureRequest) -> None:
    """Two threads train with batches of different shapes."""
    config = AutoConfig.for_model(**BERT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def losses(seed: int) -> list[float]:
        model = models[seed]
        mask = (torch.arange(10 + 6 * seed) < torch.tensor([9, 4, 6])[:, None]).long()
        inputs = {"input_ids": mask * (5 + seed), "attention_mask": mask}
        found = []
        for _ in range(10):
            loss = model(**inputs, labels=torch.tensor([0, 1, 0])).loss
            loss.backward()
            found.append(loss.item() + sum(float(p.grad.norm()) for p in model.parameters()))
        return found

    results = []
    for ours in (False, True):
        if ours:
            request.getfixturevalue("enabled")
        torch.manual_seed(1)
        models = [AutoModelForSequenceClassification.from_config(config).train() for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            results.append(list(pool.map(losses, range(2))))
    for found, wanted in zip(*reversed(results), strict=True):
        assert found == pytest.approx(wanted, rel=1e-3)
