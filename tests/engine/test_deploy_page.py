"""docs/deploy.md: trained models in a user's Python that has ftcluster and transformers."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.engine import runs
from tests.engine.beside import COMPARED
from tests.engine.jobs import run_rank
from tests.engine.models import SPECIAL, make_tokenizer
from tests.engine.runs import Row, make_whole_job, write_data, write_model
from tests.engine.test_instruction_tuning import chats, write_chat_model
from tests.programs import CONTROL, ROOT

PAGE = ROOT / "docs/deploy.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# by folder: the task, its rows, and the kind of model
MODELS: dict[str, tuple[str, Callable[[int, int], list[Row]], str]] = {
    "my-model": ("text-classification", runs.classes, "bert"),
    "my-embeddings": ("sentence-similarity", runs.triplets, "bert"),
    "my-reranker": ("text-ranking", runs.triplets, "bert"),
    "my-summaries": ("seq2seq-lm", runs.summaries, "t5"),
    "my-answers": ("question-answering", runs.questions, "bert"),
    "my-entities": ("token-classification", runs.tags, "bert"),
    "my-chat": ("instruction-tuning", chats, "llama"),
    "my-adapters": ("text-classification", runs.sets_of_classes, "bert"),
    "my-adapted-answers": ("question-answering", runs.questions, "bert"),
    "my-new-tokens": ("text-classification", runs.sets_of_classes, "bert"),
    "my-tokens-in-answers": ("question-answering", runs.questions, "bert"),
}
EXTENDED = ("my-new-tokens", "my-tokens-in-answers")  # the vocabulary gets the token <new>
ADAPTED = ("my-adapters", "my-adapted-answers", *EXTENDED)
PROGRAM = """
import json, sys
import ftcluster

for number, block in enumerate(json.load(sys.stdin)):
    exec(compile(block, f"block {number} of the page", "exec"), {"__name__": "__main__"})
loaded = {name: ftcluster.load(name) for name in sys.argv[1:]}
print(json.dumps({
    "kinds": {
        name: [type(part).__name__ for part in (one if isinstance(one, tuple) else (one,))]
        for name, one in loaded.items()
    },
    "class": loaded["my-model"]("w5 w6")[0]["label"],
    "adapted class": loaded["my-adapters"]("w5 w6")[0]["label"],
    "class of a token": loaded["my-new-tokens"]("w5 <new>")[0]["label"],
    "entities": [one["word"] for one in loaded["my-entities"]("w5 w90")],
    "answer": loaded["my-chat"](
        [{"role": "user", "content": "w5"}], max_new_tokens=4
    )[0]["generated_text"][-1]["role"],
    "width": loaded["my-embeddings"].encode(["w5"]).shape[1],
}))
"""


def train(folder: Path, name: str) -> None:
    task, rows, kind = MODELS[name]
    data = write_data(folder / "data" / name, {"train": rows(24, 1), "validation": rows(8, 2)})
    base = folder / "bases" / name
    if kind == "llama":
        write_chat_model(base)
    else:
        write_model(base, kind, task)
    options = {"lora_r": 2} if name in ADAPTED else {}
    recipe = {"new_tokens": ("<new>",)} if name in EXTENDED else {}
    job = make_whole_job(
        folder / "runs" / name, task, data, str(base), options, recipe, max_steps=2
    )
    shutil.copytree(run_rank(job)[-1]["model"], folder / name)


@pytest.mark.usefixtures("one_world")
def test_trained_models_in_the_python_of_users(tmp_path: Path) -> None:
    for name in MODELS:
        train(tmp_path, name)
    packages = Path(transformers.__file__).parents[1]
    done = subprocess.run(
        [CONTROL / "python", "-c", PROGRAM, *MODELS],
        input=json.dumps(BLOCK.findall(PAGE.read_text(encoding="utf-8"))),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), COMPARED])},
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    assert len(printed) == 3  # a class, a summary and an answer
    found: dict[str, Any] = json.loads(last)
    assert found.pop("kinds") == {
        "my-model": ["TextClassificationPipeline"],
        "my-embeddings": ["SentenceTransformer"],
        "my-reranker": ["CrossEncoder"],
        "my-summaries": ["T5ForConditionalGeneration", type(make_tokenizer()).__name__],
        "my-answers": ["BertForQuestionAnswering", type(make_tokenizer()).__name__],
        "my-entities": ["TokenClassificationPipeline"],
        "my-chat": ["TextGenerationPipeline"],
        "my-adapters": ["TextClassificationPipeline"],
        "my-adapted-answers": ["BertForQuestionAnswering", type(make_tokenizer()).__name__],
        "my-new-tokens": ["TextClassificationPipeline"],
        "my-tokens-in-answers": ["BertForQuestionAnswering", type(make_tokenizer()).__name__],
    }
    assert found["class of a token"] in {"a", "b", "c"}
    assert found["adapted class"] in {"a", "b", "c"}
    assert found["class"].startswith(("LABEL_", "0", "1", "2"))
    assert {*found["entities"]} <= {"w5", "w90", *SPECIAL}
    assert (found["answer"], found["width"]) == ("assistant", 32)
