"""`ftcluster train` with a folder of adapters as its model; tests/engine tests the ranks."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch import training_run
from ftcluster.launch.training_run import TrainingRun
from ftcluster.progress.state import RunProgress
from ftcluster_common.given_files import GivenFileError
from ftcluster_common.models.adapter_config import CONFIG, WEIGHTS, read_adapters
from ftcluster_common.protocol.job import recipe_of
from tests.unit.clusters import cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Said, Shell

RESULT = {"model": "/m", "metrics": {}, "samples_per_second": 1.0, "train_seconds": 2.0,
          "world_size": 1}  # fmt: skip
# peft 0.21 writes these fields for LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"])
PEFT: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None,
    "auto_mapping": None, "base_model_name_or_path": "org/llama", "bias": "none",
    "corda_config": None, "ensure_weight_tying": False, "eva_config": None,
    "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 16, "lora_bias": False,
    "lora_dropout": 0.05, "megatron_config": None, "megatron_core": "megatron.core",
    "modules_to_save": None, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16,
    "r": 8, "rank_pattern": {}, "revision": None, "target_modules": ["q_proj"],
    "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None,
    "use_dora": False, "use_qalora": False, "use_rslora": False,
}  # fmt: skip
NAME = "base_model.model.model.layers.0.self_attn.q_proj"
DPO = "train dpo --model adapters --data pairs.jsonl"


def write_adapters(folder: Path, rank: int = 8, **fields: Any) -> None:
    """Write adapters with the names and shapes of peft's files."""
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps({**PEFT, **fields}))
    shapes = {"lora_A": [rank, 32], "lora_B": [32, rank]}
    header, end = {}, 0
    for part, shape in shapes.items():
        begin, end = end, end + 4 * 32 * rank
        about = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        header[f"{NAME}.{part}.weight"] = about
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


@pytest.fixture(autouse=True)
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record launched runs; the folder has adapters, a base model and pairs of answers."""
    monkeypatch.chdir(tmp_path)
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(host("node0"))))
    write_adapters(tmp_path / "adapters")
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "base/tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    write_weights(tmp_path / "base/model.safetensors", a=("F32", [2, 3]))
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n")
    (tmp_path / "texts.csv").write_text("text,label\na,x\nb,y\n")
    runs: list[TrainingRun] = []

    def train(run: TrainingRun, *_: object) -> RunProgress:
        runs.append(run)
        return RunProgress(run.id, state="done", result=RESULT, seconds=7.0)

    monkeypatch.setattr(training_run, "train", train)
    return runs


def test_the_settings_are_those_of_the_adapters(launched: list[TrainingRun], shell: Shell) -> None:
    note = shell(f"{DPO} adapter_base=base lora_dropout=0").err
    assert "adapters of adapters are trained further" in note
    [run] = launched
    options = run.recipe.options
    fields = {name: getattr(options, name) for name in ("lora_r", "lora_alpha", "lora_dropout")}
    assert fields == {"lora_r": 8, "lora_alpha": 16.0, "lora_dropout": 0.0}
    assert options.lora_target_modules == ("q_proj",)
    # both folders are copied to the hosts, and the job names the copies
    copied = {Path(source).name: target for source, target in run.folders}
    assert (run.recipe.model, run.recipe.adapter_base) == (copied["adapters"], copied["base"])
    assert recipe_of(run.job["recipe"]).adapter_base == copied["base"]


def test_the_base_is_the_one_of_the_adapters(launched: list[TrainingRun], shell: Shell) -> None:
    write_adapters(Path("adapters"), revision="v2")
    shell(DPO)
    assert launched[0].recipe.adapter_base == "org/llama@v2"
    write_adapters(Path("adapters"), base_model_name_or_path="/opt/models/on-the-hosts")
    shell(DPO)
    assert launched[1].recipe.adapter_base == "/opt/models/on-the-hosts"


def test_without_a_rank_all_weights_are_trained(launched: list[TrainingRun], shell: Shell) -> None:
    assert "are merged into" in shell(f"{DPO} lora_r=null adapter_base=base").err
    recipe = launched[0].recipe
    assert (recipe.lora_r, recipe.adapters) == (None, None)
    assert recipe.adapter_base


def test_adapters_of_the_hub_need_their_rank(launched: list[TrainingRun], shell: Shell) -> None:
    words = "train dpo --model org/adapters --data pairs.jsonl adapter_base=base"
    assert "the adapters of adapters are trained further" in shell(f"{words} lora_r=8").err
    assert "are merged into" in shell(f"{words} lora_r=null").err
    assert [run.recipe.lora_r for run in launched] == [8, None]


def test_an_older_host_reads_the_job_of_a_training_without_adapters(
    launched: list[TrainingRun], shell: Shell
) -> None:
    shell("train dpo --model base --data pairs.jsonl")
    assert "adapter_base" not in launched[0].job["recipe"]


def test_wrong_adapters_are_refused(shell: Shell, said: Said) -> None:
    """Each message names the folder and a remedy; nothing is launched."""

    def refused(words: str = DPO, status: int = 2) -> None:
        error = shell(words, status).err
        assert "Traceback" not in error
        said(error.replace(str(Path.cwd()), "FOLDER"))

    refused(f"{DPO} lora_r=16")
    refused(f"{DPO} lora_target_modules=[k_proj] lora_alpha=8")
    refused(f"{DPO} adapter_base=./nowhere", 1)
    refused(f"{DPO} adapter_base=adapters", 1)
    refused("train dpo --model base --data pairs.jsonl adapter_base=base", 1)
    refused("train dpo --model org/adapters --data pairs.jsonl adapter_base=base")
    for fields in (
        {"peft_type": "IA3"}, {"rank_pattern": {"q_proj": 4}}, {"r": "8"}, {"r": True},
        {"base_model_name_or_path": None}, {"target_modules": None}, {"use_dora": True},
        {"init_lora_weights": "pissa_niter_4"},
    ):  # fmt: skip
        write_adapters(Path("adapters"), **fields)
        refused()
    write_adapters(Path("adapters"), rank=4)
    refused()
    write_adapters(Path("adapters"))
    (Path("adapters") / WEIGHTS).write_bytes(b"\xff" * 40)
    refused()
    (Path("adapters") / WEIGHTS).unlink()
    (Path("adapters") / "adapter_model.bin").touch()
    refused()
    (Path("adapters") / CONFIG).write_text("[")
    refused()


def test_a_cut_file_is_no_adapter(tmp_path: Path) -> None:
    whole = (tmp_path / "adapters" / WEIGHTS).read_bytes()
    for length in (0, 7, 8, 60, len(whole) - 1):
        (tmp_path / "adapters" / WEIGHTS).write_bytes(whole[:length])
        with pytest.raises(GivenFileError, match="no complete safetensors file"):
            read_adapters(tmp_path / "adapters")


def test_full_weights_need_a_task_with_a_head(shell: Shell) -> None:
    """peft saves token embeddings and the output layer in full if the vocabulary has grown."""
    file = Path("adapters") / WEIGHTS
    content = file.read_bytes()
    begin = content.index(b"}") + 3
    (length,) = struct.unpack("<Q", content[:8])
    more = b'"base_model.model.lm_head.weight": {"dtype": "F32", "shape": [1, 1], '
    more += b'"data_offsets": [0, 4]}, '
    file.write_bytes(
        struct.pack("<Q", length + len(more)) + content[8:begin] + more + content[begin:]
    )
    assert "replace the weights lm_head.weight" in shell(DPO, 2).err
