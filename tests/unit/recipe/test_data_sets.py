"""Recipes and command lines that name several data sets."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ftcluster.errors import InputError, RecipeError
from ftcluster.operations.models.loaded import data_paths
from ftcluster.operations.train.recipe_words import on_the_hosts, training_recipe
from ftcluster.recipe.inputs import check_inputs
from ftcluster.recipe.recipe import checked_recipe, load_recipe, parse_recipe
from ftcluster_common.data.data_sets import DataSet
from ftcluster_common.protocol.job import recipe_of
from tests.unit.clusters import cluster, host

TWO = """
task: sentence-similarity
model: someone/encoder
query_prompt: "query: "
data:
  - path: pairs.jsonl
    loss: ranking
    query_column: question
  - {path: someone/scores@v2, name: sts, weight: 2, loss: cosent, query_prompt: ""}
  - other.csv
"""


def test_a_list_of_data_sets_each_with_its_settings() -> None:
    recipe = parse_recipe(TWO, "two.yml")
    assert recipe.data == (
        DataSet("pairs.jsonl", "pairs", fields={"loss": "ranking", "query_column": "question"}),
        DataSet("someone/scores@v2", "sts", 2.0, fields={"loss": "cosent", "query_prompt": ""}),
        DataSet("other.csv", "other"),
    )
    pairs, sts, other = recipe.by_set()
    assert [part.source for part in (pairs, sts)] == ["pairs.jsonl", "someone/scores@v2"]
    assert (pairs.options.loss, pairs.options.query_column) == ("ranking", "question")  # type: ignore[attr-defined]
    prompts = [part.options.query_prompt for part in (pairs, sts, other)]  # type: ignore[attr-defined]
    assert prompts == ["query: ", "", "query: "]
    written = json.loads(json.dumps(asdict(recipe)))
    assert recipe_of(written) == checked_recipe(written) == recipe


def test_a_list_of_one_data_set_is_this_data_set() -> None:
    entry = "data: [{path: a.csv, text_columns: [body], data_config: small}]"
    recipe = parse_recipe(f"task: text-classification\nmodel: a/b\n{entry}\n", "one.yml")
    assert (recipe.data, recipe.data_config) == ("a.csv", "small")
    assert recipe.options.text_columns == ("body",)  # type: ignore[attr-defined]
    assert recipe.by_set() == (recipe,)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{path: a.csv, text_colums: x}", "did you mean 'text_columns'?"),
        ("{path: a.csv, max_length: 8}", "unknown key 'max_length'"),
        ("{path: a.csv, weight: 0}", "'weight' must be a number greater than 0, got 0"),
        ("{path: a.csv, weight: yes}", "'weight' must be a number greater than 0, got True"),
        ("{path: a.csv, label_column: [1]}", "'label_column' must be a string"),
        ("{path: a.csv, name: b}", "each entry needs its own name, but several entries use b"),
        ("{path: a.csv, name: a/b}", "'name' may contain only letters, digits, _ and -"),
        ("{weight: 3}", "data, entry 2 must be a path, or a mapping"),
        ("-rf", "begins with -, like an option"),
        ("5", "entry 2 must be a path, or a mapping such as {path: a.csv, weight: 2}, got 5"),
    ],
)
def test_an_entry_that_is_wrong_is_named_with_its_line(entry: str, problem: str) -> None:
    text = (
        f"task: text-classification\nmodel: a/b\ndata:\n  - {{path: b.csv, name: b}}\n  - {entry}\n"
    )
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "my.yml")
    assert "my.yml:3: " in str(caught.value)
    assert problem in str(caught.value)


def test_weights_contradict_equal_shares_and_losses_their_fields() -> None:
    with pytest.raises(RecipeError, match="equal contradicts the weight of data set sts"):
        parse_recipe(f"{TWO}data_mixing: equal\n", "two.yml")
    with pytest.raises(RecipeError, match="data set pairs: symmetric: it is only for loss=ranking"):
        parse_recipe(TWO.replace("loss: ranking", "loss: cosine\n    symmetric: true"), "two.yml")


def test_the_best_model_is_chosen_by_a_metric_of_all_or_of_a_data_set() -> None:
    for metric in ("ndcg_at_10", "ndcg_at_10_pairs", "eval_spearman_sts"):
        text = f"{TWO}early_stopping_patience: 2\nmetric_for_best_model: {metric}\n"
        assert parse_recipe(text, "two.yml").training.metric_for_best_model == metric
    with pytest.raises(RecipeError, match="'ndcg_at_10_two' is not a metric of this task"):
        parse_recipe(f"{TWO}metric_for_best_model: ndcg_at_10_two\n", "two.yml")


def test_repeated_data_of_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a, b.csv").write_text("text,label\nx y,1\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/train.csv").write_text("text,label\nx y,1\nz,0\n")
    recipe = training_recipe(["mrpc"], ("a, b.csv", "c", "some/name"), None)
    names = [(one.path, one.name) for one in recipe.data_sets]
    assert names == [(f"{tmp_path}/a, b.csv", "a_b"), (f"{tmp_path}/c", "c"), ("some/name", "name")]
    assert recipe.data_config is None  # the recipe's is for its own data set
    one = load_recipe("mrpc", ["data=a, b.csv"])
    assert one.data == "a, b.csv"
    listed = load_recipe("mrpc", ["data=[c, {path: d.csv, weight: 2}]"])
    assert [(one.path, one.weight) for one in listed.data_sets] == [("c", None), ("d.csv", 2.0)]
    there, folders = on_the_hosts(recipe, cluster(host("node1")))
    assert len(folders) == 2
    assert [one.name for one in there.data_sets] == ["a_b", "c", "name"]
    assert all(one.path.startswith("/opt/ftcluster/data/") for one in there.data_sets[:2])


def test_rows_are_checked_with_the_columns_of_their_data_set(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("text,label\nx y,1\nz,0\n")
    (tmp_path / "bad.csv").write_text("body,kind\nx y,1\n")
    (tmp_path / "rows.csv").write_text("text,label\nx y,1\nz,\n")
    words = ["classify", "model=a/b"]
    with pytest.raises(InputError) as caught:
        check_inputs(training_recipe(words, tuple(map(str, tmp_path.glob("*.csv"))), None))
    message = str(caught.value)
    assert f"{tmp_path}/bad.csv" in message
    assert f"{tmp_path}/rows.csv:3" in message
    assert "good.csv" not in message
    entry = {"path": str(tmp_path / "bad.csv"), "text_columns": "body", "label_column": "kind"}
    check_inputs(training_recipe(words, (str(tmp_path / "good.csv"), entry), None))


def test_lists_of_rows_and_lists_of_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rows = [{"path": "/usr", "text": "a b", "label": 1}]
    assert str(data_paths(rows)).endswith(".jsonl")
    first, second = data_paths([Path("a.csv"), {"path": rows, "weight": 2}])
    assert first == "a.csv"
    assert isinstance(second, dict)
    assert Path(second["path"]).read_text() == json.dumps(rows[0]) + "\n"
    assert data_paths([{"path": "a.csv"}, {"path": "b.csv", "loss": "cosine"}]) == (
        {"path": "a.csv"}, {"path": "b.csv", "loss": "cosine"},
    )  # fmt: skip
