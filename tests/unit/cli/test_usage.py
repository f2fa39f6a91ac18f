"""Flags of other programs, and misspelled flags."""

from pathlib import Path

import pytest

from ftcluster.cli.commands import read_arguments
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import UsageError
from ftcluster.operations.train.prepare import RecipeRequest
from tests.unit.clusters import VM, cluster, host
from tests.unit.shell import Said, Shell


def words_of(*arguments: str) -> list[str]:
    options = read_arguments(["train", *arguments])
    words: list[str] = options.words
    return words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("mrpc --learning_rate 2e-5 --nodes 2", ["mrpc", "learning_rate=2e-5"]),
        ("--num-train-epochs=3 mrpc", ["num_train_epochs=3", "mrpc"]),
        ("--max_steps -1 --bf16 mrpc", ["max_steps=-1", "bf16=true", "mrpc"]),
        ("--fp16 False --output_dir out", ["fp16=False", "output_dir=out"]),
        ("--group_by_length false", ["group_by_length=false"]),
        ("--overwrite_output_dir --lora", ["overwrite_output_dir=true", "lora=true"]),
        ("--gradient_checkpointing mrpc", ["gradient_checkpointing=true", "mrpc"]),
    ],
)
def test_flags_that_are_fields_of_a_recipe(arguments: str, words: list[str]) -> None:
    assert words_of(*arguments.split()) == words


def test_wrong_usage_has_an_answer_and_the_usage_of_its_command(
    said: Said,
) -> None:
    for arguments in (
        "trian mrpc",
        "train mrpc --data= --nodes 2",
        "train --epochs 3",
        "train --learning_rate --nodes 2",
        "train --nods 2",
        "train --xyzzy",
        "train --num_processes 4 --xyzzy --epochs 3",
        "stacks --torh 2.7",
        "setup --learning_rate 1",
    ):
        with pytest.raises(UsageError) as caught:
            read_arguments(arguments.split())
        said(caught.value)


def test_a_word_that_a_command_does_not_know(shell: Shell) -> None:
    said = shell("hosts inventory.ini", 2).err
    assert said.startswith(
        "error: ftcluster hosts has no subcommand 'inventory.ini'; choose from add, remove, drain, "
        "return"
    )


@pytest.mark.parametrize("command", ["export", "bench"])
def test_a_command_that_needs_a_word_lists_them(command: str, shell: Shell, said: Said) -> None:
    said(shell([command], 2).err)


def test_wrong_usage_with_json_is_a_document(shell: Shell) -> None:
    found = shell("train --json --foo", 2).document
    assert (found["state"], found["error"]) == ("failed", "unknown option --foo")
    assert shell("train --nodes x", 2).out == ""


def test_samples_of_a_rank_are_taken_times_the_ranks(shell: Shell) -> None:
    hosts = cluster(host("a", cores=8, numa_nodes=2), host("b", cores=8, numa_nodes=2))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=hosts))
    words = ["mrpc", "per_device_train_batch_size=6", "gradient_accumulation_steps=2"]
    run = RecipeRequest(words).prepared(recall())
    assert run.recipe.batch_size == 6 * 4 * 2
    # a resumed run keeps its batch size
    assert run.recipe.training.per_device_train_batch_size is None
    assert {rank.samples for one in run.plan.hosts for rank in one.placement} == {12}
    assert run.notes == (
        "batch_size=48: per_device_train_batch_size 6 x 4 ranks x 2 accumulation steps, instead of "
        "batch_size",
    )
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(VM)))
    out = shell("plan mrpc --per_device_train_batch_size 8").out
    assert "batch: 8 samples (per_device_train_batch_size 8 x 1 rank" in out
