"""The part of the head's environment that mpirun and its ranks get."""

import json
import os
import ssl
import subprocess
import sys

# huggingface_hub and requests use these variables
from urllib.request import getproxies_environment

import pytest

from ftcluster_common.protocol.launch import RENDEZVOUS_PORTS
from ftcluster_train.supervisor.rank_environment import rank_environment, without_credentials
from tests.programs import NODE_PATH

# as in requests/sessions.py, and in this Python's OpenSSL
CERTIFICATES_OF_REQUESTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
OPENSSL = ssl.get_default_verify_paths()
CERTIFICATES_OF_OPENSSL = (OPENSSL.openssl_cafile_env, OPENSSL.openssl_capath_env)


def test_the_environment_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("HF_HOME", "/cache")
    monkeypatch.setenv("SLURM_CONF", "/opt/slurm/slurm.conf")  # mpirun's srun reads this variable
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    found = rank_environment({"OMP_NUM_THREADS": "4"}, "/stack")
    assert "AWS_SECRET_ACCESS_KEY" not in found
    assert found["HF_HOME"] == "/cache"
    assert found["SLURM_CONF"] == "/opt/slurm/slurm.conf"
    assert found["MLFLOW_TRACKING_URI"] == "http://tracking:5000"
    assert found["PATH"].startswith("/stack/bin:")
    assert int(found["MASTER_PORT"]) in RENDEZVOUS_PORTS


@pytest.mark.parametrize("proxies", [
    {"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"},
    {"all_proxy": "http://proxy:3128", "https_proxy": "http://other:3128", "no_proxy": "*"},
    {"HTTP_PROXY": "http://proxy:3128", "HTTPS_PROXY": "http://proxy:3128"},
])  # fmt: skip
def test_ranks_go_by_the_proxies_and_certificates_of_their_host(
    monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str]
) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    paths = {key: f"/etc/{key}" for key in (*CERTIFICATES_OF_REQUESTS, *CERTIFICATES_OF_OPENSSL)}
    for name, value in {**proxies, **paths}.items():
        monkeypatch.setenv(name, value)
    before = getproxies_environment()
    found = rank_environment({}, "/stack")
    for name in (*proxies, *paths):
        monkeypatch.delenv(name)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert getproxies_environment() == before != {}
    assert {key: found[key] for key in paths} == paths
    monkeypatch.setenv("ALL_PROXY", "socks5h://proxy:1080")
    assert "ALL_PROXY" not in rank_environment({}, "/stack")


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
    # an empty variable of the launch, which hides the hosts' variables, must reach them
    assert without_credentials(argv, {"HF_TOKEN": ""}, {"HF_TOKEN": ""}) == argv


@pytest.mark.parametrize(("name", "value"), [
    ("MLFLOW_TRACKING_URI", "https://user:secret@tracking.site/mlflow"),
    ("MLFLOW_TRACKING_URI", "postgresql+psycopg://user:secret@db/mlflow"),
    ("MLFLOW_S3_ENDPOINT_URL", "https://store.site/?X-Amz-Credential=a&X-Amz-Signature=b"),
    ("HF_ENDPOINT", "https://secret@mirror.site"),
    ("WANDB_BASE_URL", "https://wandb.site/#access=secret"),
    ("all_proxy", "user:secret@proxy:3128"),
])  # fmt: skip
def test_a_url_with_a_password_stays_on_its_host(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    environment = rank_environment({}, "/stack")
    assert environment[name] == value  # for the ranks of this host
    argv = without_credentials(["mpirun"], environment, {})
    assert name in argv[argv.index("-genvexcl") + 1].split(",")


HELD = """
import json, os, pwd, signal, socket
from ftcluster_common.protocol.launch import MPI_PORTS, RENDEZVOUS_PORTS
from ftcluster_train.errors import TrainError
from ftcluster_train.supervisor import rank_environment

sockets = []

def hold(ports):
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        assert os.read(told, 1) == b"x"
        return
    os.setuid(pwd.getpwnam("nobody").pw_uid)
    for port in ports:
        sockets.append(socket.create_server(("", port)))
    os.write(tell, b"x")
    signal.pause()

def said():
    try:
        return rank_environment.rank_environment({}, "/stack")["MASTER_PORT"]
    except TrainError as error:
        return str(error)

found = []
hold(RENDEZVOUS_PORTS[:-1])
found.append(said())
hold(RENDEZVOUS_PORTS[-1:])
found.append(said())
rank_environment.RENDEZVOUS_PORTS = range(29500, 29501)
hold(MPI_PORTS)
found.append(said())
print(json.dumps(found))
"""  # the end of a namespace's first process ends all its processes


@pytest.mark.needs("root", "network", "pid")
def test_ports_that_another_user_holds_are_left_out_or_named() -> None:
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--kill-child", sys.executable, "-c", HELD],
        env=os.environ | {"PYTHONPATH": NODE_PATH}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    one_left, none_left, no_mpi = json.loads(done.stdout)
    assert one_left == str(RENDEZVOUS_PORTS[-1])
    assert "from 29550 to 29599 is free" in none_left
    assert "user listens on: 50: nobody" in none_left
    assert "from 29600 to 29799 is free" in no_mpi
    assert "user listens on: 200: nobody), but mpirun needs one" in no_mpi
