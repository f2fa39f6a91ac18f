"""Field names as in Hugging Face's scripts, and guesses."""

from typing import Any

import pytest

from ftcluster.errors import RecipeError
from ftcluster.recipe.names import OTHER_NAMES, SWITCHED_OFF, SWITCHED_ON, ZERO
from ftcluster.recipe.recipe import all_keys, parse_recipe
from ftcluster.recipe.unsupported import UNSUPPORTED
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import TextClassification
from tests.unit.shell import Said

MINIMAL = "model: m\ndata: d\ntext_columns: [a]\ntraining:\n  seed: 7\n"


def recipe_of(*overrides: str, text: str = MINIMAL) -> Recipe:
    return parse_recipe(text, "my.yml", overrides)


def test_arguments_of_transformers_need_no_section() -> None:
    training = recipe_of("learning_rate=2e-5", "num_train_epochs=2", "seed=9").training
    assert (training.learning_rate, training.num_train_epochs, training.seed) == (2e-5, 2, 9)
    assert recipe_of(text=MINIMAL + "learning_rate: 3e-5\n").training.learning_rate == 3e-5


def test_a_field_under_two_names_of_one_file_is_set_twice() -> None:
    with pytest.raises(RecipeError, match=r"my.yml:6: 'training.seed' is set twice, first at .*:5"):
        recipe_of(text=MINIMAL + "seed: 8\n")


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("model_name_or_path=x", "model", "x"),
        ("dataset_name=imdb", "data", "imdb"),
        ("train_file=a.csv", "data", "a.csv"),
        ("training.bf16=true", "precision", "bf16"),
        ("bf16=false", "precision", "fp32"),
        ("mixed_precision=no", "precision", "fp32"),
        ("train_batch_size=9", "batch_size", 9),
    ],
)
def test_names_of_the_scripts(override: str, field: str, value: Any) -> None:
    assert getattr(recipe_of(override), field) == value


def test_fields_of_the_task_and_lists_as_flags_have_them() -> None:
    options = recipe_of("max_seq_length=64", "text_column_names=a, b").options
    assert isinstance(options, TextClassification)
    assert (options.max_length, options.text_columns) == (64, ("a", "b"))
    assert recipe_of("evaluation_strategy=no").training.eval_strategy == "no"


def test_what_ftcluster_does_anyway_changes_nothing() -> None:
    same = ("fp16=false", "training.do_train=true", "use_cpu=true", "dataloader_num_workers=0")
    assert recipe_of(*same) == recipe_of()
    assert (
        not {*SWITCHED_ON, *SWITCHED_OFF, *ZERO} - UNSUPPORTED.keys()
    )  # any other value gives a hint


def test_what_is_not_understood_is_answered(said: Said) -> None:
    wrong = ("fp16=true", "output_dir=out", "bf16=maybe", "validation_file=b.csv", "training.lr=1",
             "epochs=3", "label=team", "packing=true", "early_stopping_patience=2",
             "training.bogus=1", "training.batch_size=8", "glue_task=imdb")  # fmt: skip
    with pytest.raises(RecipeError) as caught:
        recipe_of(*wrong)
    said(caught.value)


def test_epochs_are_not_ignored_where_a_recipe_has_a_number_of_steps() -> None:
    steps = MINIMAL + "  max_steps: 9\n"
    with pytest.raises(RecipeError, match=r"max_steps \(9\), which overrides epochs; add"):
        recipe_of("num_train_epochs=2", text=steps)
    assert recipe_of("num_train_epochs=2", "max_steps=-1", text=steps).training.max_steps == -1


# keys of other programs' configurations for QLoRA, with their usual values
AXOLOTL = """
base_model: org/base
sequence_len: 2048
sample_packing: true
num_epochs: 3
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-4
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
bf16: auto
tf32: false
gradient_checkpointing: true
"""
LLAMA_FACTORY = "cutoff_len: 512\nlora_rank: 8\nlora_target: [q_proj, v_proj]\n"
REFUSED = """
adapter: qlora
load_in_4bit: true
lora_target_linear: true
val_set_size: 0.05
train_on_inputs: false
datasets: x
pad_to_sequence_len: true
flash_attention: true
evals_per_epoch: 4
dataset_prepared_path: p
wandb_project: w
optimizer: paged_adamw_8bit
"""
SFT = "task: instruction-tuning\ndata: d\n"


def test_a_configuration_of_other_programs_means_the_same() -> None:
    recipe = recipe_of(text=SFT + AXOLOTL)
    options: Any = recipe.options
    assert (options.max_length, options.packing, options.lora_r) == (2048, True, 32)
    assert (recipe.model, recipe.precision) == ("org/base", "auto")
    training = recipe.training
    assert (training.per_device_train_batch_size, training.num_train_epochs) == (2, 3)
    assert training.lr_scheduler_type == "cosine"
    options = recipe_of(text=f"{SFT}model: m\n{LLAMA_FACTORY}").options
    assert (options.max_length, options.lora_r) == (512, 8)
    assert options.lora_target_modules == ("q_proj", "v_proj")


def test_keys_of_other_programs_that_mean_something_else_have_a_hint(said: Said) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_of(text=f"{SFT}model: m\n{REFUSED}")
    assert "unknown key" not in str(caught.value)
    said(caught.value)


def test_every_other_name_is_one_of_a_field() -> None:
    assert not {*OTHER_NAMES.values()} - all_keys().keys()
