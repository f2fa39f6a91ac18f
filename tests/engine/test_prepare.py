"""Data are tokenized once per package build, and again if their name refers to other data."""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import constants

from ftcluster_common.protocol.launch import LAUNCH_FILE, PLANNED_FILE
from ftcluster_train.engine import prepare as prepare_module
from ftcluster_train.engine.data.download import commit_of, fetch_model
from ftcluster_train.engine.data.run_inputs import Inputs, read_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.models import dtype_keyword
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.classify.text_classification import TextClassificationTask
from ftcluster_train.errors import TrainError
from tests.engine.jobs import make_job
from tests.engine.models import make_model, make_tokenizer

load_dataset = datasets.load_dataset

# Runs the program and prints all modules that were imported. `-X importtime` would not list modules
# that importlib.import_module has imported, as transformers does.
PROGRAM = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
runpy.run_module("ftcluster_train.engine.prepare", run_name="__main__", alter_sys=True)
"""


def write(folder: Path, texts: Sequence[str]) -> dict[str, str]:
    """Write a data set as files; return each split's file."""
    folder.mkdir()
    files = {split: str(folder / f"{split}.jsonl") for split in ("train", "validation")}
    for path in files.values():
        rows = [json.dumps({"text": text, "label": i % 2}) for i, text in enumerate(texts)]
        Path(path).write_text("\n".join(rows))
    return files


def test_named_data_are_tokenised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path / "first", ["w5", "w7"])

    def load(name: str, config: str | None, revision: str | None) -> Any:
        assert (name, config, revision) == ("someone/texts", None, "v1")
        return load_dataset("json", data_files=files, cache_dir=str(tmp_path / "datasets"))

    encoded: list[str] = []
    encode = TextClassificationTask.encode

    def note(task: TextClassificationTask, data: str, *others: Any) -> list[str]:
        encoded.append(data)
        return encode(task, data, *others)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(TextClassificationTask, "encode", note)
    model = tmp_path / "model"
    make_model("bert").save_pretrained(model)
    make_tokenizer().save_pretrained(model)
    found = []
    for run in ("a", "b", "c", "d", "e"):
        job = make_job(tmp_path / run, "text-classification")
        recipe = replace(job.recipe, model=str(model), data="someone/texts@v1", from_scratch=False)
        found.append(prepare(replace(job, recipe=recipe, prefix=tmp_path / "prefix")).samples)
        if run == "b":
            files = write(tmp_path / "second", ["w8", "w9"])
        if run == "c":  # another build of the package may need more files
            (tmp_path / "package").mkdir()
            monkeypatch.setattr(prepare_module, "__file__", str(tmp_path / "package/prepare.py"))
        if run == "d":  # another version may read rows in another way
            (tmp_path / "readers").mkdir()
            (tmp_path / "readers/importer.py").touch()
            monkeypatch.setattr(prepare_module, "READERS", (tmp_path / "readers",))
    assert found[0] == found[1] != found[2] != found[3] != found[4]
    assert len(encoded) == 4
    first, second = (Samples(Path(samples) / "train")[0]["input_ids"] for samples in found[1:3])
    assert list(first) != list(second)


def test_a_run_with_the_same_recipe_and_files_takes_the_inputs_without_torch(
    tmp_path: Path,
) -> None:
    write(tmp_path / "data", ["w5", "w7"])
    model = tmp_path / "model"
    make_model("bert").save_pretrained(model)
    make_tokenizer().save_pretrained(model)
    numbers = itertools.count()

    def prepared(**training: Any) -> tuple[Inputs, bool]:
        """Return the inputs of a new run, and True if torch was imported for them."""
        job = make_job(tmp_path / "runs" / f"run{next(numbers)}", "text-classification")
        recipe = replace(
            job.recipe, model=str(model), data=str(tmp_path / "data"), from_scratch=False,
            training=replace(job.recipe.training, **training),
        )  # fmt: skip
        document = replace(job, recipe=recipe, prefix=tmp_path / "prefix").to_dict()
        (job.run_dir / "job.json").write_text(json.dumps(document))
        (job.run_dir / PLANNED_FILE).write_text("planned")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(job.run_dir)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        imported = set(done.stderr.split())
        assert "ftcluster_common" in imported
        assert "transformers.modeling_utils" not in imported  # this import would take a second
        assert (job.run_dir / LAUNCH_FILE).read_text() == "planned"  # the run may start
        return read_inputs(job.run_dir), "torch" in imported

    first, with_torch = prepared()
    assert with_torch
    assert prepared(learning_rate=1e-3, max_steps=7) == (first, False)
    with (tmp_path / "data/train.jsonl").open("a") as file:
        file.write('\n{"text": "w9", "label": 1}\n')
    second, with_torch = prepared()
    assert with_torch
    assert second.samples != first.samples
    shutil.rmtree(second.samples)  # less recent samples are removed in this way
    assert prepared()[1]


@pytest.mark.parametrize(
    ("version", "keyword"),
    [
        ("4.51.3", "torch_dtype"),
        ("4.55.4", "torch_dtype"),
        ("4.56.0", "dtype"),
        ("4.57.6", "dtype"),
        ("5.23.0", "dtype"),
        ("5.24.0.dev0", "dtype"),
    ],
)
def test_each_transformers_is_asked_for_fp32_in_its_own_words(version: str, keyword: str) -> None:
    assert dtype_keyword(version) == keyword


def test_a_revision_of_the_hub_is_the_commit_that_its_cache_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    for revision, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        snapshot = cache / "models--own--tiny" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").touch()
        ref = cache / "models--own--tiny" / "refs" / revision
        ref.parent.mkdir(exist_ok=True)
        ref.write_text(commit)
    for name, commit in (("", "a"), ("@v1", "b"), (f"@{'b' * 40}", "b")):
        folder = fetch_model(f"own/tiny{name}", tmp_path / "models", weights=True)
        assert commit_of(Path(folder)) == commit * 40
    with pytest.raises(TrainError, match="own/tiny@v2"):
        fetch_model("own/tiny@v2", tmp_path / "models", weights=True)
