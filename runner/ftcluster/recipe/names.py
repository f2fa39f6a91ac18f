"""Map other names to a recipe's fields: names from Hugging Face's scripts, and misspelt names.

Arguments that a recipe cannot set are in `ftcluster.recipe.unsupported`.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from ftcluster.recipe.unsupported import UNSUPPORTED

SECTION = "training."
# other names of fields, with the same values: from run_glue, run_classification, run_qa and
# run_clm, from older releases of transformers, and from DeepSpeed
OTHER_NAMES: Mapping[str, str] = {
    "model_name_or_path": "model",
    "tokenizer_name": "tokenizer",
    "dataset_name": "data",
    "train_file": "data",
    "dataset_config_name": "data_config",
    "task_name": "glue_task",
    "text_column_names": "text_columns",
    "text_column_name": "text_column",
    "label_column_name": "label_column",
    "do_regression": "regression",
    "early_stopping": "training.early_stopping_patience",
    "patience": "training.early_stopping_patience",
    "max_seq_length": "max_length",
    "train_batch_size": "batch_size",
    "per_gpu_train_batch_size": "training.per_device_train_batch_size",
    "evaluation_strategy": "training.eval_strategy",
    "xpu_backend": "training.ddp_backend",
    # names in run_summarization and run_translation
    "summary_column": "target_column",
    "generation_max_length": "max_new_tokens",
    "val_max_target_length": "max_new_tokens",
    "generation_num_beams": "num_beams",
    # names in sentence-transformers
    "anchor_column": "query_column",
    "pooling_mode": "pooling",
    "normalize_embeddings": "normalize",
    # names in axolotl, LLaMA-Factory and TRL
    "add_special_tokens": "new_special_tokens",
    "add_tokens": "new_tokens",
    "base_model": "model",
    "cutoff_len": "max_length",
    "dataset_text_field": "text_column",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "lr_scheduler": "training.lr_scheduler_type",
    "max_seq_len": "max_length",
    "micro_batch_size": "training.per_device_train_batch_size",
    "num_epochs": "training.num_train_epochs",
    "optimizer": "training.optim",
    "sample_packing": "packing",
    "sequence_len": "max_length",
    "tokens": "new_tokens",
}
# arguments whose name and values both differ from the recipe's field: for each argument, the name
# of the field, and the field's value for each value of the argument
OTHER_VALUES: Mapping[str, tuple[str, Mapping[Any, str]]] = {
    "bf16": ("precision", {True: "bf16", False: "fp32", "auto": "auto"}),
    "mixed_precision": ("precision", {"bf16": "bf16", "no": "fp32", False: "fp32"}),
}
# arguments that are accepted only with the value that describes ftcluster's fixed behaviour (true,
# false, 0). Any other value is refused, see `unsupported`
SWITCHED_ON = (
    "do_train", "do_eval", "use_cpu", "no_cuda", "remove_unused_columns", "save_safetensors",
)  # fmt: skip
SWITCHED_OFF = (
    "do_predict", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "torch_compile",
    "push_to_hub", "adafactor", "auto_find_batch_size", "use_liger_kernel", "prediction_loss_only",
    "save_only_model", "dataloader_pin_memory", "ddp_find_unused_parameters",
)  # fmt: skip
ZERO = ("dataloader_num_workers", "eval_delay")


def meaning_of(name: str, value: Any, keys: Collection[str]) -> tuple[str, Any] | None:
    """Return the recipe's key and value for an argument; None if the argument changes nothing.

    Unknown arguments are returned unchanged.

    >>> meaning_of("learning_rate", 2e-5, ["training.learning_rate"])
    ('training.learning_rate', 2e-05)
    >>> meaning_of("training.bf16", True, ["precision"])
    ('precision', 'bf16')
    >>> meaning_of("fp16", False, [])
    """
    plain = name.removeprefix(SECTION)
    if plain in OTHER_VALUES:
        key, values = OTHER_VALUES[plain]
        is_known = isinstance(value, bool | str) and value in values
        return (key, values[value]) if is_known else (f"{SECTION}{plain}", value)
    for fixed, names in ((True, SWITCHED_ON), (False, SWITCHED_OFF), (0, ZERO)):
        if value is fixed and plain in names:
            return None
    name = OTHER_NAMES.get(plain, name)
    is_known = name in keys or (f"{SECTION}{name}" not in keys and name not in UNSUPPORTED)
    return (name if is_known else f"{SECTION}{name}"), value


def nearest(name: str, keys: Collection[str]) -> str:
    """Return the key that a misspelt name probably means; "" if no key is similar.

    The last parts of the name and of the key are compared. A key is similar if its last part is
    spelled similarly. A key is also similar if the name is one of the words of its last part, or
    the initials of these words, unless a word is a single letter.

    >>> nearest("training.epochs", ["seed", "training.num_train_epochs"])
    'training.num_train_epochs'
    >>> nearest("lr", ["lora_r", "training.learning_rate"])
    'training.learning_rate'
    >>> nearest("training.bogus", ["seed", "training.num_train_epochs"])
    ''
    """
    last_parts = {key.rpartition(".")[2]: key for key in keys}
    last = name.rpartition(".")[2].replace("-", "_").lower()
    close = difflib.get_close_matches(last, last_parts, n=1, cutoff=0.75)
    for part in sorted(last_parts, key=len):
        words = part.split("_")
        initials = "".join(word[:1] for word in words if len(word) > 1)
        if last in words or (last == initials and len(initials) == len(words)):
            close.append(part)
    return last_parts[close[0]] if close else ""


def is_argument(name: str, keys: Collection[str]) -> bool:
    """Return True if `name` is a recipe's key, or a known argument of other tools."""
    return (
        name in keys
        or f"{SECTION}{name}" in keys
        or name in OTHER_NAMES
        or name in OTHER_VALUES
        or name in UNSUPPORTED
    )


def is_switch(name: str) -> bool:
    """Return True if `name` is a true-or-false argument of other tools that no recipe has."""
    return name in (*SWITCHED_ON, *SWITCHED_OFF, "bf16")
