"""A model whose whole optimizer state does not fit into any host's memory."""

import json
import random
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, no_rank_is_left
from tests.cluster.control import HEAD, NAMES

# bytes per host; a rank of GPT-2 needs 2.9 GB alone, or 2.2 GB as one of three with shards
MEMORY = 3_050_000_000
GPT2 = (
    "gpt2", "tokenizer=null", "block_size=64", "batch_size=3", "training.eval_strategy=no",
    "config_overrides={vocab_size: 50257}", "training.gradient_accumulation_steps=1",
    "training.max_steps=4", "training.save_strategy=steps", "training.save_steps=2",
)  # fmt: skip


@pytest.mark.long
def test_a_model_that_fits_no_host_trains_on_all(cluster: Cluster, tmp_path: Path) -> None:
    control, draw = cluster.control, random.Random(0)
    words = [f"w{draw.randrange(500)}" for _ in range(20_000)]
    (tmp_path / "words.txt").write_text(" ".join(words))
    recipe = (*GPT2, "--data", str(tmp_path))
    try:
        for name in NAMES:
            control.bed.memory(name, MEMORY)
        setup = control.run("setup", cluster.inventory)
        assert setup.returncode == 0, setup.stderr
        refused = control.run("train", *recipe, "training.shard_optimizer=false")
        assert refused.returncode == 1, refused.stdout
        assert "not enough memory: a rank needs 2.9 GB" in refused.stderr
        assert "training.shard_optimizer=true" in refused.stderr
        planned = json.loads(control.run("plan", *recipe, "--json").stdout)
        [why] = [one["why"] for one in planned["decisions"] if one["what"] == "optimizer"]
        assert "would be too much for the memory of node0-node2" in why
        done = control.run("train", *recipe, "--json")
    finally:
        for name in NAMES:
            control.bed.memory(name, None)
        control.run("setup", cluster.inventory)
    assert done.returncode == 0, done.stderr
    model = Path(json.loads(done.stdout)["model"])
    kept = control.shell(HEAD, f"ls {model} {model.parent}/checkpoints/checkpoint-4")
    assert kept.count("model.safetensors") == 2
    assert "state.safetensors" in kept
    no_rank_is_left(cluster)
