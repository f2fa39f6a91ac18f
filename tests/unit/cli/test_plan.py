import json
import re
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, remember
from tests.unit.clusters import VM, cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Said, Shell

GOLDEN = Path(__file__).parents[1] / "planning/golden"
TWO = cluster(
    host("node1", cores=64, numa_nodes=2, network_address="10.0.0.1"),
    host("node2", cores=64, numa_nodes=2, network_address="10.0.0.2"),
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=TWO))


def document(shell: Shell, *words: str) -> Any:
    return shell(["plan", *words, "--json"]).document


def test_hosts_decisions_and_the_command(shell: Shell) -> None:
    out = shell("plan mrpc precision=fp32 --commands").out
    lines = out.splitlines()
    assert lines.pop(3).startswith(
        "# note: from the Hugging Face Hub, because no file or folder here"
    )
    assert lines[:7] == [
        "# train bert-base-uncased (Hugging Face Hub), on nyu-mll/glue, mrpc (Hugging Face Hub)",
        "# 3 epochs, learning rate 0.0001 (linear), batch of 32 samples of up to 128 tokens, fp32",
        "# 4 ranks on 2 hosts (node1-node2), backend impi",
        "#",
        "# host         rank  CPUs   threads  memory  samples",
        "# node1-node2  0     0-31   31       node 0  8",
        "#              1     32-63  31       node 1  8",
    ]
    assert "# ranks on node1-node2: 2 (" in out
    assert "# precision: fp32 (set in recipe mrpc)" in out
    assert "job.json" in out
    assert "ftcluster_train.engine.prepare" in out
    assert lines[-1].startswith("  /opt/ftcluster/current/bin/mpirun -machinefile ")
    assert not list(Path.cwd().glob("state/ftcluster/runs/*"))  # the command leaves no files


def test_what_is_trained_comes_first_and_commands_only_when_asked_for(
    tmp_path: Path, shell: Shell, said: Said
) -> None:
    (tmp_path / "reviews.csv").write_text("id,review,stars\n1,a,b\n")
    (tmp_path / "book.txt").write_text("to be")
    for words in (
        "classify --data reviews.csv max_steps=5 bf16=true",
        "gpt2 --data book.txt tokenizer=null num_train_epochs=1 max_steps=-1 batch_size=16",
        "quickstart --nodes 1",
    ):
        out = shell(["plan", *words.split()]).out
        assert "mpirun" not in out
        said("\n".join(out.splitlines()[:4]).replace(str(tmp_path), "FOLDER"))


def test_columns_and_seed_are_in_the_document(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "reviews.csv").write_text("id,review,stars\n1,a,b\n")
    found = document(shell, "classify", "--data", "reviews.csv", "seed=7")
    assert found["columns"] == {"text": ["review"], "label": ["stars"], "not read": ["id"]}
    assert found["recipe"]["seed"] == 7
    assert document(shell, "mrpc")["columns"] is None


def test_the_size_of_a_model_in_this_machines_cache_of_the_hub_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def memory() -> str:
        decisions = document(shell, "mrpc", "--model", "own/big")["decisions"]
        [found] = [one["value"] for one in decisions if one["what"] == "memory per rank"]
        return str(found)

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert memory() == "unknown"
    model = tmp_path / "hub/models--own--big"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text("c0ffee")
    (model / "snapshots/c0ffee").mkdir(parents=True)
    config = {"hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522}
    (model / "snapshots/c0ffee/config.json").write_text(json.dumps(config))
    # estimated from the shape, because the weights are not safetensors
    assert memory().startswith("up to ")
    write_weights(model / "snapshots/c0ffee/model.safetensors", a=("F32", [20_000, 1_000_000]))
    assert "not enough memory" in shell("plan mrpc --model own/big", 1).err


def test_lines_fit_a_terminal_and_have_no_colour_where_it_is_unwanted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "60", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    coloured = shell("plan mrpc").out
    assert "\x1b[1m" in coloured
    assert "\x1b[1;31merror: \x1b[0m" in shell("plan unknown", 2).err
    monkeypatch.setenv("NO_COLOR", "1")
    plain = re.sub(r"\x1b\[[12]?m|\x1b\[0m", "", shell("plan mrpc").out)
    assert "\x1b" not in plain  # at most bold and dim
    assert max(map(len, plain.splitlines())) <= 60
    assert "\n  " in plain


def test_train_with_dry_run_shows_the_same(shell: Shell) -> None:
    shown = []
    for words in (["plan", "mrpc"], ["train", "mrpc", "--dry-run"]):
        lines = shell(words).out.splitlines()
        shown.append([line for line in lines if "runs/mrpc-" not in line and "_RUN=" not in line])
    assert shown[0] == shown[1]


def test_the_json_document_can_be_planned_again(tmp_path: Path, shell: Shell) -> None:
    first = document(shell, "mrpc", "--nodes", "1", "--ranks-per-host", "4")
    assert (first["state"], first["world_size"], first["backend"]) == ("planned", 4, "impi")
    assert [rank["cpus"] for rank in first["hosts"][0]["ranks"]] == [
        "0-15", "16-31", "32-47", "48-63",
    ]  # fmt: skip
    assert [one["name"] for one in first["facts"]["hosts"]] == ["node1"]
    assert {"what", "value", "why", "hosts"} == set(first["decisions"][0])
    assert first["launch"]["argv"][0] == "/opt/ftcluster/current/bin/mpirun"
    (tmp_path / "one.json").write_text(json.dumps(first))
    again = document(shell, "mrpc", "--facts", "one.json", "--ranks-per-host", "4")
    for part in ("hosts", "decisions", "facts"):
        assert again[part] == first[part]


def test_facts_of_other_clusters(tmp_path: Path, shell: Shell) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(ClusterFacts((VM,)).to_dict()))
    remembered = tmp_path / "state/ftcluster/cluster.json"
    for file, hosts in ((bare, 1), (remembered, 2), (GOLDEN / "mixed.json", 6)):
        assert len(document(shell, "mrpc", "--facts", str(file))["hosts"]) == hosts


def test_files_without_valid_facts(tmp_path: Path, shell: Shell, said: Said) -> None:
    facts = ClusterFacts((VM,)).to_dict()["hosts"][0]
    node = {"node": 0, "cores": 2, "memory_bytes": 1, "cpus": "0-x"}
    changes: tuple[dict[str, Any], ...] = (
        {"numa": []},
        {"cores": 3},
        {"numa": [{"node": 0}]},
        {"numa": [node]},
        {"numa": 7},
        {"name": "b", "numa": [{**node, "cpus": "0-300"}]},
        {"name": "b", "threads": 1},
        {"numa": [{**node, "cpus": "0-1", "socket_cpus": {"0": "0"}, "distances": [10, 20]}]},
        {"numa_nodes": 5, "sockets": 0},
        {"numa": [{**node, "cpus": "0-1", "near": 9}]},
        {"cpu_quota": 0},
    )
    hosts = [
        {"name": "a"},
        7,
        {},
        {**facts, "name": "../x\n-o"},
        *({**facts, **change} for change in changes),
    ]
    (tmp_path / "f.json").write_text(json.dumps({"hosts": hosts}))
    said(shell("plan --facts f.json", 1).err.replace(str(tmp_path), "FOLDER"))
    for text in ("{", "[1]", "{}", '{"facts": {"hosts": []}}'):
        (tmp_path / "f.json").write_text(text)
        assert "f.json" in shell("plan --facts f.json", 1).err


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        ("mrpc learning_rate", 2, "learning_rate has no value: write learning_rate=VALUE"),
        ("mrpc training.seed batch_size", 2, "training.seed has no value: write training.seed="),
        ("mrpc squad", 2, "only one recipe can be named, got mrpc, squad"),
        ("mrpc --facts 10x8480+", 1, "write 10x2x8480+"),
        ("mrpc --facts 6980P", 1, "write 2x6980P"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_what_to_write(
    arguments: str, code: int, answer: str, shell: Shell
) -> None:
    assert answer in shell(f"plan {arguments}", code).err


def test_the_size_of_a_model_folder_is_planned_for(tmp_path: Path, shell: Shell) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    write_weights(model / "model.safetensors", a=("F32", [20_000, 1_000_000]))
    err = shell("plan mrpc --model model", 1).err
    assert "a rank needs 281 GB: 10 bytes (weights in bf16, and 1/2 of fp32 weights" in err


@pytest.mark.parametrize("recipe", ["embed", "sparse", "colbert"])
def test_the_plan_states_the_memory_of_a_search(recipe: str, shell: Shell) -> None:
    words = f"{recipe} data=org/pairs model=org/encoder"
    [line] = [line for line in shell(f"plan {words}").out.splitlines() if "of a search" in line]
    found = document(shell, *words.split())
    assert f"{found['text_bytes']} bytes per text in each rank" in line
    assert "of a search" not in shell(f"plan {words} training.eval_strategy=no").out
    assert "text_bytes" not in document(shell, "classify", "data=org/rows", "model=org/encoder")
    # a student's embeddings are only compared with those of its teacher
    if recipe == "embed":
        assert "text_bytes" not in document(shell, *words.split(), "loss=mse", "teacher=org/large")
