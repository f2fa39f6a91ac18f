"""What mpirun and its ranks get of the head's environment."""

import pytest

from ftcluster_common.launch import RENDEZVOUS_PORTS
from ftcluster_train.launcher.rank_environment import rank_environment, without_credentials


def test_the_environment_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("HF_HOME", "/cache")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    found = rank_environment({"OMP_NUM_THREADS": "4"}, "/stack")
    assert "AWS_SECRET_ACCESS_KEY" not in found
    assert found["HF_HOME"] == "/cache"
    assert found["MLFLOW_TRACKING_URI"] == "http://tracking:5000"
    assert found["PATH"].startswith("/stack/bin:")
    assert int(found["MASTER_PORT"]) in RENDEZVOUS_PORTS


def test_credentials_of_this_host_are_not_sent_to_others() -> None:
    environment = {
        "HF_TOKEN": "a", "HF_HOME": "/b", "HF_TOKEN_PATH": "/c", "MLFLOW_TRACKING_PASSWORD": "d",
        "MLFLOW_TRACKING_URI": "e", "https_proxy": "http://me:f@proxy", "http_proxy": "http://g",
    }  # fmt: skip
    argv = ["/stack/bin/mpirun", "-n", "2", "python"]
    assert without_credentials(argv, environment, {"OMP_NUM_THREADS": "1"}) == [
        "/stack/bin/mpirun", "-genvexcl", "HF_TOKEN,MLFLOW_TRACKING_PASSWORD,https_proxy",
        "-n", "2", "python",
    ]  # fmt: skip
    assert without_credentials(argv, {"HF_HOME": "/b"}, {}) == argv
    # an empty one of the launch, which hides those of the hosts, has to get there
    assert without_credentials(argv, {"HF_TOKEN": ""}, {"HF_TOKEN": ""}) == argv
