"""Foreign model folders: files that may run as code are refused before a library reads them."""

import json
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

import ftcluster
from ftcluster.operations.runs.runs import _fetched_model
from ftcluster.recipe.model_code import code_problems, unknown_files
from ftcluster_common.models.sentence_modules import SentenceModules, module_files

# module names in folders that releases 2, 5 and 6 of sentence-transformers have written
RELEASES = {
    "2": "sentence_transformers.models.{}",
    "5": "sentence_transformers.models.{}",
    "6": "sentence_transformers.sentence_transformer.modules.{}",
}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Make the folder of an embedding model as a training writes it."""
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["BertModel"], "model_type": "bert", "attn_implementation": "sdpa",
            "id2label": {"0": "auto_map"},
        },
        "ftcluster.json": {"recipe": "embed", "task": "sentence-similarity", "options": {}},
        "ftcluster.rows": b"\0" * 8,
        "model.safetensors": b"",
        "model.safetensors.index.json": {"weight_map": {"a.b": "model-00001-of-2.safetensors"}},
        "tokenizer.json": {"model": {"vocab": {"auto_map": 1, "trust_remote_code": 2}}},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "chat_template": "{{ 1 }}"},
        "vocab.txt": "a", "README.md": "", "additional_chat_templates/tools.jinja": "",
        "spiece.model": b"", "LICENSE": "",
    }  # fmt: skip
    modules = SentenceModules("mean", normalize=True)
    return write(tmp_path / "model", {**files, **module_files(modules, 8, 9, {})})


def test_what_a_training_writes_is_allowed(model: Path) -> None:
    assert (unknown_files(model), code_problems(model)) == ([], [])


@pytest.mark.parametrize("release", RELEASES)
def test_modules_of_each_release_are_known(model: Path, release: str) -> None:
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    names = {kind: RELEASES[release].format(kind) for _, kind in kinds}
    if release == "6":
        names["Transformer"] = "sentence_transformers.base.modules.transformer.Transformer"
    modules = [{"idx": 0, "path": path, "type": names[kind]} for path, kind in kinds]
    assert code_problems(write(model, {"modules.json": modules})) == []


def modules_with(kind: str, path: str = "") -> dict[str, Any]:
    plain = "sentence_transformers.models.Pooling"
    return {
        "modules.json": [{"path": path, "type": kind}, {"path": "1_Pooling", "type": plain}],
    }


class Evil:
    """An object that calls a function when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("executed",)


ATTACKS: dict[str, tuple[dict[str, Any], str]] = {
    "a module of the folder": (modules_with("evil.Transformer"), "the module evil.Transformer"),
    "a module of Python": (modules_with("subprocess.Popen"), "the module subprocess.Popen"),
    "another module": (modules_with("sentence_transformers.models.CNN"), "the module CNN"),
    "a name that only begins so": (
        modules_with("sentence_transformers_evil.Transformer"), "sentence_transformers_evil",
    ),
    "a module elsewhere": (
        modules_with("sentence_transformers.models.Transformer", "../other"), "'../other'",
    ),
    "a module at a path": (
        modules_with("sentence_transformers.models.Transformer", "/tmp"), "the path '/tmp'",
    ),
    "modules that are none": ({"modules.json": [1]}, "modules.json is not as sentence-tran"),
    "Python": ({"evil.py": ""}, "training does not write: evil.py"),
    "Python in a folder": ({"custom_generate/generate.py": ""}, "custom_generate/generate.py"),
    "compiled Python": ({"__pycache__/evil.cpython-311.pyc": b""}, "evil.cpython-311.pyc"),
    "a library": ({"evil.so": b""}, "evil.so"),
    "a script": ({"setup": "#!/bin/sh"}, "training does not write: setup"),
    "a pickle": ({"pytorch_model.bin": pickle.dumps(Evil())}, "pytorch_model.bin"),
    "a pickle of adapters": ({"adapter_model.bin": pickle.dumps(Evil())}, "adapter_model.bin"),
    "an index of pickles": (
        {"model.safetensors.index.json": {"weight_map": {"a": "evil.pt"}}}, "names 'evil.pt'",
    ),
    "an index that leads out": (
        {"model.safetensors.index.json": {"weight_map": {"a": "../x.safetensors"}}}, "../x.safe",
    ),
    "a class of the folder": (
        {"config.json": {"auto_map": {"AutoModel": "evil.Model"}}}, "config.json sets auto_map",
    ),
    "a class of the Hub": (
        {"config.json": {"auto_map": {"AutoModel": "evil/model--evil.Model"}}}, "sets auto_map",
    ),
    "a class of a part": (
        {"config.json": {"detector_config": {"trust_remote_code": True}}}, "sets trust_remote_code",
    ),
    "a tokenizer": (
        {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": [None, "evil.T"]}}},
        "tokenizer_config.json sets auto_map",
    ),
    "a pipeline": ({"config.json": {"custom_pipelines": {"x": {}}}}, "sets custom_pipelines"),
    "a kernel of the Hub": (
        {"config.json": {"attn_implementation": "evil/kernel"}}, "attn_implementation='evil/kern",
    ),
    "a kernel of a part": (
        {"config.json": {"text_config": {"_attn_implementation": {"": "evil/kernel@v1"}}}},
        "_attn_implementation=",
    ),
    "a function as activation": (
        {"config.json": {"sentence_transformers": {"activation_fn": "torch.hub.load"}}},
        "activation_fn='torch.hub.load'",
    ),
    "an older name of it": (
        {"config.json": {"sbert_ce_default_activation_function": "os.abort"}}, "='os.abort'",
    ),
    "arguments": (
        {"sentence_bert_config.json": {"max_seq_length": 9, "model_args": {"gguf_file": "x"}}},
        "sentence_bert_config.json sets model_args",
    ),
    "settings that are none": ({"generation_config.json": "{"}, "is not JSON"),
    "settings of another form": ({"generation_config.json": []}, "is not a JSON object"),
    "settings without end": ({"generation_config.json": "[" * 90_000}, "nested too deeply"),
    "adapters of nothing": ({"adapter_config.json": {}}, "does not name the adapters' base model"),
    "adapters of a folder that is not here": (
        {"adapter_config.json": {"base_model_name_or_path": "../gone"}}, "'../gone', neither",
    ),
    "adapters of a name that is too long": (
        {"adapter_config.json": {"base_model_name_or_path": "/x" + "x" * 300}}, "neither a folder",
    ),
    "adapters of a package": (
        {"adapter_config.json": {"base_model_name_or_path": "pypi:evil==1"}}, "in a Python package",
    ),
    "adapters with a module of Python": (
        {"adapter_config.json": {
            "base_model_name_or_path": "a/b", "megatron_config": {}, "megatron_core": "evil",
        }},
        "contains settings that ftcluster's training does not write: megatron_core",
    ),
    "adapters of another kind": (
        {"adapter_config.json": {"base_model_name_or_path": "a/b", "peft_type": "MISS"}},
        "does not write: peft_type",
    ),
    "adapters with a class": (
        {"adapter_config.json": {
            "base_model_name_or_path": "a/b", "auto_mapping": {"parent_library": "evil"},
        }},
        "adapter_config.json sets auto_mapping",
    ),
    "a name that a terminal obeys": ({"\x1b[2J.py": ""}, r"\x1b[2J.py"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_may_run_is_refused_by_name(model: Path, attack: str) -> None:
    files, said = ATTACKS[attack]
    [problem] = code_problems(write(model, files))
    assert said in problem
    with pytest.raises(ftcluster.FtclusterError, match="may run or download code"):
        ftcluster.load(model)


def test_the_model_of_adapters_is_checked_too(tmp_path: Path) -> None:
    base = write(tmp_path / "base", {"config.json": {}, "model.safetensors": b""})
    adapters = {"base_model_name_or_path": str(base), "auto_mapping": None}
    folder = write(tmp_path / "adapters", {"adapter_config.json": adapters})
    assert code_problems(folder) == []
    # files that peft 0.18 itself writes beside LoRA weights
    by_peft = {
        "alora_invocation_tokens": None, "arrow_config": None, "corda_config": None,
        "eva_config": None, "exclude_modules": None, "init_lora_weights": True,
        "layers_to_transform": None, "loftq_config": {}, "lora_bias": False,
        "megatron_config": None,
        "megatron_core": "megatron.core", "peft_type": "LORA", "peft_version": "0.18.0",
        "qalora_group_size": 16, "rank_pattern": {}, "use_dora": False, "use_qalora": False,
    }  # fmt: skip
    write(folder, {"adapter_config.json": {**adapters, **by_peft}})
    assert code_problems(folder) == []
    write(base, {"evil.py": ""})
    [problem] = code_problems(folder)
    assert problem == f"{base}: files that ftcluster's training does not write: evil.py"
    write(base, {"adapter_config.json": {"base_model_name_or_path": str(folder)}})
    assert "which is itself an adapter" in code_problems(folder)[0]


def test_links_and_pipes_are_no_files_of_a_model(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (model / "2_Other").symlink_to(tmp_path / "other")
    (model / "generation_config.json").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(model / "door"))
        said = "\n".join(code_problems(model))
    assert "files that ftcluster's training does not write: 2_Other, door" in said
    assert "is a pipe or a device" in said


def test_code_is_trusted_by_nobody_who_uses_load(model: Path) -> None:
    with pytest.raises(ftcluster.FtclusterError, match="never runs code from a model's folder"):
        ftcluster.load(model, trust_remote_code=True)


def test_fetch_names_what_may_be_code(model: Path) -> None:
    assert _fetched_model({"run": "r"}, model).lines() == [f"model: {model}"]
    result = _fetched_model({"run": "r"}, write(model, {"evil.py": "", "\x1b[2J": ""}))
    assert result.document() == {"run": "r", "unknown_files": ["\x1b[2J", "evil.py"]}
    assert result.lines()[1].startswith(
        "note: the model contains files that ftcluster's training does not write: "
        r"\x1b[2J, evil.py. "
    )
