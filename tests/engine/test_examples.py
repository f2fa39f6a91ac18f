"""The scripts of `ftcluster examples`, each as the only rank of a run.

test_own_code.py tests the example tasks and the example metric.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.programs import ROOT, free_ports

EXAMPLES = ROOT / "examples"
# packages that an example needs in addition to the stack
PACKAGES = {"embeddings": "sentence_transformers", "sft_trl": "trl", "fabric": "lightning"}
WORDS = ["a", "b", "c", "d", "e", "f"]


def rows_of(name: str, folder: Path) -> Path:
    """Write data as the example's docstring describes, which are easy to learn."""
    source = random.Random(1)
    path = folder / "data"
    if name in ("ddp", "fabric"):
        rows = [[source.gauss(0, 1), source.gauss(0, 1)] for _ in range(200)]
        path.write_text("".join(f"{a},{b},{int(a > b)}\n" for a, b in rows))
    elif name == "nanogpt":
        path.write_text("to be or not to be " * 100)
    elif name == "accelerate_loop":
        texts = ["text,label", *(f"{word} b,{word}" for word in 20 * ["a", "c"])]
        path.write_text("\n".join(texts) + "\n")
    else:
        row: dict[str, object] = {
            "ner_trainer": {"tokens": WORDS, "tags": ["B-X", "O", "O", "O", "O", "I-X"]},
            "embeddings": {"query": "a b", "text": "c d"},
            "sft_trl": {"messages": [{"role": "user", "content": "a b"},
                                     {"role": "assistant", "content": "c d"}]},
        }[name]  # fmt: skip
        path.write_text(40 * f"{json.dumps(row)}\n")
    return path


def model_of(name: str, folder: Path) -> list[str]:
    """Write a small model with random weights, if the example needs a model."""
    if name in ("ddp", "fabric", "nanogpt"):
        return []
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel
    from transformers import PreTrainedTokenizerFast as Fast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "user", "assistant"]
    words = {word: number for number, word in enumerate(names)}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = Fast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]",
                  eos_token="[SEP]", cls_token="[CLS]", sep_token="[SEP]")  # fmt: skip
    tokens.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    tokens.save_pretrained(folder)
    if name == "sft_trl":
        GPT2LMHeadModel(
            GPT2Config(vocab_size=len(words), n_embd=32, n_layer=1, n_head=2, n_positions=512)
        ).save_pretrained(folder)
    else:
        BertModel(
            BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=1,
                       num_attention_heads=2, intermediate_size=64)
        ).save_pretrained(folder)  # fmt: skip
    return ["--model", str(folder)]


def quick(name: str) -> bool:
    """Return True if the example needs only torch."""
    return name in ("ddp", "nanogpt")


TESTED_ELSEWHERE = {"focal_loss", "word_count", "worst_class"}
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.py")} - TESTED_ELSEWHERE)
each = [pytest.param(name, marks=() if quick(name) else pytest.mark.long) for name in NAMES]


@pytest.mark.parametrize("name", each)
def test_an_example_trains_and_leaves_its_model(name: str, tmp_path: Path) -> None:
    package = PACKAGES.get(name, "torch")
    if not find_spec(package):
        pytest.skip(f"an example needs {package}")
    work = tmp_path / "work"
    work.mkdir()
    rows = rows_of(name, tmp_path)
    length: dict[str, list[str]] = {
        "nanogpt": ["--steps", "150", "--layers", "1", "--width", "64", "--context", "32"]
    }
    epochs = "5" if name in ("ddp", "fabric") else "1"
    words = ["--data", str(rows), *model_of(name, tmp_path / "model"),
             *length.get(name, ["--epochs", epochs])]  # fmt: skip
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    (port,) = free_ports(1)  # a single rank listens at this port
    more = {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *words],
        env={**os.environ, **alone, **more, "ACCELERATE_USE_CPU": "true"},
        cwd=work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    left = {path.name for path in work.iterdir()}
    assert left & {"model", "model.pt"}
    said: dict[str, Callable[[list[str]], bool]] = {
        "ddp": lambda lines: float(lines[-1].split()[-1]) > 0.8,
        "fabric": lambda lines: float(lines[-1].split()[-1]) > 0.8,
        "nanogpt": lambda lines: (
            float(lines[-1].split()[-1]) < 1.5
        ),  # text of 7 letters; log 7 is chance
    }
    assert said.get(name, lambda _: True)(done.stdout.splitlines())
