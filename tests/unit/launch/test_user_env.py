"""The user's own variables for the ranks: accepted names, and records without their values."""

from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.ansible.playbooks import Launched, RunEvents
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import UsageError
from ftcluster.launch.mpirun import render
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.training_run import TrainingRun
from ftcluster.launch.user_env import read_env
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import parse_recipe
from ftcluster.stacks.catalog import load_stacks
from ftcluster_common.protocol.launch import pack_env, unpack_env
from tests.unit.clusters import VM, cluster
from tests.unit.shell import Said, Shell

SECRET = "{{ lookup('env', 'HOME') }}\n'§"


def test_a_value_is_given_or_that_of_this_machine() -> None:
    words = ("WANDB_MODE=offline", "WANDB_API_KEY", "EMPTY=", "A=b=c")
    plain, secret = read_env(words, {"WANDB_API_KEY": SECRET})
    assert plain == {"WANDB_MODE": "offline", "EMPTY": "", "A": "b=c"}
    assert secret == {"WANDB_API_KEY": SECRET}


# variables that torchrun, mpirun, a shell or the loader interpret
ATTACKS = (
    "LD_PRELOAD=/tmp/x.so", "LD_LIBRARY_PATH=/tmp", "LD_AUDIT=/tmp/x.so", "PATH=/tmp",
    "GLIBC_TUNABLES=x", "PYTHONPATH=/tmp", "PYTHONHOME=/tmp", "FTCLUSTER_RUN=x", "RANK=1",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC=/tmp/x", "HYDRA_LAUNCHER_EXEC=/tmp/x", "PMI_RANK=3",
    "MASTER_ADDR=evil", "WORLD_SIZE=1", "LOCAL_RANK=0", "OMP_NUM_THREADS=1", "HF_TOKEN=hf_s3cret",
    "WANDB_API_KEY=s3cret", "AWS_SECRET_ACCESS_KEY=s3cret", "1A=s3cret", "A-B=s3cret", "=s3cret",
    "MLFLOW_TRACKING_URI=https://me:s3cret@site", "HF_ENDPOINT=https://site/?token=s3cret",
    "A=s3cret\nB=c", "A=s3cret\0", "MISSING", "HF_TOKEN", f"A={'x' * 40_000}",
)  # fmt: skip


def test_all_that_is_refused_is_said_at_once_and_no_value(said: Said) -> None:
    with pytest.raises(UsageError) as error:
        LaunchOptions(env=ATTACKS)
    assert len(str(error.value).splitlines()) == len(ATTACKS)
    assert "s3cret" not in str(error.value)
    said(error.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tags": ("team=nlp", "ticket=1", "team=cv")}, "--tag team"),
        ({"env": ("WANDB_MODE=offline", "WANDB_MODE=online")}, "--env WANDB_MODE"),
    ],
)
def test_a_name_that_is_given_twice_is_refused(
    options: dict[str, tuple[str, ...]], named: str
) -> None:
    with pytest.raises(UsageError, match=f"{named}: set twice"):
        LaunchOptions(**options)  # type: ignore[arg-type]


def test_tags_are_words_and_reach_the_ranks(shell: Shell) -> None:
    recipe = parse_recipe("{task: causal-lm, data: 'a/b', model: c}", "r.yml")
    decided = plan(cluster(VM), recipe, load_stacks())
    where = Cluster((Path("/i.ini"),), cluster(VM))
    training = TrainingRun("r-1", where, decided, render(decided, "r-1"), recipe)
    run = LaunchOptions(tags=("team=nlp", "rate=2e-5")).applied_to(training)
    assert run.launch.env["FTCLUSTER_TAGS"] == "team=nlp rate=2e-5"
    remember(where)
    words = "train quickstart --dry-run --json --name mine --tag team=nlp --env OWN=x"
    env = shell(words).document["launch"]["env"]
    assert (env["FTCLUSTER_TAGS"], env["OWN"]) == ("team=nlp", "x")
    assert "FTCLUSTER_TAGS" not in LaunchOptions().applied_to(training).launch.env
    for wrong in ("team", "=x", "a b=c", "a=b c", "a=b=c", "a=\x1b[2J", "a=\u202ex", "a=", "1=a"):
        with pytest.raises(UsageError, match="not a tag"):
            LaunchOptions(tags=("fine=1", wrong))


def test_no_record_has_a_value_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", SECRET)
    options = LaunchOptions(env=("OWN_KEY", "OWN_MODE=offline"))
    recipe = parse_recipe("{task: causal-lm, data: 'a/b', model: c}", "r.yml")
    decided = plan(cluster(VM), recipe, load_stacks())
    where = Cluster((Path("/i.ini"),), cluster(VM))
    training = TrainingRun("r-1", where, decided, render(decided, "r-1"), recipe)
    run = options.applied_to(training)
    assert run.launch.env["OWN_MODE"] == "offline"
    shown = f"{run!r} {run.record()} {run.job} {run.launch.to_dict()} {run.launch.shown()}"
    assert "lookup" not in shown
    assert run.launch.env["FTCLUSTER_SECRET_ENV"] == "/opt/ftcluster/runs/r-1/secret_env"
    packed = pack_env(run.secrets)
    launched = Launched({}, {}, True, "", "", 1, [], {}, packed)
    variables = run.playbook(RunEvents(run_hosts_of(where).at("r-1"), "/e"), launched).variables()
    assert "{" not in variables["train_secret_env"]
    assert unpack_env(packed) == {"OWN_KEY": SECRET}
    own = replace(training.launch, env={"FI_PROVIDER": "tcp"})
    with pytest.raises(UsageError, match="FI_PROVIDER: every launch sets this variable"):
        LaunchOptions(env=("FI_PROVIDER=x",)).applied_to(replace(training, launch=own))
