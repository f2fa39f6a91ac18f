"""The stack with IPEX; on demand, because torch's CUDA build downloads 4 GB of packages."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import Machine
from tests.programs import Home

pytestmark = pytest.mark.skipif(
    not os.environ.get("FTCLUSTER_TEST_INTEL"),
    reason="on demand: set FTCLUSTER_TEST_INTEL=1 (4 GB of packages are downloaded, 12 GB written)",
)
SHORT = ("training.max_steps=60", "training.warmup_ratio=0.1")
LOAD = """
import json, sys, torch
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
finite = all(torch.isfinite(p).all().item() for p in model.parameters())
print(json.dumps({"dtypes": sorted({str(p.dtype) for p in model.parameters()}), "finite": finite,
                  "ipex": "intel_extension_for_pytorch" in sys.modules}))
"""


def test_the_same_recipe_trains_with_ipex_and_the_result_is_a_plain_model(
    machine: Machine, tmp_path: Path
) -> None:
    home = Home(tmp_path, tmp_path / "ftcluster")
    prefix = ("-e", f"ftcluster_prefix={home.prefix}")
    done = home.run("setup", "localhost", "--stack", "intel-2.8", "--json", *prefix)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stack"] == "intel-2.8"
    again = home.run("setup", "localhost", "--json", *prefix)
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["stack"] == "intel-2.8"
    assert all(host["changed"] == 0 for host in document["hosts"].values())

    trained = home.run("train", "quickstart", *SHORT, "--json")
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)
    assert result["ipex"] is True
    without = home.run("train", "quickstart", *SHORT, "training.use_ipex=false", "--json")
    assert without.returncode == 0, without.stderr
    assert json.loads(without.stdout)["ipex"] is False

    loaded = subprocess.run(  # loaded by the other stack, which has no IPEX
        [machine.python, "-c", LOAD, result["model"]], capture_output=True, text=True
    )
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout) == {
        "dtypes": ["torch.float32"], "finite": True, "ipex": False,
    }  # fmt: skip
