"""The fields of new tokens: on the command line, in files and in job.json, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from ftcluster.recipe.recipe import RecipeError, load_recipe, parse_recipe
from ftcluster_common.models.adapter_config import config_problems, ids_by_layer, rows_needed
from ftcluster_common.protocol.job import Job, recipe_of
from ftcluster_common.tasks.registry import TASKS

PEFT = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


@pytest.mark.parametrize("task", [spec.recipe for spec in TASKS.values() if spec.recipe])
def test_each_recipe_takes_new_tokens(task: str) -> None:
    recipe = load_recipe(task, ["new_tokens=<a>,</a>", 'new_special_tokens=["<|x,y|>"]'])
    assert recipe.listed_tokens == ("<a>", "</a>", "<|x,y|>")


def test_names_of_other_programs() -> None:
    """axolotl has `tokens`, LLaMA-Factory `add_tokens` and `add_special_tokens`."""
    for name, field in (
        ("tokens", "new_tokens"), ("add_tokens", "new_tokens"),
        ("add_special_tokens", "new_special_tokens"), ("new_special_tokens", "new_special_tokens"),
    ):  # fmt: skip
        recipe = load_recipe("clm", [f"{name}=<a>,<b>"])
        assert getattr(recipe, field) == ("<a>", "<b>")
    with pytest.raises(RecipeError, match="name the tokens in new_tokens"):
        load_recipe("clm", ["trainable_token_indices=[5]"])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ("new_tokens: ['']", "4: an empty text cannot be a token"),
        ("new_tokens: [<a>, ' b']", "4: ' b' begins or ends with a blank"),
        ('new_special_tokens: ["b\\n"]', r"4: 'b\\n' begins or ends with a blank"),
        ('new_tokens: ["b\\x07c"]', "contains line breaks or control characters"),
        ("new_tokens: [<a>, <b>, <a>]", "4: '<a>' is listed twice"),
        ("new_tokens: [<a>]\nnew_special_tokens: [<a>]", "5: '<a>' is listed twice"),
        ("new_tokens: [1]", "'new_tokens' must be a list of names"),
    ],
)
def test_what_is_no_token_is_refused_with_its_line(values: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        parse_recipe(f"task: causal-lm\nmodel: org/gpt\ndata: org/texts\n{values}\n", "my.yml")


def test_older_hosts_read_the_job_of_a_training_without_new_tokens(tmp_path: Path) -> None:
    def job_of(*overrides: str) -> dict[str, Any]:
        recipe = load_recipe("clm", overrides)
        job = Job("clm-1", tmp_path, tmp_path, recipe, "bf16", ipex=False)
        fields: dict[str, Any] = job.to_dict()["recipe"]
        assert recipe_of(fields) == recipe
        return fields

    assert not {"new_tokens", "new_special_tokens"} & job_of().keys()
    fields = job_of("new_tokens=<a>")
    assert fields["new_tokens"] == ("<a>",)
    assert "new_special_tokens" not in fields


@pytest.mark.parametrize(
    "ids", ["1", 5, [-1], [True], [1.0], ["1"], [1, 1], [1 << 40], {"lm_head": 3}, [[1]]]
)
def test_ids_that_peft_does_not_write_are_refused(ids: Any) -> None:
    [problem] = config_problems({**PEFT, "trainable_token_indices": ids})
    assert "which are no token ids" in problem


def test_ids_of_rows_are_those_of_peft() -> None:
    assert ids_by_layer(PEFT) == {}
    assert rows_needed(PEFT) == 0
    assert ids_by_layer({"trainable_token_indices": [7, 3]}) == {"": (7, 3)}
    of_layers = {"trainable_token_indices": {"embed_tokens": [7, 3], "lm_head": [9]}}
    assert ids_by_layer(of_layers) == {"embed_tokens": (7, 3), "lm_head": (9,)}
    assert rows_needed(of_layers) == 10
    assert config_problems({**PEFT, **of_layers}) == []
