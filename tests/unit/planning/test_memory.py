import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from ftcluster.planning.batch import StepWorkload
from ftcluster.planning.memory import ModelSize, need
from ftcluster.planning.model_size import model_size, size_from_scratch
from ftcluster.recipe.recipe import load_recipe
from tests.programs import ROOT

HEADS = 12
MINI = (22_713_216, 6, 384)
DISTILBERT = (66_955_010, 6, 768)
BERT = (109_483_778, 12, 768)
GPT2 = (124_439_808, 12, 768)
# bench/figures.py also writes the deviation from these values on the pages
PEAKS = json.loads((ROOT / "bench/results/2026-11-22-memory-peaks.json").read_text())["rows"]


@pytest.mark.parametrize(
    "row", PEAKS, ids=lambda row: f"{row['model']} {row['samples']} x {row['tokens']}"
)
def test_the_estimate_is_near_what_was_measured(row: dict[str, Any]) -> None:
    """Peaks of some AdamW steps with dropout, measured with torch 2.13, or 2.8 with IPEX."""
    size = ModelSize(
        row["parameters"], row["layers"], row["features"], row["heads"], row["vocabulary"]
    )
    estimate = need(
        size, row["precision"], row["samples"], row["tokens"], row["vocabulary"] > 0, row["ipex"]
    )
    assert estimate.total / 1e6 == pytest.approx(row["peak_mb"], rel=0.1)


def test_the_estimate_for_an_encoder_with_a_decoder_is_near_what_was_measured() -> None:
    """Peak of T5-small with 16 texts of 256 tokens whose targets have 64 tokens."""
    size = ModelSize(60_506_624, 6, 512, 8, 32_128, decoder_layers=6)
    found = need(size, "bf16", 16, 256, predicts_tokens=True, targets=64).total / 1e6
    assert found == pytest.approx(2781, rel=0.1)


def test_the_estimate_for_a_sharded_optimizer_is_near_what_was_measured() -> None:
    """Peak of each of two ranks, which also save a checkpoint after each step."""
    parameters, layers, features = GPT2
    size = ModelSize(parameters, layers, features, HEADS, 50257)
    found = need(size, "bf16", 1, 128, predicts_tokens=True, shards=2).total / 1e6
    assert found == pytest.approx(2719, rel=0.1)


@pytest.mark.parametrize(
    ("parameters", "width", "heads", "vocabulary", "tokens", "measured_mb"),
    [(79_889_664, 256, 4, 151_936, 128, 2283), (96_072_960, 768, 12, 50_257, 512, 2763)],
)
def test_the_estimate_of_evaluating_and_saving_is_near_what_was_measured(
    parameters: int, width: int, heads: int, vocabulary: int, tokens: int, measured_mb: int
) -> None:
    """Peak of two steps with two layers, each evaluated and saved (bench.evaluation_memory)."""
    size = ModelSize(parameters, 2, width, heads, vocabulary)
    found = need(size, "bf16", 1, tokens, predicts_tokens=True, evaluated=8192)
    assert max(found.evaluating, found.saving) > found.activations
    assert found.total / 1e6 == pytest.approx(measured_mb, rel=0.1)


def test_of_a_masked_language_model_masked_tokens_alone_have_logits() -> None:
    """Peak of 8 texts with a vocabulary of 250,002 (bench.evaluation_memory --masked)."""
    size = ModelSize(32_729_618, 2, 128, 2, 250_002)
    fields = ["batch_size=8", "max_length=128"]
    found = StepWorkload.of(load_recipe("mlm", fields), "bf16", size, ipex=False).need(1)
    assert found
    assert found.total / 1e6 == pytest.approx(1493, rel=0.1)
    # logits of the whole vocabulary for each token, if the last layer is not fused with the loss
    smoothed = [*fields, "label_smoothing_factor=0.1"]
    more = StepWorkload.of(load_recipe("mlm", smoothed), "bf16", size, ipex=False).need(1)
    assert more
    assert more.activations > 2 * found.activations


def test_each_text_of_a_sample_has_activations() -> None:
    size = ModelSize(*MINI, HEADS)

    def batch_of(*overrides: str) -> StepWorkload:
        recipe = load_recipe("embed", ["batch_size=16", "max_length=128", *overrides])
        return StepWorkload.of(recipe, "bf16", size, ipex=False)

    pairs, triplets = batch_of(), batch_of("negative_columns=[wrong]")
    assert pairs.need(1) == need(size, "bf16", 32, 128, predicts_tokens=False, evaluated=8192)
    needed = triplets.need(2)
    assert needed == need(size, "bf16", 24, 128, predicts_tokens=False, evaluated=8192)
    assert "of 8 samples with 3 texts each, of 128 tokens" in triplets.explain(needed, 2)


def test_vectors_over_the_vocabulary_take_memory() -> None:
    """The rank keeps the vectors of all ranks, whatever its own share of the batch is."""
    size = ModelSize(*DISTILBERT, HEADS, vocabulary=30_522, embeddings=30_522 * 768)

    def activations(batch_size: int, world: int) -> int:
        recipe = load_recipe("sparse", [f"batch_size={batch_size}", "max_length=32"])
        needed = StepWorkload.of(recipe, "bf16", size, ipex=False).need(world)
        assert needed
        return needed.activations

    a_vector = 4 * 30_522
    more = activations(128, 8) - activations(64, 4)  # 16 pairs of this rank, 64 of other ranks
    assert more == 4 * 2 * 64 * a_vector
    recipe = load_recipe("sparse", ["batch_size=64", "max_length=32", "eval_strategy=no"])
    workload = StepWorkload.of(recipe, "bf16", size, ipex=False)
    needed = workload.need(4)
    assert needed
    assert "and for vectors over the vocabulary" in workload.explain(needed, 4)


def test_samples_are_no_longer_than_the_model_takes() -> None:
    recipe = load_recipe("embed", ["max_length=5000"])
    sizes = [ModelSize(*MINI, HEADS, positions=tokens) for tokens in (0, 512, 8192)]
    found = [StepWorkload.of(recipe, "bf16", size, False).tokens for size in (None, *sizes)]
    assert found == [5000, 5000, 512, 5000]


@pytest.mark.parametrize(("loss", "evaluates"), [("sigmoid", True), ("orpo", False)])
def test_only_losses_with_a_reference_compute_it_before_the_training(
    loss: str, evaluates: bool
) -> None:
    recipe = load_recipe("dpo", [f"loss_type={loss}", "training.eval_strategy=no"])
    batch = StepWorkload.of(recipe, "bf16", ModelSize(*MINI, HEADS), ipex=False)
    assert bool(batch.evaluated) == evaluates
    assert batch.texts == 2
    judged = load_recipe("kto", ["training.eval_strategy=no"])
    batch = StepWorkload.of(judged, "bf16", ModelSize(*MINI, HEADS), ipex=False)
    assert (bool(batch.evaluated), batch.texts) == (True, 1)


def test_of_adapters_only_these_are_trained() -> None:
    """A model with 8 billion weights fits into 20 GB if only adapters are trained."""
    size = ModelSize(8_030 * 10**6, 32, 4096, 32, 128_256)
    recipe = load_recipe("sft", ["lora_r=16", "batch_size=1", "gradient_accumulation_steps=1"])
    batch = StepWorkload.of(recipe, "bf16", size, ipex=False)
    found = batch.need(1)
    assert found
    # states of Llama 3
    assert found.states == pytest.approx(2 * size.parameters + 18 * 42e6, rel=0.02)
    assert "2.12 bytes (weights in bf16, and adapters with their optimizer)" in batch.explain(
        found, 1
    )


def test_what_is_trained_beside_adapters_is_counted() -> None:
    """The parameters of peft's models with rank 16 and all linear layers, per trained value."""
    bert = ModelSize(108 * 10**6, 12, 768, 12, 30_522)
    t5 = ModelSize(223 * 10**6, 12, 768, 12, 32_128, decoder_layers=12)
    for name, size, trained in (("classify", bert, 2_680_322), ("seq2seq", t5, 6_782_976)):
        recipe = load_recipe(name, ["lora_r=16", "batch_size=1"])
        found = StepWorkload.of(recipe, "bf16", size, ipex=False).need(1)
        assert found
        assert 2 * size.parameters + 18 * trained <= found.states
        assert found.states <= 2 * size.parameters + 18 * 2 * trained
        plain, dora = (
            StepWorkload.of(load_recipe(name, ["lora_r=16", *more]), "bf16", size, False).need(1)
            for more in ((), ("use_dora=true",))
        )
        assert plain
        assert dora
        assert dora.activations > 1.4 * plain.activations
        assert dora.states == plain.states


def test_weights_in_nf4_take_a_quarter() -> None:
    """All weights except embeddings; in addition, the values of one layer must fit."""
    embeddings = 2 * 4096 * 128_256
    size = ModelSize(8_030 * 10**6, 32, 4096, 32, 128_256, embeddings=embeddings)

    def batch_of(*overrides: str) -> StepWorkload:
        fields = ["lora_r=16", "load_in_4bit=true", "batch_size=1", *overrides]
        fields += ["gradient_accumulation_steps=1", "gradient_checkpointing=true"]
        return StepWorkload.of(load_recipe("sft", fields), "bf16", size, ipex=False)

    batch, merged = batch_of(), batch_of("merge_adapters=true")
    found, more = batch.need(1), merged.need(1)
    assert found
    assert more
    weights = 0.516 * (size.parameters - embeddings) + 2 * embeddings
    assert found.states == pytest.approx(weights + 18 * 55e6 + 0.17e9, rel=0.01)
    assert "bytes (weights in NF4, embeddings in bf16, and adapters" in batch.explain(found, 1)
    assert more.states == found.states
    assert more.states + more.saving == pytest.approx(2 * size.parameters + 18 * 55e6, rel=0.01)
    assert "GB to save all weights in bf16" in merged.explain(more, 1)


@pytest.mark.parametrize(
    ("tokens", "checkpointing", "measured_mb"),
    [(256, False, 3760), (512, False, 4744), (256, True, 3445), (512, True, 3596)],
)
def test_the_estimate_for_adapters_is_near_what_was_measured(
    tokens: int, checkpointing: bool, measured_mb: int
) -> None:
    """Peak of two steps with rank 16 of a Llama 3 with a billion weights (bench.lora_memory)."""
    size = ModelSize(1_235_814_400, 16, 2048, 32, 128_256)
    found = need(
        size, "bf16", 1, tokens, predicts_tokens=True, adapter_rank=16, checkpointing=checkpointing
    )
    assert found.total / 1e6 == pytest.approx(measured_mb, rel=0.1)


def test_long_samples_and_large_vocabularies_take_memory_in_proportion() -> None:
    size = ModelSize(10**8, 8, 512, 8, 150_000)

    def activations(tokens: int) -> int:
        return need(size, "bf16", 1, tokens, predicts_tokens=True).activations

    assert activations(4096) - activations(2048) == pytest.approx(2048 * 8 * (512 * 50 + 8 * 5120))


def test_a_model_with_only_its_parameters_known() -> None:
    found = need(ModelSize(10**9), "fp32", 8, 128, predicts_tokens=False)
    assert (found.states, found.activations) == (16 * 10**9, 0)


def write_weights(path: Path, **tensors: tuple[str, list[int]]) -> None:
    """Write a safetensors file with only a header, because nothing else is read."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_the_size_of_a_folder(tmp_path: Path) -> None:
    config = {"n_layer": 2, "n_embd": 8, "n_head": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_weights(
        tmp_path / "model.safetensors", wte=("F32", [100, 8]), bias=("BF16", [8]),
        position_ids=("I64", [1, 512]),
    )  # fmt: skip
    assert model_size(tmp_path) == ModelSize(808, 2, 8, 4, 100, embeddings=800)


def test_the_size_of_a_folder_with_several_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name in files:
        write_weights(tmp_path / name, **{name: ("F16", [3, 5])})
    index = {"weight_map": {"a": files[0], "b": files[1], "c": files[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_size(tmp_path) == ModelSize(30, 0, 8)


@pytest.mark.parametrize(
    "damage",
    ["no folder", "bin", "short", "huge", "text", "list", "deep", "shape", "outside", "pipe"],
)
def test_folders_whose_size_is_not_known(tmp_path: Path, damage: str) -> None:
    weights = tmp_path / "model.safetensors"
    write_weights(weights, a=("F32", [2]))
    (tmp_path / "config.json").write_text("{}")
    match damage:
        case "no folder":
            tmp_path = tmp_path / "bert-base-uncased"
        case "bin":
            weights.rename(tmp_path / "pytorch_model.bin")
        case "short":
            weights.write_bytes(b"abc")
        case "huge":
            weights.write_bytes(struct.pack("<Q", 1 << 60))
        case "text":
            weights.write_bytes(struct.pack("<Q", 5) + b"hello")
        case "list":
            (tmp_path / "config.json").write_text("[]")
        case "deep":
            weights.write_bytes(struct.pack("<Q", 10**5) + b"[" * 10**5)
        case "shape":
            write_weights(weights, a=("F32", [1 << 60, -1]))
        case "outside":
            weights.rename(tmp_path / "elsewhere")
            (tmp_path / "in").mkdir()
            tmp_path = tmp_path / "in"
            (tmp_path / "config.json").write_text("{}")
            index = {"weight_map": {"a": "../elsewhere"}}
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        case "pipe":
            weights.unlink()
            os.mkfifo(tmp_path / "part")
            index = {"weight_map": {"a": "part"}}
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_size(tmp_path) is None


def test_overrides_and_a_vocabulary_of_the_data_count_for_the_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"n_layer": 2, "n_embd": 8, "n_head": 4}')
    found = size_from_scratch(str(tmp_path), {"n_layer": 3}, vocabulary=100)
    assert found == ModelSize(3 * 12 * 64 + 800, 3, 8, 4, 100, embeddings=800)


def test_a_configuration_that_only_transformers_knows_has_no_size() -> None:
    assert size_from_scratch("config:opt", {"n_layer": 3}) is None


@pytest.mark.parametrize(
    ("kind", "size"), [("gpt2", GPT2), ("bert", BERT), ("distilbert", DISTILBERT)]
)
def test_common_types_have_the_defaults_of_transformers(
    kind: str, size: tuple[int, int, int]
) -> None:
    found = size_from_scratch(f"config:{kind}", {})
    assert found is not None
    assert found.parameters == pytest.approx(size[0], rel=0.01)
    assert (found.layers, found.features, found.heads) == (*size[1:], HEADS)
    more = size_from_scratch(
        f"config:{kind}", {"num_hidden_layers": 24, "n_layer": 24, "n_layers": 24}
    )
    assert more is not None
    assert more.layers == 24
