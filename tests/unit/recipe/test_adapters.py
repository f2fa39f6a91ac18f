"""Every task has the fields of adapters, and their rules; the exceptions are named."""

from dataclasses import fields

import pytest

from ftcluster.recipe.recipe import RecipeError, load_recipe
from ftcluster_common.tasks.registry import TASKS, AnyTask
from ftcluster_common.tasks.spec import Adapters

WITHOUT = {
    "few-shot-classification": "SetFit and sentence-transformers load its folder as a whole model",
}
BUILT_IN = [spec for spec in TASKS.values() if spec.recipe and spec.name not in WITHOUT]


def test_tasks_without_adapters_do_not_have_their_fields() -> None:
    assert {n for n, spec in TASKS.items() if not issubclass(spec.fields, Adapters)} == {*WITHOUT}


@pytest.mark.parametrize("spec", BUILT_IN, ids=lambda spec: spec.name)
def test_every_task_trains_adapters(spec: AnyTask) -> None:
    recipe = load_recipe(spec.recipe, ["lora_r=16", "use_rslora=true", "use_dora=true"])
    assert recipe.adapters
    assert (recipe.lora_r, recipe.adapters.adapter_alpha) == (16, 32)
    assert recipe.adapters.adapter_scale == 8  # 32 / sqrt(16)
    own = {field.name for field in fields(recipe.options)} - {f.name for f in fields(Adapters)}
    assert not own & {*dir(Adapters)}, "a field would hide an attribute of adapters"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["use_dora=true"], "use_dora is for adapters, whose rank is lora_r: 16"),
        (["lora_r=4", "lora_target_modules=[all-linear, query]"], "name it alone"),
        (["lora_r=4", "lora_modules_to_save=[classifier]"], "remove it"),
        (["lora_r=4", "load_in_4bit=true"], "'load_in_4bit' is a field only of"),
    ],
)
def test_fields_that_contradict(overrides: list[str], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        load_recipe("classify", overrides)
