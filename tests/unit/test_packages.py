import tomllib
from dataclasses import fields
from pathlib import Path

import yaml

import ftcluster
import ftcluster_train
from ftcluster.recipe import Recipe, Training
from ftcluster_train import job

ROOT = Path(__file__).parents[2]


def test_all_parts_have_one_version() -> None:
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert ftcluster.__version__ == ftcluster_train.__version__ == galaxy["version"]
    assert f"## {ftcluster.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_both_sides_agree_on_a_recipe() -> None:
    assert {f.name for f in fields(Recipe)} == {f.name for f in fields(job.Recipe)}
    assert {f.name for f in fields(Training)} == {f.name for f in fields(job.Training)}


def test_neither_package_depends_on_what_the_other_side_has() -> None:
    control = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    node = tomllib.loads((ROOT / "train/pyproject.toml").read_text())["project"]["dependencies"]
    assert not any("torch" in name or "transformers" in name for name in control)
    assert not any("ansible" in name for name in node)
