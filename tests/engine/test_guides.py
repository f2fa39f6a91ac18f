"""Training on two ranks with the guides' commands as ftcluster reads them.

With FTCLUSTER_TEST_SCRIPTS, a folder with transformers' examples, by these scripts; else by one
with the same command line. Models and data sets are folders with the names that the commands have.
"""

import json
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.engine.forks import start
from tests.engine.models import make_model, make_tokenizer
from tests.guides import GUIDES, ICE_LAKE, MANY_CPUS, STAND_IN, script_folder
from tests.programs import free_ports

LONGEST = 512  # tokens, as in the models that these models represent
MODELS = {"distilbert-base-uncased": "distilbert", "bert-large-uncased": "bert"}
EVALUATE = """class Metric:
    def compute(self, predictions, references):
        return {"rows": float(len(predictions))}

def load(*_, **__):
    return Metric()
"""  # the library would download each metric from the Hub
GLUE_PAGE = """---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: train.parquet
  - split: validation
    path: validation.parquet
  - split: test
    path: test.parquet
---
"""


def write_data(folder: Path) -> None:
    """Write SQuAD and MRPC in the Hub's format, with a few rows."""
    import datasets

    text = "w4 w5 w6 w7"
    answers = {"text": ["w5"], "answer_start": [3]}
    squad = {"id": "", "title": "", "context": text, "question": "w8 w9", "answers": answers}
    pairs = {"sentence1": text, "sentence2": text, "label": 1, "idx": 0}
    labels = datasets.ClassLabel(names=["not_equivalent", "equivalent"])
    for name, row in (("squad", squad), ("nyu-mll/glue", pairs)):
        (folder / name).mkdir(parents=True)
        for split in ("train", "validation", "test"):  # run_glue needs all splits
            rows = datasets.Dataset.from_list([{**row, "id": str(n)} for n in range(16)])
            if "label" in row:
                rows = rows.remove_columns("id").cast_column("label", labels)
            rows.to_parquet(folder / name / f"{split}.parquet")
    (folder / "nyu-mll/glue/README.md").write_text(GLUE_PAGE)


def _rank(rank: int, words: list[str], ports: list[int]) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]), "GLOO_SOCKET_IFNAME": "lo",
        "ACCELERATE_USE_CPU": "true", "HF_DATASETS_CACHE": str(Path("cache").absolute()),
    }  # fmt: skip
    sys.argv = words
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path(words[0], run_name="__main__")


@pytest.mark.parametrize("name", [ICE_LAKE, MANY_CPUS])  # the third CPU has fewer of these flags
def test_a_command_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = GUIDES[name].advised.split()
    monkeypatch.chdir(tmp_path)
    for model_name, kind in MODELS.items():
        model = make_model(kind, "sentence-similarity", max_position_embeddings=LONGEST)
        model.save_pretrained(model_name)
        tokenizer = make_tokenizer()
        tokenizer.model_max_length = LONGEST
        tokenizer.save_pretrained(model_name)
    source = script_folder(words[0])
    if source:
        shutil.copytree(source, tmp_path, dirs_exist_ok=True)
        Path("evaluate.py").write_text(EVALUATE)
        write_data(tmp_path)
    else:
        shutil.copy(STAND_IN, words[0])
    start(_rank, 2, [word.replace("/tmp/", f"{tmp_path}/") for word in words], free_ports(1))
    [state] = tmp_path.glob("*/trainer_state.json")
    assert json.loads(state.read_text())["global_step"] > 0
    assert state.with_name("model.safetensors").is_file()
    assert state.with_name("eval_results.json").is_file()
