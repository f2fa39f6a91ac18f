"""The section `training`; tests/engine compares it with transformers' own arguments."""

import dataclasses
import re
from pathlib import Path

import pytest

from ftcluster.errors import RecipeError
from ftcluster.recipe.recipe import load_recipe, parse_recipe
from ftcluster.recipe.training_arguments import OtherNames, with_own_names
from ftcluster.recipe.unsupported import NAMES_BY_REASON
from ftcluster_common.recipe import Training
from tests.unit.shell import Said

MINIMAL = "model: m\ndata: d\ntext_columns: [a]\n"
QA = "task: question-answering\nmodel: m\ndata: d\n"
CLM = "task: causal-lm\nmodel: m\ndata: d\n"


def training_of(*overrides: str, text: str = MINIMAL) -> Training:
    return parse_recipe(text, "my.yml", [f"training.{one}" for one in overrides]).training


def problems_of(*lines: str, text: str = MINIMAL) -> str:
    section = "".join(f"  {line}\n" for line in lines)
    with pytest.raises(RecipeError) as caught:
        parse_recipe(f"{text}training:\n{section}", "my.yml")
    return str(caught.value)


def test_no_argument_is_both_supported_and_unsupported_or_unsupported_twice() -> None:
    unsupported = [name for names in NAMES_BY_REASON.values() for name in names.split()]
    supported = [f.name for kind in (Training, OtherNames) for f in dataclasses.fields(kind)]
    assert len({*supported, *unsupported}) == len(supported) + len(unsupported)


def test_an_unsupported_argument_says_why_and_what_to_do(said: Said) -> None:
    said(problems_of("seed: 1", "fp16: true", "deepspeed: x.json"))
    assert all(
        re.search(r"write|name|use|pass|set|remove|choose|raise", reason)
        for reason in NAMES_BY_REASON
    )


def test_empty_values_and_steps_that_are_none(said: Said) -> None:
    for override in ("learning_rate=", "training.learning_rate= ", "max_steps=0", "max_steps=-2"):
        with pytest.raises(RecipeError) as caught:
            parse_recipe(MINIMAL, "my.yml", [override])
        said(caught.value)
    assert training_of("max_steps=-1").max_steps == -1


def test_the_reference_has_every_field_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs/recipe-fields.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", page, re.MULTILINE))
    for field in dataclasses.fields(Training):
        default = getattr(Training(), field.name)
        words = {True: "true", False: "false", None: "null"}
        word = words.get(default) if isinstance(default, bool | None) else None
        if isinstance(default, float):
            word = f"{default:g}"
        assert rows.get(field.name) == (word or str(default or "(none)")), field.name
    for field in dataclasses.fields(OtherNames):
        assert f"`{field.name}`" in page


@pytest.mark.parametrize("word", ["no", "'no'", "false"])
def test_a_bare_no_is_a_strategy_though_yaml_reads_it_as_false(word: str) -> None:
    found = training_of(
        f"eval_strategy={word}", f"save_strategy={word}", f"logging_strategy={word}"
    )
    assert (found.eval_strategy, found.save_strategy, found.logging_strategy) == ("no",) * 3


def test_values_of_several_kinds() -> None:
    assert training_of().report_to == "none"
    assert training_of("report_to=mlflow").report_to == "mlflow"
    both = training_of("report_to=[tensorboard, mlflow]")
    assert both.report_to == ("tensorboard", "mlflow")
    # null removes a key of the file
    text = MINIMAL + "training:\n  eval_strategy: steps\n  eval_steps: 5\n  seed: 7\n"
    found = training_of("eval_strategy=epoch", "eval_steps=null", "seed=null", text=text)
    assert (found.eval_strategy, found.eval_steps, found.seed) == ("epoch", None, 42)
    # keywords of the schedule
    found = training_of("lr_scheduler_type=cosine", "lr_scheduler_kwargs={num_cycles: 2}")
    assert found.lr_scheduler_kwargs == {"num_cycles": 2}
    # "no" is not allowed for all fields, but it still means false
    assert training_of("use_ipex=no").use_ipex is False


def test_names_of_transformers_5() -> None:
    given = {"train_sampling_strategy": "group_by_length", "activation_checkpointing": True}
    own = {"group_by_length": True, "gradient_checkpointing": True}
    assert with_own_names(given) == with_own_names({**given, **own}) == (own, [])


CONTRADICTIONS = [
    ["report_to: no"],
    ["report_to: neptune"],
    ["report_to: [none, mlflow]"],
    *([f"lr_scheduler_kwargs: {wrong}"] for wrong in ("[1]", "{a: [1]}", "{1: a}", "3")),
    ["group_by_length: true", "train_sampling_strategy: random"],
    ["gradient_checkpointing: false", "activation_checkpointing: true"],
    ["train_sampling_strategy: sequential"],
    ["warmup_ratio: 0.1", "warmup_steps: 5"],
    ["warmup_steps: 5.5"],
    ["logging_steps: 1.5"],
    ["logging_steps: 0"],
    ["adam_beta1: 1"],
    ["adam_beta2: -1"],
    ["label_smoothing_factor: 2"],
    ["optim: adafactor"],
    ["lr_scheduler_type: reduce_lr_on_plateau"],
    ["save_total_limit: 0"],
    ["eval_steps: 5"],
    ["save_steps: 5"],
    ["save_total_limit: 2"],
    ["eval_strategy: no", "save_strategy: best"],
    ["eval_strategy: no", "load_best_model_at_end: true"],
    ["load_best_model_at_end: true"],
    ["load_best_model_at_end: true", "save_strategy: steps", "save_steps: 20"],
    ["metric_for_best_model: f1"],
    ["greater_is_better: true"],
    ["save_strategy: best", "metric_for_best_model: bleu"],
    ["eval_strategy: no", "early_stopping_patience: 2"],
    ["early_stopping_threshold: 0.1"],
    ["early_stopping_patience: 0"],
    ["run_name: r"],
    ["run_name: r", "report_to: tensorboard"],
]


def test_what_is_not_allowed_or_contradicts(said: Said) -> None:
    said("\n".join(problems_of(*lines).splitlines()[-1] for lines in CONTRADICTIONS))


@pytest.mark.parametrize(
    "lines",
    [
        ["warmup_steps: 5", "warmup_ratio: 0"],
        ["warmup_steps: 0.5"],
        ["eval_strategy: steps", "logging_steps: 5"],
        ["save_strategy: best", "metric_for_best_model: eval_accuracy"],
        ["load_best_model_at_end: true", "save_strategy: best"],
        ["early_stopping_patience: 2", "metric_for_best_model: f1"],
        ["load_best_model_at_end: true", "save_strategy: epoch", "save_total_limit: 1"],
        ["report_to: [mlflow]", "run_name: r"],
    ],
)
def test_valid_combinations(lines: list[str]) -> None:
    training_of(*(line.replace(": ", "=") for line in lines))


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
        (None, 30, True),  # every 10 steps, like the logging of the loss
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
        assert f"my.yml:{line}: with load_best_model_at_end, save_steps ({save:g}) must" in found


def test_perplexity_needs_greater_is_better_false() -> None:
    best = ["save_strategy: best", "metric_for_best_model: perplexity"]
    assert "my.yml:6: as in transformers, a greater perplexity" in problems_of(*best, text=CLM)
    overrides = (one.replace(": ", "=") for one in [*best, "greater_is_better: false"])
    assert training_of(*overrides, text=CLM).greater_is_better is False


@pytest.mark.parametrize("text", [QA, MINIMAL + "regression: true\n"])
def test_label_smoothing_needs_classes_or_tokens(text: str) -> None:
    assert "my.yml:" in problems_of("label_smoothing_factor: 0.1", text=text)
    for other in (MINIMAL, CLM):
        assert training_of("label_smoothing_factor=0.1", text=other).label_smoothing_factor == 0.1


def test_metrics_of_several_sets_and_of_questions_without_an_answer() -> None:
    for recipe, setting, metric in (
        ("glue", "glue_task=mnli", "accuracy_mismatched"),
        ("squad", "version_2_with_negative=true", "NoAns_f1"),
    ):
        best = ["training.save_strategy=best", f"training.metric_for_best_model={metric}"]
        load_recipe(recipe, [setting, *best])
        with pytest.raises(RecipeError, match=f"'{metric}' is not a metric"):
            load_recipe(recipe, ["glue_task=mrpc"] * (recipe == "glue") + best)
