"""The files of sentence-transformers in a model's folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.data.data_files import DataError
from ftcluster_common.models.sentence_modules import (
    FLAGS,
    IDENTITY,
    MASK,
    SPLADE,
    Dense,
    SentenceModules,
    TokenVectors,
    module_files,
    read_modules,
    read_multi_vector,
)

VERSIONS = {"transformers": "5.23.0", "pytorch": "2.13.0"}


def write(folder: Path, documents: dict[str, Any]) -> Path:
    for name, document in documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(document))
    return folder


def test_what_is_written() -> None:
    # sentence-transformers 6.2 loads them without a warning and with equal embeddings
    assert module_files(SentenceModules("cls", normalize=True), 384, 256, VERSIONS) == {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling",
             "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize",
             "type": "sentence_transformers.models.Normalize"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "__version__": {"sentence_transformers": "3.0.0", **VERSIONS},
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": 384,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "pooling_mode_lasttoken": False,
            "include_prompt": True,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    "modules",
    [
        SentenceModules("mean", normalize=False),
        SentenceModules("mean", normalize=False, similarity="dot"),
        SentenceModules("mean", True, dense=(Dense(8, 4), Dense(4, 2, False, IDENTITY))),
        SentenceModules("cls", True, {"query": "query: "}, "query"),
        *(SentenceModules(pooling, normalize=True) for pooling in FLAGS),
    ],
)
def test_what_is_written_is_read_again(tmp_path: Path, modules: SentenceModules) -> None:
    assert read_modules(tmp_path) is None
    write_weights(tmp_path, modules)
    assert read_modules(write(tmp_path, module_files(modules, 8, 9, VERSIONS))) == modules
    assert read_multi_vector(tmp_path) is None


def write_weights(folder: Path, modules: SentenceModules) -> None:
    """Write a file for the weights of each Dense module."""
    for name in module_files(modules, 8, 9, VERSIONS):
        if "Dense" in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).with_name("model.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    "tokens",
    [
        TokenVectors(32, 180),
        TokenVectors(32, 180, expands=True, skipped=("!", "?")),
        TokenVectors(32, 180, expands=True, attends=True),
        TokenVectors(32, 180, skipped=("!",), prefixes=("[Q] ", "")),
        TokenVectors(32, 180, expands=True, attends=True, prefixes=("[Q] ", "[D] ")),
    ],
)
def test_the_files_of_a_multi_vector_encoder_are_read_again(
    tmp_path: Path, tokens: TokenVectors
) -> None:
    dense = (Dense(8, 4, False, IDENTITY),)
    prompts = {"query": "[Q] ", "document": "[D] text: "}
    modules = SentenceModules(MASK, True, prompts, dense=dense, tokens=tokens)
    write_weights(tmp_path, modules)
    assert read_multi_vector(write(tmp_path, module_files(modules, 4, 9, VERSIONS))) == modules
    with pytest.raises(DataError, match=r"MultiVectorMask|no module Pooling"):
        read_modules(tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "min", "length": 32}},
         "query expansion has settings that are not supported"),
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [5]}, "MultiVectorMask has sett"),
        ("1_Dense/config.json", {"activation_function": "os.system"}, "activation 'os.system'"),
        ("1_Dense/config.json", {"use_residual": True}, "a residual connection"),
        ("1_Dense/config.json", {"in_features": -8}, "is not as sentence-transformers writes it"),
    ],
)  # fmt: skip
def test_other_multi_vector_encoders_are_refused(
    tmp_path: Path, file: str, change: dict[str, Any], problem: str
) -> None:
    dense = (Dense(8, 4, False, IDENTITY),)
    modules = SentenceModules(MASK, True, dense=dense, tokens=TokenVectors(32, 180))
    files = module_files(modules, 4, 9, VERSIONS)
    files[file] |= change
    write_weights(tmp_path, modules)
    with pytest.raises(DataError, match=problem):
        read_multi_vector(write(tmp_path, files))


def test_the_form_of_release_6(tmp_path: Path) -> None:
    kind = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
    write(tmp_path, {
        "modules.json": [{"path": "1_Pooling", "type": kind}],
        "1_Pooling/config.json": {"embedding_dimension": 384, "pooling_mode": "cls"},
    })  # fmt: skip
    assert read_modules(tmp_path) == SentenceModules("cls", normalize=False)


@pytest.mark.parametrize(
    ("pooling", "more", "said"),
    [
        ({"pooling_mode": "attention"}, [], "the model's pooling is attention"),
        ({"pooling_mode": ["cls", "mean"]}, [], "the model's pooling is cls + mean"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
            [],
            "the model's pooling is cls + max",
        ),
        ({}, [{"path": "2_CNN", "type": "sentence_transformers.models.CNN"}], "module CNN"),
        ({}, [{"path": "2_Dense"}], "not as sentence-transformers writes it (KeyError: 'type')"),
    ],
)
def test_what_cannot_be_trained(tmp_path: Path, pooling: Any, more: Any, said: str) -> None:
    files = module_files(SentenceModules("mean", normalize=True), 8, 9, VERSIONS)
    files["1_Pooling/config.json"] = pooling
    files["modules.json"] += more
    with pytest.raises(DataError, match=r".*") as caught:
        read_modules(write(tmp_path, files))
    assert said in str(caught.value)


def test_a_damaged_file_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type"')
    with pytest.raises(DataError) as caught:
        read_modules(tmp_path)
    assert str(caught.value).count("modules.json") == 1
    assert "GivenFileError" not in str(caught.value)


SPLADE_OF_RELEASE_6: dict[str, Any] = {  # written by sentence-transformers 6.2's SparseEncoder
    "modules.json": [
        {"idx": 0, "name": "0", "path": "",
         "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling",
         "type": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"},
    ],
    "config_sentence_transformers.json": {
        "default_prompt_name": None, "model_type": "SparseEncoder",
        "prompts": {"document": "", "query": "q: "}, "similarity_fn_name": None,
    },
    "1_SpladePooling/config.json": {
        "pooling_strategy": "max", "activation_function": "relu", "embedding_dimension": None,
    },
}  # fmt: skip


def test_modules_of_a_sparse_encoder(tmp_path: Path) -> None:
    prompts = {"document": "", "query": "q: "}
    modules = SentenceModules(SPLADE, False, prompts, similarity="dot")
    assert read_modules(write(tmp_path / "6", SPLADE_OF_RELEASE_6), sparse=True) == modules
    ours = write(tmp_path / "ours", module_files(modules, 30522, 256, VERSIONS))
    assert read_modules(ours, sparse=True) == modules
    with pytest.raises(DataError, match=r"has the module (MLMTransformer|SpladePooling); only"):
        read_modules(ours)
    dense = write(tmp_path / "dense", module_files(SentenceModules("cls", True), 8, 9, VERSIONS))
    with pytest.raises(DataError, match="only MLMTransformer and SpladePooling are used"):
        read_modules(dense, sparse=True)


@pytest.mark.parametrize(
    "change", [{"pooling_strategy": "sum"}, {"activation_function": "log1p_relu"}]
)
def test_other_poolings_of_sparse_encoders_are_refused(
    tmp_path: Path, change: dict[str, str]
) -> None:
    config = {**SPLADE_OF_RELEASE_6["1_SpladePooling/config.json"], **change}
    folder = write(tmp_path, {**SPLADE_OF_RELEASE_6, "1_SpladePooling/config.json": config})
    [(name, value)] = change.items()
    with pytest.raises(DataError, match=f"has {name}='{value}', which is not supported"):
        read_modules(folder, sparse=True)
