"""The memory of a LoRA step of a large model, compared with the plan's estimate.

    PYTHONPATH=.:train:common:runner PREFIX/current/bin/python -m bench.lora_memory
        [--shape NAME] [--tokens N] [--rank N] [--checkpointing] [--folder DIR [--in-4bit]]

from the repository's root. The weights are random, in bf16, and never in fp32. Prints one JSON
object: the peak of the process, and the plan's estimate. Run it alone, because 8 billion weights
need 16 GB and more. With --folder the model is loaded from DIR, as a training loads it; another
process writes the model there first.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from bench.engine_run import WORLD, Clock
from ftcluster.planning.memory import ModelSize, need
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.chat import InstructionTuning
from ftcluster_kernels.nf4 import shape_of
from ftcluster_train.engine.adapters import add_adapters
from ftcluster_train.engine.data.token_samples import Samples, SampleWriter
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.models import load_model
from ftcluster_train.engine.optim.flat_params import fp32_parameters
from ftcluster_train.engine.tasks.chat.instruction_tuning import InstructionTuningTask

STEPS = 2
SHAPES: dict[str, dict[str, Any]] = {  # shapes of Llama 3
    "1b": {
        "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    },
}  # fmt: skip


def main() -> int:
    """Train for a few steps and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--in-4bit", action="store_true")
    options = parser.parse_args()
    tuning = InstructionTuning(
        max_length=options.tokens, lora_r=options.rank, load_in_4bit=options.in_4bit
    )
    training = Training(
        max_steps=STEPS, gradient_checkpointing=options.checkpointing, logging_steps=1,
        eval_strategy="no",
    )  # fmt: skip
    recipe = Recipe(
        "sft", "random", "", tuning, "instruction-tuning", batch_size=1, training=training
    )
    if options.folder:
        model, loading = loaded(recipe, options.folder, options.shape)
    else:
        model, loading = random_model(options.shape), {}
    parameters = sum(shape_of(p).numel() for p in model.parameters())
    add_adapters(model, tuning)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    clock, began = Clock(None), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = Job("sft", folder, folder, recipe, "bf16", ipex=False, snapshot_seconds=0)
        task = InstructionTuningTask(recipe, None)
        task.check_model(model)
        train(job, task, model, samples(folder / "train", options.tokens), {}, WORLD, clock)
    config = model.config
    tables = 1 if config.tie_word_embeddings else 2
    size = ModelSize(
        parameters, config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
        config.vocab_size,
        embeddings=tables * config.vocab_size * config.hidden_size,
    )  # fmt: skip
    expected = need(
        size, "bf16", 1, options.tokens, True, adapter_rank=options.rank,
        checkpointing=options.checkpointing, in_4bit=options.in_4bit,
    )  # fmt: skip
    found = {
        "shape": options.shape, "tokens": options.tokens, "checkpointing": options.checkpointing,
        "in_4bit": options.in_4bit, **loading,
        "parameters": parameters, "trained": trained, "losses": clock.losses,
        "seconds": time.perf_counter() - began,
        "peak_bytes": peak(),
        "plan_bytes": expected.total,
    }  # fmt: skip
    print(json.dumps(found))
    return 0


def peak() -> int:
    """Return the maximum resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def loaded(recipe: Recipe, folder: Path, shape: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a random model from a folder; return it with the costs of loading."""
    if not (folder / "config.json").exists():
        writer = mp.get_context("spawn").Process(target=write, args=(folder, shape))
        writer.start()
        writer.join()
    began = time.perf_counter()
    model = load_model(
        AutoModelForCausalLM, recipe, str(folder), LlamaConfig.from_pretrained(folder),
        dtype=torch.bfloat16, in_4bit=recipe.load_in_4bit,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return model, {"loading_seconds": seconds, "loading_peak_bytes": peak()}


def write(folder: Path, shape: str) -> None:
    """Write a random model."""
    random_model(shape).save_pretrained(folder)


def random_model(shape: str) -> PreTrainedModel:
    """Return a Llama in bf16, with norms in fp32."""
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=8192)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    block = torch.randn(1 << 20).mul_(0.02).bfloat16()
    norms = fp32_parameters(model)
    for parameter in model.parameters():
        if parameter in norms:
            parameter.data = torch.ones(parameter.shape)
        else:
            for part in parameter.data.view(-1).split(len(block)):
                part.copy_(block[: len(part)])
    return model


def samples(folder: Path, tokens: int) -> Samples:
    """Yield random samples, half of whose tokens are target tokens."""
    writer = SampleWriter(folder, {"input_ids": "i", "targets": "i", "documents": "i"})
    for seed in range(STEPS):
        drawn = torch.randint(128_000, (tokens,), generator=torch.Generator().manual_seed(seed))
        targets = list(range(tokens // 2, tokens))
        writer.add({"input_ids": drawn.tolist(), "targets": targets, "documents": [tokens]})
    writer.close()
    return Samples(folder)


if __name__ == "__main__":
    sys.exit(main())
