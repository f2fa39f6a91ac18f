"""The commands `evaluate` and `predict`; tests/engine/test_formats.py tests the ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch import training_run
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.models import predict
from ftcluster.progress.state import RunProgress
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.models.trained_model import FILE, trained_document
from ftcluster_common.tasks.classify import TextClassification
from tests.unit.clusters import cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Said, Shell

RESULT = {
    "model": "", "metrics": {"accuracy": 0.75}, "samples_per_second": 12.5, "train_seconds": 2.0,
    "world_size": 4, "predictions": "/opt/ftcluster/runs/r/predictions",
}  # fmt: skip
ROWS = [{"text": "a, b", "prediction": "good"}, {"text": "c\u2028d", "prediction": "bad"}]


@pytest.fixture(autouse=True)
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the runs that are launched on two hosts; the folder has a model and data."""
    monkeypatch.chdir(tmp_path)
    many = cluster(host("node0", cores=64, numa_nodes=32), host("node1", cores=64, numa_nodes=32))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=many))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    write_weights(tmp_path / "model/model.safetensors", a=("F32", [2, 3]))
    (tmp_path / "new.csv").write_text("text\na\n")
    (tmp_path / "old.csv").write_text("text,label\na,good\n")
    runs: list[TrainingRun] = []

    def train(run: TrainingRun, *_: object) -> RunProgress:
        runs.append(run)
        return RunProgress(run.id, state="done", result=RESULT, seconds=7.0)

    def fetch(_place: object, _run: str, path: str, destination: Path) -> None:
        assert path == RESULT["predictions"]
        destination.mkdir()
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
        (destination / "predictions.jsonl").write_text(lines, encoding="utf-8")

    monkeypatch.setattr(training_run, "train", train)
    monkeypatch.setattr(predict, "fetch_model", fetch)
    return runs


def document(shell: Shell, words: str) -> Any:
    return shell(f"{words} --json").document


def test_a_model_is_evaluated_on_all_ranks(launched: list[TrainingRun], shell: Shell) -> None:
    found = document(shell, "evaluate classify --model model --data old.csv --bf16")
    assert found.pop("run").startswith("classify-")
    assert found == {
        "state": "done", "model": "model", "metrics": {"accuracy": 0.75}, "classes": {},
        "samples_per_second": 12.5, "world_size": 4, "seconds": 7.0,
    }  # fmt: skip
    [run] = launched
    assert run.plan.world_size == 64  # more ranks than samples in a batch
    assert (run.job["purpose"], run.plan.precision) == ("evaluate", "bf16")
    assert [source for source, _ in run.folders] == [f"{Path.cwd()}/old.csv", f"{Path.cwd()}/model"]


def test_a_trained_model_has_its_own_configuration_and_tokenizer(
    launched: list[TrainingRun],
) -> None:
    (Path.cwd() / "book.txt").write_text("to be")
    assert main(["evaluate", "gpt2", "--model", "model", "--data", "book.txt"]) == 0
    recipe = launched[0].recipe
    assert (recipe.from_scratch, recipe.tokenizer, recipe.config_overrides) == (False, None, {})


def test_adapters_are_copied_and_their_base_is_that_of_the_hosts(
    launched: list[TrainingRun], shell: Shell
) -> None:
    Path("adapters").mkdir()
    pairs = {"query": "a", "text": "b", "label": 1}
    Path("pairs.jsonl").write_text(f"{json.dumps(pairs)}\n")
    Path("adapters/adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    words = "evaluate rerank --model adapters --data pairs.jsonl"
    # the base model's weights are not there either
    assert "contains adapters without their base model" in shell(words, 1).err
    Path("adapters/adapter_model.safetensors").touch()
    document(shell, words)
    [run] = launched
    assert [Path(source).name for source, _ in run.folders] == ["pairs.jsonl", "adapters"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("out.csv", 'text,prediction\n"a, b",good\nc\u2028d,bad\n'),
        ("out.tsv", "text\tprediction\na, b\tgood\nc\u2028d\tbad\n"),
        ("out.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)),
    ],
)
def test_predictions_are_written_here(shell: Shell, tmp_path: Path, name: str, text: str) -> None:
    found = document(shell, f"predict classify --model model --data new.csv -o {name}")
    assert (found["rows"], found["output"]) == (2, str(tmp_path / name))
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, "rows of the user"
    assert (tmp_path / name).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("sent", [b"[1]\n", b"{", b"\xff\n", b"[" * 60_000, None])
def test_predictions_that_are_no_rows_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sent: bytes | None
) -> None:
    def fetch(_place: object, _run: str, _path: str, destination: Path) -> None:
        destination.mkdir()
        for name in ("a", "b"):
            (destination / name).write_bytes(sent or b'{"a": "\\ud800"}\n')

    monkeypatch.setattr(predict, "fetch_model", fetch)
    words = ["predict", "classify", "--model", "model", "--data", "new.csv", "-o", "out.csv"]
    assert main(words) == (1 if sent else 0)
    assert Path("out.csv").exists() == (sent is None)
    assert sent is None or "node0: a row of the run is not a JSON object" in capsys.readouterr().err


@pytest.fixture
def remembers(tmp_path: Path) -> Path:
    """Write a model that ftcluster has trained, on columns with unusual names."""
    words = ["max_length=64", "text_columns=[a]", "label_column=kind", "metrics=[f1]"]
    recipe = load_recipe("classify", [*words, f"data={tmp_path}"])
    file = tmp_path / "model" / FILE
    file.write_text(json.dumps(trained_document(recipe, {"text_columns": ["subject", "body"]})))
    (tmp_path / "tickets.csv").write_text("text,subject,body,kind\nx,a,b,good\n")
    return file


@pytest.mark.usefixtures("remembers")
@pytest.mark.parametrize("recipe", [[], ["classify"]])
def test_a_trained_model_remembers_what_it_reads(
    launched: list[TrainingRun], shell: Shell,
    recipe: list[str],
) -> None:  # fmt: skip
    err = shell(["evaluate", *recipe, "--model", "model", "--data", "tickets.csv"]).err.replace(
        "\n", " "
    )
    settings = "settings from the model's training (model/ftcluster.json): "
    assert f"{settings}text_columns=subject,body" in err
    run = launched[0]
    options = run.recipe.options
    assert isinstance(options, TextClassification)
    assert (options.text_columns, options.label_column) == (("subject", "body"), "kind")
    assert (options.max_length, options.metrics) == (64, None)
    assert run.recipe.name == "classify"
    assert run.columns[0]["text"] == ("subject", "body")


def test_what_a_model_remembers_can_be_overridden_or_not_be_there(
    launched: list[TrainingRun], remembers: Path, tmp_path: Path
) -> None:
    use = ["--model", "model", "--data"]
    assert main(["evaluate", *use, "tickets.csv", "text_columns=text", "max_length=32"]) == 0
    assert main(["evaluate", *use, "old.csv"]) == 0  # the file has other columns
    assert main(["evaluate", *use, "own/name"]) == 0  # the hosts check a name on the Hub
    (tmp_path / "pairs.jsonl").write_text('{"query": "a", "positive": "b"}\n')
    assert main(["evaluate", "embed", *use, "pairs.jsonl"]) == 0  # another task than the training's
    remembers.write_text("{")
    assert main(["evaluate", "classify", *use, "old.csv"]) == 0
    found = [
        (getattr(one.recipe.options, "text_columns", ()), one.recipe.max_length) for one in launched
    ]
    assert found == [(("text",), 32), ((), 64), (("subject", "body"), 64), ((), 256), ((), 128)]


def test_a_model_of_a_recipe_that_is_not_here_needs_data(
    launched: list[TrainingRun], remembers: Path, shell: Shell
) -> None:
    remembers.write_text(remembers.read_text().replace('"classify"', '"ours"'))
    assert "the data are missing" in shell("evaluate --model model", 2).err
    assert main(["evaluate", "--model", "model", "--data", "tickets.csv"]) == 0
    assert launched[0].recipe.name == "classify"


@pytest.mark.parametrize(
    ("architecture", "recipes"),
    [
        ("DistilBertForSequenceClassification", "classify or glue or rerank, with"),
        ("T5ForConditionalGeneration", "seq2seq, with"),
        ("BertModel", "embed, with"),
        ("MyOwn", "classify or clm or colb"),
        (None, "classify or clm or colb"),
    ],
)
def test_a_model_of_others_needs_a_recipe(
    launched: list[TrainingRun], shell: Shell, architecture: str | None, recipes: str
) -> None:
    """Otherwise the model would be measured on quickstart's generated pairs."""
    config = {"architectures": [architecture]} if architecture else {"architectures": 3}
    Path("model/config.json").write_text(json.dumps(config))
    for words in ("evaluate", "predict -o out.csv"):
        err = shell(f"{words} --model model --data old.csv", 2).err
        assert "does not record what it was trained for (it contains no ftcluster.json)" in err
        assert recipes in err.replace("\n", " ")
    assert launched == []


@pytest.mark.parametrize("command", ["evaluate", "predict --output out.csv"])
def test_a_run_that_is_detached_from_goes_on(
    monkeypatch: pytest.MonkeyPatch, shell: Shell, command: str
) -> None:
    monkeypatch.setattr(training_run, "train", lambda run, *_: RunProgress(run.id))
    name, *options = command.split()
    found = document(shell, " ".join([name, "classify --model model --data old.csv", *options]))
    assert found == {"run": found["run"], "state": "running"}
    assert not Path("out.csv").exists()


def test_what_is_refused_before_anything_starts(
    launched: list[TrainingRun], shell: Shell, tmp_path: Path,
    said: Said,
) -> None:  # fmt: skip
    for words, code in (
        ("evaluate classify --data new.csv --model model", 1),
        ("evaluate classify", 2),
        ("predict classify --model model --data new.csv", 2),
        ("predict classify --model model --data new.csv --output out.xlsx", 2),
        ("predict classify --model model --data new.csv --output none/out.csv", 2),
        ("predict clm --model model --data book.txt --output out.csv", 1),
    ):
        said(shell(words, code).err.replace(str(tmp_path), "FOLDER"))
    (tmp_path / "book.txt").write_text("to be")
    assert "evaluate" in shell("predict clm --model model --data book.txt -o out.csv", 2).err
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    said(shell("evaluate dpo --model OWNER/model --data pairs.jsonl", 2).err)
    assert not launched
