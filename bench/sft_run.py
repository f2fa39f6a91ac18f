"""One training of bench/sft, in a separate process with the Python of a host's stack.

    PYTHON -m bench.sft_run FOLDER OPTIONS

OPTIONS is a JSON object: `engine` (`ours`, `trl`, or `make`, which writes data and model into
FOLDER), `shape`, `lora_r`, `load_in_4bit`, `batch`, `steps`, `rate`, `seed`, `evaluate`,
`precision` and `profile` (of ours; instead of `steps`), `group_by_length` (of TRL). Prints one JSON
object.
"""

import json
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, PreTrainedModel, set_seed
from transformers.models.auto import CONFIG_MAPPING
from transformers.utils import logging

from bench.engine_run import WARM_UP, WORLD, Clock, counted_seconds, plain_step
from bench.matmul_limit import TRAINING, Limit, attention_operations
from bench.step_profile import profiled, steps_of
from ftcluster_common.data.data_files import TRAIN
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.chat import InstructionTuning
from ftcluster_train.engine.adapters import add_adapters, merge_adapters
from ftcluster_train.engine.data.pieces import Piece
from ftcluster_train.engine.data.run_inputs import Inputs, read_inputs, write_inputs
from ftcluster_train.engine.data.sampler import BatchSampler
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.models import train_tokenizer
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.health.host_benchmark import matmul_shapes, weights_of

ROWS, HELD_BACK = 4000, 100
# shapes of the published models SmolLM2-135M and Qwen2.5-0.5B, and a shape for training curves
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30,
        "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24,
        "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "tie_word_embeddings": True,
    },
    "small": {
        "model_type": "llama", "vocab_size": 16384, "hidden_size": 256, "num_hidden_layers": 4,
        "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "tie_word_embeddings": True,
    },
}  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> int:
    """Run the action in the options; return the exit code."""
    logging.set_verbosity_error()
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if options["engine"] == "make":
        make(folder, Path(options["squad"]), options["shape"])
        print("{}")
        return 0
    steps = steps_of(WARM_UP) if options.get("profile") else options["steps"]
    recipe = Recipe(
        "sft", str(folder / "model"), str(folder / "data"),
        InstructionTuning(
            max_length=512, lora_r=options["lora_r"],
            load_in_4bit=options.get("load_in_4bit", False),
        ),
        "instruction-tuning",
        batch_size=options["batch"],
        training=Training(
            learning_rate=options["rate"], max_steps=steps, warmup_ratio=0.1,
            seed=options.get("seed", 1), logging_steps=1, eval_strategy="no",
        ),
    )  # fmt: skip
    run_dir = Path(tempfile.mkdtemp(dir=folder))  # a run in the same folder would be continued
    # SFTTrainer saves nothing either
    job = Job("sft", run_dir, folder, recipe, options.get("precision", "bf16"), ipex=False,
              snapshot_seconds=0)  # fmt: skip
    if not (folder / "inputs.json").exists():
        write_inputs(folder, prepare(job))
    inputs = read_inputs(folder)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    evaluates = options.get("evaluate")
    task, model, samples = load(job, inputs)
    train_set = samples.pop(TRAIN)
    if options.get("profile"):
        parts: dict[str, Any] = {}
        with profiled(WARM_UP, parts) as profiler:
            clock = Clock(profiler)
            _, tokens = ours(job, task, model, train_set, clock)
        print(json.dumps(parts | plain_step(tokens, clock)))
        return 0
    limit = Limit(shapes_of(model.base_model), torch.bfloat16)
    clock = Clock(None, limit.measure)
    found: dict[str, Any] = {"flop_per_token": flop_per_token(model, train_set, options["lora_r"])}
    if options["engine"] == "ours":
        model, tokens = ours(job, task, model, train_set, clock)
    else:
        del model
        model, tokens = trl(job, inputs, clock, options.get("group_by_length", False))
    counted = sum(tokens[WARM_UP : len(clock.times)])
    for name, begins, ends in (
        ("second", clock.begins, clock.times), ("cpu_second", clock.cpu_begins, clock.cpu_times)
    ):  # fmt: skip
        found[f"tokens_per_{name}"] = counted / counted_seconds(begins, ends)
    found["products"] = limit.rate(WARM_UP - 1)
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if evaluates:
        found["loss"] = evaluate(task, model.float(), samples, WORLD, False).metrics["loss"]
    print(json.dumps(found))
    return 0


def make(folder: Path, squad: Path, shape: str) -> None:
    """Write conversations, a model with random weights, and a tokenizer trained on them."""
    rows: dict[str, dict[str, str]] = {}
    for line in (squad / "train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["context"], {"prompt": row["question"], "completion": row["context"]})
    chosen = list(rows.values())[: ROWS + HELD_BACK]
    (folder / "data").mkdir()
    for name, part in (("train", chosen[HELD_BACK:]), ("validation", chosen[:HELD_BACK])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"data/{name}.jsonl").write_text(text, encoding="utf-8")
    settings = dict(SHAPES[shape])
    texts = (Piece(f"{row['prompt']}\n{row['completion']}\n", True) for row in chosen)
    tokenizer = train_tokenizer(texts, settings["vocab_size"] - 2)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.pad_token = tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder / "model")
    config = CONFIG_MAPPING[settings.pop("model_type")](
        **settings, bos_token_id=None, eos_token_id=tokenizer.eos_token_id
    )
    set_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")


def shapes_of(base: Any) -> list[tuple[int, int, int]]:
    """Return the matrix shapes of the first layer, for 1,024 tokens.

    Args:
        base: a model without its head.
    """
    layer = base.layers[0] if hasattr(base, "layers") else base.encoder.layer[0]
    linear = (one for one in layer.modules() if isinstance(one, torch.nn.Linear))
    return [(1024, one.in_features, one.out_features) for one in linear]


def flop_per_token(model: PreTrainedModel, train_set: Samples, lora_r: int | None) -> float:
    """Return the operations per token in matmuls with weights and in attention's matmuls.

    A trained weight takes 6 operations per token and element: 2 in the forward pass, 2 for the
    gradient of the layer's input, and 2 for its own gradient. A frozen weight takes 4.

    Args:
        model: model without adapters.
        lora_r: rank of adapters, which all layers of the model get except the output layer; None
            if all weights are trained.
    """
    shapes = matmul_shapes(model)
    head = model.get_output_embeddings().weight
    tokens = sum(train_set.lengths("input_ids"))
    target_share = sum(train_set.lengths("targets")) / tokens
    weights = weights_of(shapes) - (1 - target_share) * head.numel()
    attention = TRAINING * attention_operations(model, train_set) / tokens
    if lora_r is None:
        return 6 * weights + attention
    shapes[tuple(head.shape)] -= 1
    of_adapters = sum(lora_r * sum(shape) * count for shape, count in shapes.items())
    return 4 * weights + 6 * of_adapters + attention


def ours(
    job: Job, task: Task, model: PreTrainedModel, train_set: Samples, clock: Clock
) -> tuple[PreTrainedModel, list[int]]:
    """Train with the engine; also return the tokens of each step."""
    task.check_model(model)
    options: Any = job.recipe.options
    if options.lora_r is not None:
        add_adapters(model, options)
    _, trained = train(job, task, model, train_set, {}, WORLD, clock)
    if options.lora_r is not None:
        merge_adapters(trained)
    lengths = train_set.lengths("input_ids")
    batches = BatchSampler(lengths, job.recipe.batch_size, job.recipe.training)
    return trained, [sum(lengths[i] for i in batch) for batch in batches]


def trl(job: Job, inputs: Inputs, clock: Clock, grouped: bool) -> tuple[Any, list[int]]:
    """Train with SFTTrainer; its batches may be grouped by length."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    from ftcluster_train.engine.models import NF4, load_tokenizer

    recipe, training = job.recipe, job.recipe.training
    options: Any = recipe.options
    tokens: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for line in (Path(recipe.data) / "train.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "completion": [{"role": "assistant", "content": row["completion"]}],
            }

    arguments = SFTConfig(
        output_dir=str(job.run_dir / "trl"),
        max_length=options.max_length,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=training.learning_rate,
        max_steps=training.max_steps,
        warmup_steps=training.warmup_ratio,
        seed=training.seed,
        train_sampling_strategy="group_by_length" if grouped else "random",
        bf16=True,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    adapters = None
    dtype = torch.float32
    if options.lora_r is not None:
        dtype = torch.bfloat16
        adapters = LoraConfig(
            r=options.lora_r, lora_alpha=options.adapter_alpha, target_modules="all-linear",
            task_type="CAUSAL_LM",
        )  # fmt: skip
    quantized = {"quantization_config": NF4} if options.load_in_4bit else {}
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(inputs.model, dtype=dtype, **quantized),
        args=arguments,
        train_dataset=Dataset.from_list(list(rows())),
        processing_class=load_tokenizer(inputs.tokenizer),
        peft_config=adapters,
        callbacks=[clock],
    )
    collate = trainer.data_collator

    def counting(rows: list[Any]) -> Any:
        batch = collate(rows)
        tokens.append(int(batch["attention_mask"].sum()))
        return batch

    trainer.data_collator = counting
    trainer.train()
    trained = trainer.model
    return (trained.merge_and_unload() if adapters else trained), tokens


if __name__ == "__main__":
    sys.exit(main())
