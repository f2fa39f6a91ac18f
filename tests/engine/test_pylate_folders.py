"""Models saved by PyLate: sentence-transformers, which reads them too, gives the same vectors."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import normalizers

from ftcluster_common.models.sentence_modules import read_multi_vector
from ftcluster_train.errors import TrainError
from tests.engine.beside import with_compared
from tests.engine.jobs import result_of
from tests.engine.models import make_model, make_tokenizer
from tests.engine.runs import make_whole_job, triplets, write_data
from tests.engine.test_sentence_transformers import EVALUATE, TEXTS, predictions, told

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "multi-vector-encoding"
PREFIXES = ("[Q] ", "[D] ")
# the fields that PyLate's `ColBERT.save` (models/colbert.py) writes
FIELDS: dict[str, Any] = {
    "prompts": {},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": PREFIXES[0],
    "document_prefix": PREFIXES[1],
    "query_length": 8,
    "document_length": 24,
    "attend_to_expansion_tokens": False,
    "skiplist_words": ["w5", "w6", "w7", "w8"],
    "do_query_expansion": True,
}
# the fields that PyLate's Dense has in its config.json, all of which are arguments of its class
DENSE = {
    "in_features": 32, "out_features": 16, "bias": False,
    "activation_function": "torch.nn.modules.linear.Identity", "use_residual": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from with_compared(monkeypatch)


def write_encoder(folder: Path, **changes: Any) -> str:
    """Write the files that PyLate 1.4 writes, with its class ColBERT and tokens for prefixes."""
    tokenizer, model = make_tokenizer(), make_model("bert", TASK)
    # a tokenizer that lowercases its input, as that of bert-base-uncased
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens(list(PREFIXES))
    torch.manual_seed(7)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    layer = folder / "1_Dense"
    layer.mkdir()
    save_file({"linear.weight": torch.randn(16, 32) / 6}, layer / "model.safetensors")
    versions = {"sentence_transformers": "5.3.0", "transformers": "5.1.0", "pytorch": "2.9.0"}
    about = {"model_type": "ColBERT", "__version__": versions, **FIELDS, **changes}
    about = {name: value for name, value in about.items() if value != "missing"}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    documents = {
        "config_sentence_transformers.json": about, "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 23, "do_lower_case": False},
        "1_Dense/config.json": DENSE,
    }  # fmt: skip
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2))
    return str(folder)


def loaded(folder: str) -> Any:
    from sentence_transformers import MultiVectorEncoder

    return MultiVectorEncoder(folder, device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attend_to_expansion_tokens": True, "skiplist_words": None},
        {"do_query_expansion": False, "query_prefix": "", "prompts": {"document": "w21 w22 "}},
        {"model_type": "missing", "prompts": {"query": "[Q] w20 "}},
    ],
    ids=["plain", "attended", "prompts", "old"],
)
@pytest.mark.parametrize("adapters", [{}, {"lora_r": 4}], ids=["whole", "adapters"])
def test_a_model_of_pylate_is_trained_and_keeps_its_files(
    tmp_path: Path, changes: dict[str, Any], adapters: dict[str, Any]
) -> None:
    base = write_encoder(tmp_path / "base", **changes)
    searched = [{k: row[k] for k in ("query", "positive")} for row in triplets(20, 2)]
    data = write_data(tmp_path / "data", {"train": triplets(40, 1), "validation": searched})
    options = {"dimension": None, **adapters}
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, base, options, batch_size=20, max_steps=4,
        learning_rate=5e-3, eval_strategy="epoch", eval_on_start=True,
    )  # fmt: skip
    result = result_of(job)
    saved = result["model"]
    used = {"lora_r": None}
    measured = told(job, saved, EVALUATE, tmp_path / "measured", searched, **used)
    assert measured["metrics"] == pytest.approx(result["metrics"], abs=1e-5)
    rows = [{"query": text} for text in TEXTS]
    ours = predictions(job, saved, tmp_path / "new", rows, **used)
    theirs = loaded(saved).encode_document(TEXTS)
    for vectors, wanted in zip(ours, theirs, strict=True):
        assert torch.tensor(vectors).shape == wanted.shape
        assert torch.allclose(torch.tensor(vectors), wanted, atol=1e-5)
    before, after = (loaded(folder) for folder in (base, saved))
    assert after.prompts == before.prompts
    for task in ("query", "document"):
        prompt = before.prompts[task]
        tokens = [
            model.preprocess(TEXTS, prompt=prompt, task=task)["input_ids"]
            for model in (before, after)
        ]
        assert torch.equal(*tokens)
    about = json.loads((Path(saved) / "config_sentence_transformers.json").read_text())
    expected = {**FIELDS, **changes, "model_type": "ColBERT"}
    if expected["skiplist_words"] is None:  # PyLate's default
        expected["skiplist_words"] = list(string.punctuation)
    expected["prompts"] = {
        name: text.removeprefix(expected[f"{name}_prefix"])
        for name, text in expected["prompts"].items()
    }
    assert {name: about[name] for name in expected} == expected
    assert json.loads((Path(saved) / "1_Dense/config.json").read_text()) == DENSE
    [first, second] = json.loads((Path(saved) / "modules.json").read_text())
    assert (first["type"], second["type"]) == (
        "sentence_transformers.models.Transformer",
        "pylate.models.Dense.Dense",
    )


def test_prefixes_are_single_tokens_behind_the_first_one(tmp_path: Path) -> None:
    """PyLate inserts the token at this place (`insert_prefix_token`)."""
    base = write_encoder(tmp_path / "base")
    data = write_data(tmp_path / "data", {"train": triplets(12, 1)})
    job = make_whole_job(tmp_path / "runs/one", TASK, data, base, {"dimension": None}, max_steps=1)
    saved = result_of(job)["model"]
    ids = loaded(saved).tokenizer(["[Q] w9", "[D] w9"])["input_ids"]
    first, last = make_tokenizer()(["w9"])["input_ids"][0][:1], len(make_tokenizer())
    assert [row[0] for row in ids] == [first[0]] * 2
    assert [row[1] for row in ids] == [last, last + 1]


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("1_Dense/config.json", {"use_residual": True}, "has a residual connection, not supported"),
        ("config_sentence_transformers.json", {"query_length": "x"}, "is not as sentence-transf"),
    ],
)
def test_other_models_of_pylate_are_refused(
    tmp_path: Path, file: str, change: dict[str, Any], problem: str
) -> None:
    base = Path(write_encoder(tmp_path / "base"))
    document = json.loads((base / file).read_text())
    (base / file).write_text(json.dumps({**document, **change}))
    data = write_data(tmp_path / "data", {"train": triplets(12, 1)})
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, str(base), {"dimension": None}, max_steps=1
    )
    with pytest.raises(TrainError, match=problem):
        result_of(job)


def test_a_module_of_another_name_is_not_that_of_pylate(tmp_path: Path) -> None:
    base = Path(write_encoder(tmp_path / "base"))
    assert read_multi_vector(base) is not None
    text = (base / "modules.json").read_text().replace("pylate.models.Dense", "pylate.Dense")
    (base / "modules.json").write_text(text)
    data = write_data(tmp_path / "data", {"train": triplets(12, 1)})
    job = make_whole_job(tmp_path / "runs/one", TASK, data, str(base), {"dimension": None})
    with pytest.raises(TrainError, match=r"has the module pylate\.Dense\.Dense, which is not"):
        result_of(job)
