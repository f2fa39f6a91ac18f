"""The section `training`: what it takes, what it does not, and what transformers has."""

import dataclasses
import re
from pathlib import Path

import pytest

from ftcluster.errors import RecipeError
from ftcluster.recipe.recipe import load_recipe, parse_recipe
from ftcluster.recipe.training_arguments import OtherNames, with_own_names
from ftcluster.recipe.unsupported import _BY_REASON, REFUSED
from ftcluster_common.recipe import Training

MINIMAL = "model: m\ndata: d\ntext_columns: [a]\n"
QA = "task: question-answering\nmodel: m\ndata: d\n"
CLM = "task: causal-lm\nmodel: m\ndata: d\n"


def names(text: str) -> set[str]:
    return set(text.split())


# what transformers 4.55.4 and 5.23.0 both take
BOTH = names("""
    accelerator_config adam_beta1 adam_beta2 adam_epsilon auto_find_batch_size
    average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed
    dataloader_drop_last dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout debug deepspeed disable_tqdm
    do_eval do_predict do_train eval_accumulation_steps eval_delay eval_do_concat_batches
    eval_on_start eval_steps eval_strategy eval_use_gather_object fp16 fp16_full_eval fsdp
    fsdp_config full_determinism gradient_accumulation_steps gradient_checkpointing
    gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id
    hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
    include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end local_rank log_level
    log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps
    metric_for_best_model neftune_noise_alpha num_train_epochs optim optim_args
    optim_target_modules output_dir per_device_eval_batch_size per_device_train_batch_size
    prediction_loss_only push_to_hub remove_unused_columns report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node
    save_only_model save_steps save_strategy save_total_limit seed skip_memory_metrics tf32
    torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps use_cpu
    use_liger_kernel warmup_steps weight_decay
""")
ONLY_4 = names("""
    adafactor fp16_backend fp16_opt_level fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap group_by_length half_precision_backend
    include_inputs_for_metrics include_tokens_per_second jit_mode_eval logging_dir
    mp_parameters no_cuda overwrite_output_dir past_index per_gpu_eval_batch_size
    per_gpu_train_batch_size push_to_hub_model_id push_to_hub_organization push_to_hub_token
    ray_scope save_safetensors torchdynamo tpu_metrics_debug tpu_num_cores use_ipex
    use_legacy_prediction_loop use_mps_device warmup_ratio
""")
ONLY_5 = names("""
    activation_checkpointing activation_checkpointing_kwargs dataloader_in_order
    dataloader_multiprocessing_context ddp_static_graph enable_jit_checkpoint
    parallelism_config project trackio_bucket_id trackio_space_id trackio_static_space_id
    train_sampling_strategy use_cache
""")
OLDER = {"evaluation_strategy", "tp_size", "xpu_backend"}
HONOURED = {field.name for kind in (Training, OtherNames) for field in dataclasses.fields(kind)}


def training_of(*overrides: str, text: str = MINIMAL) -> Training:
    return parse_recipe(text, "my.yml", [f"training.{one}" for one in overrides]).training


def problems_of(*lines: str, text: str = MINIMAL) -> str:
    section = "".join(f"  {line}\n" for line in lines)
    with pytest.raises(RecipeError) as caught:
        parse_recipe(f"{text}training:\n{section}", "my.yml")
    return str(caught.value)


def test_every_argument_of_transformers_is_either_honoured_or_refused() -> None:
    arguments = BOTH | ONLY_4 | ONLY_5
    assert not HONOURED & REFUSED.keys()
    assert arguments == HONOURED | REFUSED.keys() - OLDER
    assert not OLDER & arguments


def test_no_argument_is_refused_twice() -> None:
    assert sum(map(len, _BY_REASON.values())) == len(REFUSED)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_argument_says_why_and_what_to_do(name: str) -> None:
    found = problems_of("seed: 1", f"{name}: false")
    assert f"my.yml:6: 'training.{name}' cannot be set: {REFUSED[name]}" in found
    assert "unknown key" not in found
    assert re.search(r"write|leave|choose|raise", REFUSED[name])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("fp16=true", "'fp16=true': 'fp16' cannot be set: the CPUs train in fp32 or bf16"),
        ("learning_rate=1", "'learning_rate' belongs to the section training: training.learning_r"),
        ("seed=1", "training.seed"),
    ],
)
def test_an_argument_outside_of_its_section(override: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(MINIMAL, "my.yml", [override])
    assert expected in str(caught.value)


def test_the_page_of_recipes_has_every_field_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs/recipes.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| `([^`]*)` \|", page, re.MULTILINE))
    for field in dataclasses.fields(Training):
        default = getattr(Training(), field.name)
        words = {True: "true", False: "false", None: "null"}
        word = words.get(default) if isinstance(default, bool | None) else None
        if isinstance(default, float):
            word = f"{default:g}"
        assert rows.get(field.name) == (word or str(default)), field.name
    for field in dataclasses.fields(OtherNames):
        assert f"`{field.name}`" in page


@pytest.mark.parametrize("word", ["no", "'no'", "false"])
def test_a_bare_no_is_a_strategy_though_yaml_reads_it_as_false(word: str) -> None:
    found = training_of(
        f"eval_strategy={word}", f"save_strategy={word}", f"logging_strategy={word}"
    )
    assert (found.eval_strategy, found.save_strategy, found.logging_strategy) == ("no",) * 3


def test_where_no_is_not_allowed_false_is_still_false() -> None:
    assert training_of("use_ipex=no").use_ipex is False
    assert "'training.report_to' is one of none, tensorboard" in problems_of("report_to: no")


def test_reports_are_one_or_several() -> None:
    assert training_of().report_to == "none"
    assert training_of("report_to=mlflow").report_to == "mlflow"
    both = training_of("report_to=[tensorboard, mlflow]")
    assert both.report_to == ("tensorboard", "mlflow")
    assert "not 'wandb'" in problems_of("report_to: wandb")
    assert "not ['none', 'mlflow']" in problems_of("report_to: [none, mlflow]")


def test_null_takes_back_what_the_file_says() -> None:
    text = MINIMAL + "training:\n  eval_strategy: steps\n  eval_steps: 5\n  seed: 7\n"
    found = training_of("eval_strategy=epoch", "eval_steps=null", "seed=null", text=text)
    assert (found.eval_strategy, found.eval_steps, found.seed) == ("epoch", None, 42)


def test_keywords_of_the_schedule() -> None:
    found = training_of("lr_scheduler_type=cosine", "lr_scheduler_kwargs={num_cycles: 2}")
    assert found.lr_scheduler_kwargs == {"num_cycles": 2}
    for wrong in ("[1]", "{a: [1]}", "{1: a}", "3"):
        assert "is a mapping of names to" in problems_of(f"lr_scheduler_kwargs: {wrong}")


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"train_sampling_strategy": "group_by_length"}, {"group_by_length": True}),
        ({"train_sampling_strategy": "random"}, {"group_by_length": False}),
        ({"activation_checkpointing": True}, {"gradient_checkpointing": True}),
        (
            {"train_sampling_strategy": "random", "group_by_length": False, "seed": 3},
            {"group_by_length": False, "seed": 3},
        ),
    ],
)
def test_names_of_transformers_5(given: dict[str, object], own: dict[str, object]) -> None:
    assert with_own_names(given) == (own, [])


def test_what_contradicts_itself_in_two_names() -> None:
    found = problems_of("group_by_length: true", "train_sampling_strategy: random")
    assert "my.yml:6: group_by_length says the opposite" in found
    found = problems_of("gradient_checkpointing: false", "activation_checkpointing: true")
    assert "my.yml:6: gradient_checkpointing says the opposite" in found
    found = problems_of("train_sampling_strategy: sequential")
    assert "one of group_by_length, random or nothing, not 'sequential'" in found


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["warmup_ratio: 0.1", "warmup_steps: 5"],
            "my.yml:6: warmup_steps and warmup_ratio (0.1) say the same",
        ),
        (
            ["warmup_steps: 5.5"],
            "my.yml:5: warmup_steps is a whole number of steps or a share below 1",
        ),
        (["logging_steps: 1.5"], "my.yml:5: logging_steps is a whole number of steps or a share"),
        (["logging_steps: 0"], "'training.logging_steps' is more than 0, not 0"),
        (["adam_beta1: 1"], "'training.adam_beta1' is less than 1, not 1"),
        (["adam_beta2: -1"], "'training.adam_beta2' is not negative, not -1"),
        (["label_smoothing_factor: 2"], "is from 0 to 1, not 2"),
        (["optim: adafactor"], "is one of adamw_torch_fused, adamw_torch, not 'adafactor'"),
        (["lr_scheduler_type: reduce_lr_on_plateau"], "is one of linear, cosine, cosine_with_res"),
        (["save_total_limit: 0"], "'training.save_total_limit' is at least 1, not 0"),
        (
            ["eval_steps: 5"],
            "my.yml:5: eval_steps is for eval_strategy: steps, and eval_strategy is epoch",
        ),
        (
            ["save_steps: 5"],
            "my.yml:5: save_steps is for save_strategy: steps, and save_strategy is no",
        ),
        (["save_total_limit: 2"], "my.yml:5: save_total_limit has no checkpoints to count"),
        (
            ["eval_strategy: no", "save_strategy: best"],
            "my.yml:6: save_strategy best needs evaluations",
        ),
        (
            ["eval_strategy: no", "load_best_model_at_end: true"],
            "my.yml:6: load_best_model_at_end needs evaluations",
        ),
        (["load_best_model_at_end: true"], "my.yml:5: load_best_model_at_end needs a checkpoint"),
        (
            ["load_best_model_at_end: true", "save_strategy: steps", "save_steps: 20"],
            "save_strategy (steps) and eval_strategy (epoch) have to be the same",
        ),
        (
            ["metric_for_best_model: f1"],
            "my.yml:5: metric_for_best_model is for load_best_model_at_end",
        ),
        (["greater_is_better: true"], "my.yml:5: greater_is_better is for load_best_model_at_end"),
        (
            ["save_strategy: best", "metric_for_best_model: bleu"],
            "my.yml:6: this task does not measure 'bleu', but accuracy, f1, loss",
        ),
        (["run_name: r"], "my.yml:5: run_name is the name of a run in MLflow: report_to: mlflow"),
        (
            ["run_name: r", "report_to: tensorboard"],
            "my.yml:5: run_name is the name of a run in MLflow",
        ),
    ],
)
def test_what_is_not_allowed_or_disagrees(lines: list[str], expected: str) -> None:
    assert expected in problems_of(*lines)


@pytest.mark.parametrize(
    "lines",
    [
        ["warmup_steps: 5", "warmup_ratio: 0"],
        ["warmup_steps: 0.5"],
        ["eval_strategy: steps", "logging_steps: 5"],
        ["save_strategy: best", "metric_for_best_model: eval_accuracy"],
        ["load_best_model_at_end: true", "save_strategy: best"],
        ["load_best_model_at_end: true", "save_strategy: epoch", "save_total_limit: 1"],
        ["report_to: [mlflow]", "run_name: r"],
    ],
)
def test_what_agrees(lines: list[str]) -> None:
    for line in lines:
        name, _, value = line.partition(": ")
        assert getattr(training_of(*(one.replace(": ", "=") for one in lines)), name) is not None
        assert value


@pytest.mark.parametrize(
    ("evaluate", "save", "agree"),
    [
        (10, 20, True),
        (10, 25, False),
        (20, 10, False),
        (0.1, 0.3, True),
        (0.1, 0.25, False),
        (0.1, 20, False),
        (20, 0.5, False),
        (None, 30, True),  # every 10 steps, as progress is told
        (None, 35, False),
    ],
)
def test_the_best_checkpoint_is_one_that_was_evaluated(
    evaluate: float | None, save: float, agree: bool
) -> None:
    lines = ["load_best_model_at_end: true", "eval_strategy: steps", "save_strategy: steps"]
    lines += [] if evaluate is None else [f"eval_steps: {evaluate}"]
    if agree:
        assert training_of(*(one.replace(": ", "=") for one in [*lines, f"save_steps: {save}"]))
    else:
        line = 5 + len(lines)
        found = problems_of(*lines, f"save_steps: {save}")
        assert f"my.yml:{line}: with load_best_model_at_end, save_steps ({save:g}) has" in found


def test_a_perplexity_is_not_taken_for_the_better_the_greater() -> None:
    best = ["save_strategy: best", "metric_for_best_model: perplexity"]
    assert "my.yml:6: of two values of perplexity the greater" in problems_of(*best, text=CLM)
    overrides = (one.replace(": ", "=") for one in [*best, "greater_is_better: false"])
    assert training_of(*overrides, text=CLM).greater_is_better is False


@pytest.mark.parametrize("text", [QA, MINIMAL + "regression: true\n"])
def test_labels_are_smoothed_where_there_are_some(text: str) -> None:
    assert "classes and tokens, and this task has neither" in problems_of(
        "label_smoothing_factor: 0.1", text=text
    )
    for other in (MINIMAL, CLM):
        assert training_of("label_smoothing_factor=0.1", text=other).label_smoothing_factor == 0.1


def test_metrics_of_several_sets_and_of_questions_without_an_answer() -> None:
    best = ["training.save_strategy=best"]
    name = "training.metric_for_best_model"
    load_recipe("glue", ["glue_task=mnli", *best, f"{name}=accuracy_mismatched"])
    with pytest.raises(RecipeError, match="accuracy_matched, accuracy_mismatched, loss"):
        load_recipe("glue", ["glue_task=mnli", *best, f"{name}=accuracy"])
    load_recipe("squad", ["version_2_with_negative=true", *best, f"{name}=NoAns_f1"])
    with pytest.raises(RecipeError, match="this task does not measure 'NoAns_f1'"):
        load_recipe("squad", [*best, f"{name}=NoAns_f1"])
