"""Packed sequences have the same losses as each sequence alone with transformers, in any decoder.

The expected loss and gradients come from plain transformers, one document at a time.
"""

import copy
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.token_samples import Sample
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.patch_model import disable_dropout
from tests.engine.jobs import make_job, make_task_of, run
from tests.engine.models import VOCABULARY

TASK = "instruction-tuning"  # its documents have up to 40 tokens
LENGTHS = ([36, 2, 9], [12], [3, 5], [40], [4, 4, 4, 4])
PARAMETERS = 10_000_000  # limit for a tiny model; other models have parts that no field makes small
# fields that make a model tiny, under the names in configurations
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 256),
    "num_key_value_heads": 2, "num_kv_heads": 4, "num_experts_per_tok": 2, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "is_decoder": True,
}  # fmt: skip
# by title: type, changed fields, and True if documents are packed
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "Llama": ("llama", {}, True),
    "Llama 4, chunks": (
        "llama4_text", {"attention_chunk_size": 8, "intermediate_size_mlp": 64}, False,
    ),
    "Llama 4": ("llama4_text", {"attention_chunk_size": 64, "intermediate_size_mlp": 64}, True),
    "Mistral, window": ("mistral", {"sliding_window": 16}, False),
    "Mistral": ("mistral", {"sliding_window": 40}, True),
    "Gemma 3, window": ("gemma3_text", {"sliding_window": 16}, False),
    "BLOOM": ("bloom", {}, False),
    "MPT": ("mpt", {}, False),
    "Falcon with ALiBi": ("falcon", {"alibi": True}, False),
    "GPT-Neo": (
        "gpt_neo", {"attention_types": [[["global", "local"], 1]], "window_size": 8}, False,
    ),
    "GPT-J": ("gptj", {"rotary_dim": 4}, False),
    "XGLM": ("xglm", {"attention_heads": 4}, False),
    "Mixtral": ("mixtral", {}, True),
    "Mamba": ("mamba", {"state_size": 4}, False),
    "GPT-OSS, sinks": ("gpt_oss", {}, False),
}  # fmt: skip


def make_decoder(name: str, **changes: Any) -> PreTrainedModel:
    plain = AutoConfig.for_model(name)
    fixed = {"head_dim"} if name == "falcon" else set()
    sizes = {
        field: value
        for field, value in SIZES.items()
        if field not in fixed and getattr(plain, field, None) is not None
    }
    config = AutoConfig.for_model(name, **{"vocab_size": VOCABULARY, **sizes, **changes})
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > PARAMETERS:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def make_documents() -> list[Sample]:
    draw = random.Random(3)
    samples: list[Sample] = []
    for lengths in LENGTHS:
        tokens = [draw.randrange(4, VOCABULARY) for _ in range(sum(lengths))]
        starts = {sum(lengths[:i]) for i in range(len(lengths))}
        targets = [i for i in range(len(tokens)) if i not in starts and draw.random() < 0.5]
        samples.append({"input_ids": tokens, "targets": targets or [1], "documents": lengths})
    return samples


def expected(model: PreTrainedModel, samples: list[Sample]) -> tuple[float, float]:
    """Return the mean loss of the targets, and the norm of its gradient."""
    losses = []
    for sample in samples:
        start = 0
        for length in sample["documents"]:
            tokens = torch.tensor(sample["input_ids"][start : start + length])
            logits = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
            targets = [t - start for t in sample["targets"] if start <= t < start + length]
            losses += [cross_entropy(logits[t - 1], tokens[t]) for t in targets]
            start += length
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.item(), norm_of(model)


def norm_of(model: PreTrainedModel) -> float:
    grads = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    return torch.stack(grads).norm().item()


def compared(model: PreTrainedModel, folder: Path, world: World) -> bool:
    """Compare a step with plain transformers; return True if documents are packed."""
    job = make_job(folder, TASK, batch_size=5, max_steps=1, max_grad_norm=0, seed=1)
    task, samples = make_task_of(job), make_documents()
    loss, norm = expected(copy.deepcopy(model), samples)
    disable_dropout(model)
    task.check_model(model)
    found = run(job, model, samples, world, validation=samples, task=task)
    assert found.losses[0] == pytest.approx(loss, rel=1e-4)
    assert found.of("step")[0]["grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert bool(task.model_notices) is not task.packs_documents
    return task.packs_documents


@pytest.mark.parametrize("title", CASES)
def test_a_step_is_that_of_each_document_alone(tmp_path: Path, world: World, title: str) -> None:
    name, changes, packs = CASES[title]
    assert compared(make_decoder(name, **changes), tmp_path, world) is packs


@pytest.mark.long
def test_every_decoder_of_transformers(tmp_path: Path, world: World) -> None:
    """Test each model type that can be made tiny and computes a text alone."""
    right, wrong = [], {}
    warnings.simplefilter("ignore")
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            model = make_decoder(name)
            with torch.no_grad():  # some models keep computed values
                model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
        except Exception:  # configurations raise various exceptions for unsupported fields
            continue
        try:
            compared(model, tmp_path / name, world)
            right.append(name)
        except TrainError as error:
            if "no decoder" not in error.message:
                wrong[name] = error.message
        except Exception as error:
            wrong[name] = str(error)
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())
    assert len(right) > 100


def test_a_router_adds_its_loss_as_in_transformers(tmp_path: Path, world: World) -> None:
    model = make_decoder("mixtral", output_router_logits=True, router_aux_loss_coef=0.5)
    peer, samples = copy.deepcopy(model), make_documents()
    job = make_job(tmp_path, TASK, batch_size=5, max_steps=1, max_grad_norm=0)
    task = make_task_of(job)
    task.check_model(model)
    assert "WITHOUT PACKING" in task.model_notices[0]
    found = run(job, model, samples, world, task=task)
    batch = task.collate(samples)
    rows, places = batch.inputs["input_ids"], batch.targets["places"]
    labels = torch.full((rows.numel(),), -100)
    labels[places + 1] = batch.targets["tokens"]
    loss = peer(**batch.inputs, labels=labels.view(rows.shape)).loss
    loss.backward()
    assert found.losses[0] == pytest.approx(loss.item(), rel=1e-5)
    assert found.of("step")[0]["grad_norm"] == pytest.approx(norm_of(peer), rel=1e-4)


def test_pairs_of_answers_without_packing(tmp_path: Path) -> None:
    """The probabilities of chosen and rejected answers equal those of each answer alone."""
    model = make_decoder("bloom")
    task = make_task_of(make_job(tmp_path, "preference-tuning"))
    samples: list[Sample] = []
    for number, sample in enumerate(make_documents()[::2]):
        first, length = sample["documents"][0] // 2 + 1, sample["documents"][0]
        tokens = sample["input_ids"][:length]
        counts = [first - 1, length - first - 1]
        targets = [*range(1, first), *range(first + 1, length)]
        documents = [first, length - first]
        samples.append({"input_ids": tokens, "targets": targets, "documents": documents,
                        "counts": counts, "number": [number]})  # fmt: skip
    task.check_model(model)
    assert "WITHOUT PACKING" in task.model_notices[0]
    with torch.no_grad():
        found = task.predict(model, samples, bf16=False)
        for pair, sample in zip(found, samples, strict=True):
            rows = torch.tensor(sample["input_ids"]).split(sample["documents"])
            for likely, tokens in zip(pair, rows, strict=True):
                logits = model(input_ids=tokens[None]).logits[0, :-1]
                sum_of_losses = cross_entropy(logits, tokens[1:], reduction="sum").item()
                assert likely == pytest.approx(-sum_of_losses, rel=1e-4)


def test_positions_that_depend_on_the_longest_document(tmp_path: Path) -> None:
    """Phi 3 uses other frequencies for a whole row if one of its documents is long."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 16.0}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16}
    model = make_decoder("phi3", rope_parameters={**rope, **factors},
                         original_max_position_embeddings=16)  # fmt: skip
    task = make_task_of(make_job(tmp_path, TASK))
    task.check_model(model)
    assert "WITHOUT PACKING" in task.model_notices[0]


def test_the_trial_has_as_few_tokens_as_the_model_has_positions(tmp_path: Path) -> None:
    task = make_task_of(make_job(tmp_path, TASK))
    task.check_model(make_decoder("gpt2", n_positions=32))  # fewer than max_length
    assert task.packs_documents


def test_a_model_that_computes_no_text_is_refused(tmp_path: Path) -> None:
    model = make_decoder("gptj")  # its heads are smaller than the rotated part
    for task in (TASK, "causal-lm"):
        with pytest.raises(TrainError, match="which fails even on a single text"):
            make_task_of(make_job(tmp_path, task)).check_model(model)
