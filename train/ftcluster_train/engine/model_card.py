"""Write the card of a trained model: README.md in its folder, with front matter for the Hub.

The card contains no paths, accounts or host names, unless the recipe contains them.
"""

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

from ftcluster_common import __version__
from ftcluster_common.data.class_names import are_unnamed
from ftcluster_common.data.data_files import TEST
from ftcluster_common.data.data_sets import data_set_of, split_name
from ftcluster_common.given_files import read_json
from ftcluster_common.models.adapter_config import CONFIG, rows_needed
from ftcluster_common.models.model_package import PACKAGE, name_of_folder
from ftcluster_common.models.trained_model import pipeline_of, read_trained
from ftcluster_common.protocol.class_report import ClassReport, read_report
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import BY_TYPE, GENERATED, Recipe, split_revision
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.io.events import seconds_since_first

FILE = "README.md"
OF_TESTS = f"{TEST}_"  # prefix of the metrics of test sets
MOST_CLASSES = 20  # maximum number of class names in the example code of a card
# the Hub's names of metrics, if they differ from a task's names
METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
MARKUP = re.compile(r"[\\\[\]<>`|]")  # characters with a meaning in Markdown and HTML
COPIED = re.compile(r"-[0-9a-f]{12}$")  # suffix of folders that were copied to the hosts
# recipe fields that do not describe the training, or that the card shows elsewhere
LEFT_OUT = (
    "name", "task", "model", "data", "tokenizer", "license", "card_host_names", "ranks_per_host",
    "communication_cores", "allocator", "options", "training",
)  # fmt: skip
LEFT_OUT_OF_TRAINING = ("report_to", "run_name", "resume_from_checkpoint")
LOAD = {
    "peft": "from peft import PeftModel\nfrom transformers import CLASS\n\n"
    'model = PeftModel.from_pretrained(CLASS.from_pretrained(BASE), "FOLDER")',
    "peft with new tokens": "from peft import PeftModel\nfrom transformers import CLASS\n\n"
    "base = CLASS.from_pretrained(BASE)\n"
    "base.resize_token_embeddings(max(ROWS, base.get_input_embeddings().num_embeddings))\n"
    'model = PeftModel.from_pretrained(base, "FOLDER")',
    "cross-encoder": "from sentence_transformers import CrossEncoder\n\n"
    'model = CrossEncoder("FOLDER")',
    "multi-vector-encoder": "from sentence_transformers import MultiVectorEncoder\n\n"
    'model = MultiVectorEncoder("FOLDER")',
    "sparse-encoder": "from sentence_transformers import SparseEncoder\n\n"
    'model = SparseEncoder("FOLDER")',
    "sentence-transformers": "from sentence_transformers import SentenceTransformer\n\n"
    'model = SentenceTransformer("FOLDER")',
    "transformers": "from transformers import AutoTokenizer, CLASS\n\n"
    'model = CLASS.from_pretrained("FOLDER")\n'
    'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
}


@dataclass(frozen=True)
class MeasuredModel:
    """The results of a training run that the model card shows.

    Attributes:
        metrics: metrics of the model, by name.
        classes: class report of each set, as JSON.
        step: number of optimizer steps that the model was trained for.
        ranks: number of ranks that trained the model.
    """

    metrics: Mapping[str, float]
    classes: Mapping[str, Any]
    step: int
    ranks: int


def write_card(folder: Path, job: Job, task: Task, measured: MeasuredModel) -> None:
    """Write the card of a model into its folder, which must already contain all other files.

    Args:
        task: task whose `about_data` contains the report on the data, see `engine.data_report`, and
            the Hub commits of model and data.
    """
    adapters = (folder / CONFIG).is_file()
    library = "peft" if adapters else "transformers"
    if (folder / "modules.json").is_file():
        library = "sentence-transformers"
    seconds = seconds_since_first(job.run_dir)  # 0 on a host without the run's events
    classes = read_trained(folder).get("head", {}).get("classes", ())
    rows = rows_needed(read_json(folder / CONFIG)) if adapters else 0
    text = card(
        job, task.about_data, measured, library, task.model_class.__name__, seconds, classes, rows
    )
    (folder / FILE).write_text(text, encoding="utf-8")


def card(
    job: Job, about: Mapping[str, Any], measured: MeasuredModel, library: str, model_class: str,
    seconds: float, classes: Sequence[str] = (), rows: int = 0,
) -> str:  # fmt: skip
    """Return the text of a card.

    Args:
        about: report on the data; the additional key `commits` holds the Hub commits.
        library: name of the library that loads the model.
        model_class: transformers class for the task.
        seconds: seconds since the run began; 0 if unknown.
        classes: class names that the base model must get before the adapters are loaded; empty if
            none are needed.
        rows: number of token embeddings that the base model must get before the adapters are
            loaded; 0 if its number of embeddings need not change.
    """
    recipe, commits = job.recipe, about.get("commits", {})
    model = _with_commit(_public(recipe.model), commits.get("model"))
    data = " and ".join(
        _with_commit(_public(data_set.path), commits.get(split_name("data", data_set.name)))
        for data_set in recipe.data_sets
    )
    how = "trained from random weights" if recipe.from_scratch else "fine-tuned"
    ranks = recipe.spec.is_cross_encoder
    kind = "cross-encoder" if ranks and library != "peft" else library
    kind = "sparse-encoder" if recipe.spec.is_sparse_encoder else kind
    kind = "multi-vector-encoder" if recipe.spec.is_multi_vector_encoder else kind
    front = front_matter(job, commits, measured.metrics, kind)
    base = json.dumps(_public(recipe.base_model)) + _settings_of_head(classes)
    kind_of_code = "peft with new tokens" if rows and kind == "peft" else kind
    load = (
        LOAD[kind_of_code]
        .replace("ROWS", str(rows))
        .replace("CLASS", model_class)
        .replace("BASE", base)
    )
    lines = [
        f"---\n{_yaml(front)}---\n",
        f"# {job.run}\n",
        f"{model}, {how} for {front['pipeline_tag']} with ftcluster on {data}.",
        "\n## Use\n",
        f"```python\n{load}\n```",
        "\n## Data\n",
        *_data(about),
        "\n## Metrics\n",
        *_metrics(measured),
        "\n## Training\n",
        f"```yaml\n{_yaml(_recipe(job))}```",
        "",
        *_made_by(job, measured, seconds),
    ]
    return "\n".join(lines) + "\n"


def _settings_of_head(classes: Sequence[str]) -> str:
    """Return the arguments of `from_pretrained` for a model with these classes.

    >>> _settings_of_head(["bad", "good"])
    ", id2label={0: 'bad', 1: 'good'}, ignore_mismatched_sizes=True"
    >>> _settings_of_head(["LABEL_0"])
    ', num_labels=1, ignore_mismatched_sizes=True'
    """
    if not classes:
        return ""
    named = f"id2label={dict(enumerate(classes))}"
    if are_unnamed(classes) or len(classes) > MOST_CLASSES:
        named = f"num_labels={len(classes)}"
    return f", {named}, ignore_mismatched_sizes=True"


class _OneLine(yaml.SafeDumper):
    """Dumps YAML with each string on one line, because a line break could end the front matter."""


def _in_one_line(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_OneLine.add_representer(str, _in_one_line)


def _yaml(document: Mapping[str, Any]) -> str:
    width = float("inf")
    return str(
        yaml.dump(document, Dumper=_OneLine, sort_keys=False, allow_unicode=True, width=width)
    )


def front_matter(
    job: Job, commits: Mapping[str, str], metrics: Mapping[str, float], kind: str
) -> dict[str, Any]:
    """Return the front matter of a card: the fields that the Hub reads.

    Base model and data set are omitted if they are not on the Hub, because the Hub accepts only its
    own names.

    Args:
        commits: Hub commits of model and data.
        kind: library of the model: peft, cross-encoder, sparse-encoder, sentence-transformers or
            transformers.
    """
    recipe = job.recipe
    pipeline = pipeline_of(recipe.task, asdict(recipe.options))
    on_hub = not recipe.from_scratch and of_hub(recipe.base_model)
    alone = recipe.adapters is not None and not recipe.adapters.merge_adapters
    relation = "adapter" if alone else "finetune"
    base = {"base_model": split_revision(recipe.base_model)[0], "base_model_relation": relation}
    values = {name: value for name, value in metrics.items() if math.isfinite(value)}
    tags = ["ftcluster", recipe.task]
    tags += ["lora"] if recipe.lora_r else []
    tags += {
        "cross-encoder": [kind, "reranker"],
        "multi-vector-encoder": ["sentence-transformers", kind, "ColBERT"],
        "sparse-encoder": [kind, "sentence-transformers", "sparse", "splade"],
        "sentence-transformers": [kind],
    }.get(kind, [])
    on_the_hub = [split_revision(part.path)[0] for part in recipe.data_sets if of_hub(part.path)]
    results = [*_results(recipe, commits, values, pipeline)]
    measured = [_hub_name(name, recipe) for name in values]
    library = "sentence-transformers" if kind.endswith("-encoder") else kind
    return {
        **({"license": recipe.license} if recipe.license else {}),
        "library_name": library,
        "pipeline_tag": pipeline,
        **(base if on_hub else {}),
        **({"datasets": [*dict.fromkeys(on_the_hub)]} if on_the_hub else {}),
        **({"metrics": [*dict.fromkeys(measured)]} if values else {}),
        "tags": sorted({*tags}),
        **({"model-index": [{"name": job.run, "results": results}]} if values else {}),
    }


def _results(
    recipe: Recipe, commits: Mapping[str, str], values: Mapping[str, float], pipeline: str
) -> Iterator[dict[str, Any]]:
    """Yield the metrics of each data set in the format of the Hub."""
    names = [data_set.name for data_set in recipe.data_sets]
    for data_set, part in zip(recipe.data_sets, recipe.by_set(), strict=True):
        of_data = {
            "name": _public(part.source),
            "type": split_revision(part.source)[0] if of_hub(part.source) else "local",
            "config": part.data_config,
            "revision": commits.get(split_name("data", data_set.name)),
        }
        of_set = {
            name.removesuffix(split_name("", data_set.name)): value
            for name, value in values.items()
            if data_set_of(name, names) == data_set.name
        }
        tests = {name for name in of_set if _is_of_tests(name, recipe)}
        for split, measured in (("", of_set.keys() - tests), (TEST, tests)):
            if measured or not split:
                yield {
                    "task": {"type": pipeline},
                    "dataset": {
                        **{name: value for name, value in of_data.items() if value},
                        **({"split": split} if split else {}),
                    },
                    "metrics": [
                        {"type": _hub_name(name, recipe), "name": name, "value": value}
                        for name, value in of_set.items()
                        if name in measured
                    ],
                }


def _is_of_tests(metric: str, recipe: Recipe) -> bool:
    """Return True if a metric was measured on a test set."""
    return recipe.has_test and metric.startswith(OF_TESTS)


def _hub_name(metric: str, recipe: Recipe) -> str:
    """Return the Hub's name of a metric, without the prefix for test sets."""
    name = metric.removeprefix(OF_TESTS) if _is_of_tests(metric, recipe) else metric
    return METRICS.get(name, name)


def of_hub(name: str) -> bool:
    """Return True if a name looks like the name of a model or data set on the Hub."""
    return not name.startswith((GENERATED, BY_TYPE, PACKAGE, "/")) and not Path(name).exists()


def _public(name: str) -> str:
    """Return the public name of a model or data set; for a folder only its name, not its path.

    >>> _public("/opt/ftcluster/data/mrpc-4f7d1c0b2a9e"), _public("pypi:bert-tiny==1.0 --hash=x")
    ('mrpc', 'bert-tiny==1.0')
    """
    if name.startswith(PACKAGE):
        return name.removeprefix(PACKAGE).split()[0]
    if of_hub(name) or name.startswith((GENERATED, BY_TYPE)):
        return name
    return COPIED.sub("", name_of_folder(Path(name)))


def _with_commit(name: str, commit: str | None) -> str:
    return _code(name) + (f" (commit {commit})" if commit else "")


def _data(about: Mapping[str, Any]) -> Iterator[str]:
    head = ("set", "rows", "samples", "tokens, median", "longest", "cut", "left out", "in training")
    names = ("set", "rows", "samples", "median", "longest", "cut", "left_out", "duplicates")
    rows = [[_cell(data_set.get(name)) for name in names] for data_set in about.get("sets", ())]
    yield from _table(head, rows)
    for use, columns in about.get("columns", {}).items():
        yield f"- {use}: {', '.join(map(_code, columns))}"


def _metrics(measured: MeasuredModel) -> Iterator[str]:
    if not measured.metrics:
        yield "The model was not evaluated."
        return
    yield from _table(
        ("metric", "value"), [[name, f"{value:.6g}"] for name, value in measured.metrics.items()]
    )
    for name, document in measured.classes.items():
        report = read_report(document)
        yield f"The classes of {name}, {report.rows} rows:\n"
        yield from _table(
            ("class", "precision", "recall", "F1", "rows", "predicted"), _class_rows(report)
        )


def _class_rows(report: ClassReport) -> Iterator[list[str]]:
    for scores in report.classes:
        shown = [f"{value:.3f}" for value in (scores.precision, scores.recall, scores.f1)]
        yield [_cell(scores.name), *shown, str(scores.support), str(scores.predicted)]
    for name, values in report.averages.items():
        yield [f"{name} mean", *(f"{value:.3f}" for value in values), str(report.rows), ""]


def _table(head: Sequence[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _cell(value: Any) -> str:
    """Return a value as text for a table cell, with all markup escaped."""
    text = "" if value is None else str(value)
    return MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _code(name: str) -> str:
    """Return a name as inline code, without backticks that could end the code."""
    return f"`{' '.join(name.split()).replace('`', chr(39))}`"


def _recipe(job: Job) -> dict[str, Any]:
    """Return the settings for the card: changed settings, and a few that it always shows."""
    recipe = job.recipe
    training = _changed(recipe.training, LEFT_OUT_OF_TRAINING)
    others = {name: getattr(recipe, name) for name in ("teacher", "adapter_base")}
    return {
        "task": recipe.task,
        **({"data": [*_entries(recipe)]} if isinstance(recipe.data, tuple) else {}),
        **_changed(recipe, LEFT_OUT),
        **{name: _public(value) for name, value in others.items() if value},
        "batch_size": recipe.batch_size,
        "precision": job.precision,
        **_changed(recipe.options, ()),
        "training": {
            "learning_rate": recipe.training.learning_rate,
            "num_train_epochs": recipe.training.num_train_epochs,
            "seed": recipe.training.seed,
            **training,
        },
    }


def _entries(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield the entries of a recipe's list of data sets, with public names."""
    for data_set in recipe.data_sets:
        fields = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in data_set.fields.items()
        }
        settings = {"name": data_set.name, "weight": data_set.weight, **fields}
        yield {
            "path": _public(data_set.path),
            **{name: value for name, value in settings.items() if value is not None},
        }


def _changed(value: Any, left_out: Sequence[str]) -> dict[str, Any]:
    plain = asdict(value)
    changed = {}
    for spec in fields(value):
        default = spec.default
        if spec.default_factory is not MISSING:
            default = spec.default_factory()
        if spec.name not in left_out and getattr(value, spec.name) != default:
            setting = plain[spec.name]
            changed[spec.name] = list(setting) if isinstance(setting, tuple) else setting
    return changed


def _made_by(job: Job, measured: MeasuredModel, seconds: float) -> Iterator[str]:
    yield f"- {measured.step} optimizer steps on {measured.ranks} ranks"
    if job.hardware:
        yield f"- hosts: {_cell('; '.join(job.hardware))}"
    if seconds:
        yield f"- time: {seconds / 60:.1f} minutes from the start of the run"
    if seconds and job.price_per_hour is not None:
        cost = job.price_per_hour * seconds / 3600
        yield f"- cost: {cost:.2g} {job.currency}".rstrip()
    versions = {
        "ftcluster": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    yield f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"
