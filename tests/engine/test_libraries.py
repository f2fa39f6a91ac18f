"""Scripts with other people's training libraries train on two ranks with the planned backend.

FTCLUSTER_TEST_SITE is a folder with the libraries, which are in no stack: `pip install --no-deps
--target DIR lightning lightning-utilities torchmetrics trl peft sentence-transformers scikit-learn
scipy joblib threadpoolctl narwhals cloudpickle`.
"""

import json
import os
import re
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from datasets import Dataset

from tests.engine.models import make_model, make_tokenizer
from tests.engine.test_accelerate_suite import launched_program

SITE = os.environ.get("FTCLUSTER_TEST_SITE", "")
ROWS = 16

FABRIC = """
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
torch.manual_seed(1 + fabric.global_rank)
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
for features, wanted in fabric.setup_dataloaders(torch.utils.data.DataLoader(data, 4)):
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.mse_loss(model(features), wanted))
    optimizer.step()
weights = fabric.all_gather(torch.cat([one.detach().flatten() for one in model.parameters()]))
assert fabric.world_size == 2 and torch.equal(weights[0], weights[1]), weights
"""
SIMILARITY = """
from datasets import load_from_disk
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses,
)

model = SentenceTransformer("model", device="cpu")
loss = losses.MultipleNegativesRankingLoss(model)
arguments = SentenceTransformerTrainingArguments(
    "out", max_steps=2, per_device_train_batch_size=4, use_cpu=True, report_to="none"
)
data = load_from_disk("pairs")
trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
trainer.train()
trainer.save_model()
trainer.save_state()
"""
TRL = (
    "-m", "trl.scripts.sft", "--model_name_or_path", "model", "--dataset_name", "chats",
    "--max_steps", "2", "--per_device_train_batch_size", "2", "--max_length", "32",
    "--use_cpu", "true", "--bf16", "false", "--report_to", "none", "--output_dir", "out",
    "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj",
)  # fmt: skip
CASES = {  # by module: the script's text, or its command
    "lightning": FABRIC,
    "sentence_transformers": SIMILARITY,
    "trl": TRL,
}


@pytest.mark.long
@pytest.mark.parametrize("module", CASES)
def test_a_library_trains_with_the_planned_backend(module: str, tmp_path: Path) -> None:
    if not PathFinder.find_spec(module, [SITE]):
        pytest.skip(f"on demand: set FTCLUSTER_TEST_SITE to a folder with {module}")
    make_tokenizer().save_pretrained(tmp_path / "model")
    kind, task = ("llama", "causal-lm") if module == "trl" else ("bert", "sentence-similarity")
    make_model(kind, task).save_pretrained(tmp_path / "model")
    pairs = {"anchor": ["w4 w5"] * ROWS, "positive": ["w6 w7"] * ROWS}
    Dataset.from_dict(pairs).save_to_disk(tmp_path / "pairs")
    (tmp_path / "chats").mkdir()
    row = {"prompt": "w4 w5", "completion": " w6 w7"}
    (tmp_path / "chats/train.jsonl").write_text(f"{json.dumps(row)}\n" * ROWS)
    script = CASES[module]
    if isinstance(script, str):
        (tmp_path / "script.py").write_text(script)
        script = ("script.py",)
    done = launched_program(script, "impi", tmp_path, SITE)
    assert done.returncode == 0, done.stdout
    assert re.findall(r"FTCLUSTER-BACKEND (\w+)", done.stdout) == ["impi"], done.stdout
    if module != "lightning":
        states = [json.loads(path.read_text()) for path in tmp_path.glob("out/**/*_state.json")]
        assert {state["global_step"] for state in states} == {2}
        assert list((tmp_path / "out").rglob("*.safetensors"))
