"""The user's token for the Hub: its sources, and records that must not contain it."""

import argparse
from pathlib import Path

import pytest

from ftcluster.ansible.playbooks import Launched, RunEvents
from ftcluster.cli.launch_arguments import add_hub_token
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import UsageError
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.mpirun import render
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.script_run import ScriptRun
from ftcluster.launch.training_run import TrainingRun
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import parse_recipe
from ftcluster.stacks.catalog import load_stacks
from ftcluster.user_script.command import Script
from tests.unit.clusters import VM, cluster

TOKEN = "hf_Abc-123"


def test_it_is_taken_from_where_huggingface_hub_takes_it(tmp_path: Path) -> None:
    def written(*names: str) -> Path:
        path = tmp_path.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{'-'.join(names[:-1])}\n")
        return path

    home, cache = written("home", "token"), written("cache", "huggingface", "token")
    own = written("own", "file")
    everything = {"XDG_CACHE_HOME": str(cache.parents[1])}
    assert find_token(everything) == "cache-huggingface"
    everything |= {"HF_HOME": str(home.parent)}
    assert find_token(everything) == "home"
    everything |= {"HF_TOKEN_PATH": str(own)}
    assert find_token(everything) == "own"
    everything |= {"HUGGING_FACE_HUB_TOKEN": "old"}
    assert find_token(everything) == "old"
    assert find_token(everything | {"HF_TOKEN": f" {TOKEN}\n"}) == TOKEN


def test_a_missing_or_malformed_token(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_token({"HF_HOME": str(tmp_path)})
    assert f"there is no {tmp_path}/token" in caught.value.message
    assert "hf auth login" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        find_token({"HF_TOKEN": "{{ s3cret }}"})
    assert "s3cret" not in f"{caught.value.message} {caught.value.hint}"


def test_it_is_no_value_of_an_option() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_hub_token(parser)
    assert parser.parse_args(["--hf-token"]).hf_token is True
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args([f"--hf-token={TOKEN}"])


def test_no_record_of_a_run_has_it() -> None:
    recipe = parse_recipe("{task: causal-lm, data: 'a/b', model: c}", "r.yml")
    decided = plan(cluster(VM), recipe, load_stacks())
    launch = render(decided, "r-1")
    where = Cluster((Path("/i.ini"),), cluster(VM))
    training = TrainingRun("r-1", where, decided, launch, recipe, hub_token=TOKEN)
    script = Script("a", ("a.py",), (), None, None)
    own = ScriptRun("r-1", where, decided, launch, script, None, hub_token=TOKEN)
    for run in (training, own):
        assert TOKEN not in f"{run!r} {run.record()} {run.job}"
        events = RunEvents(run_hosts_of(where).at("r-1"), "/events")
        playbook = run.playbook(events, Launched({}, {}, True, "", "", 1, [], {}))
        assert TOKEN in playbook.variables().values()
