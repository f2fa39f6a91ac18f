"""Answers that a decoder cannot generate, compared with transformers' generate."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.answer_review import (
    AnswerReview,
    TargetAnswer,
    answers_in,
    texts_in,
)
from ftcluster_train.engine.tasks.generation_settings import read_generation_settings
from tests.engine.jobs import result_of
from tests.engine.models import make_model
from tests.engine.runs import Row, make_whole_job, write_data

PUBLISHED = Path(__file__).parent / "generation_settings"
SFT, CLM = "instruction-tuning", "causal-lm"
END = 3
PROMPT = [2, 7, 8, 9]


def generated(model: PreTrainedModel, tokens: list[int], **settings: Any) -> list[int]:
    """Return what generate writes after PROMPT if the model prefers the tokens of an answer."""

    def prefer(_: Any, __: Any, kwargs: Any, output: Any) -> Any:
        wanted = tokens[min(kwargs["input_ids"].shape[1], len(tokens) - 1)]
        output.logits[:, -1, wanted] += 1e4
        return output

    hook = model.register_forward_hook(prefer, with_kwargs=True)
    config = GenerationConfig(**{"eos_token_id": END, "pad_token_id": 0} | settings)
    limit = {} if {"max_length", "max_new_tokens"} & settings.keys() else {"max_new_tokens": 14}
    found = model.generate(
        torch.tensor([PROMPT]), generation_config=config, use_cache=False, **limit
    )
    hook.remove()
    return list(found[0].tolist())


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("min_length", range(6, 13)),
        ("min_new_tokens", range(1, 9)),
        ("max_length", range(6, 13)),
        ("max_new_tokens", range(1, 9)),
        ("no_repeat_ngram_size", (1, 2, 3)),
        ("encoder_no_repeat_ngram_size", (1, 2, 3)),
        ("suppress_tokens", ([11], [12])),
        ("begin_suppress_tokens", ([5], [6])),
        ("bad_words_ids", ([[11]], [[12]], [[5, 6]], [[6, 5]], [[END]], [[9, 5]], [[8], [20, 5]])),
        ("eos_token_id", (END, [END, 6], [END, 20])),
    ],
)
def test_a_setting_is_reported_if_generate_does_not_write_the_answer(
    setting: str, values: Any
) -> None:
    model = make_model("llama", SFT).eval()
    for answer in ([5, 6, 5, 6, 11, END], [8, 9, END], [5, 20, 5, END], [20, 7, 8, END]):
        tokens = PROMPT + answer
        for value in values:
            review = AnswerReview({"eos_token_id": END, setting: value})
            review.add(iter([TargetAnswer(tokens, len(PROMPT), True)]))
            notices = review.notices("train", "m", False)
            contradicts = generated(model, tokens, **{setting: value}) != tokens
            assert bool(notices) == contradicts, (answer, value, notices)
            assert not notices or f"train: {setting}" in notices[0]


def test_answers_of_a_conversation_and_texts_of_a_block() -> None:
    tokens = [2, 5, 6, END, 9, 2, 7, END, 9]
    turns = list(answers_in(tokens, [1, 2, 3, 4, 6, 7, 8], END))
    assert [(a.tokens, a.start, a.ends) for a in turns] == [
        (tokens[:4], 1, True), (tokens[:8], 6, True),
    ]  # fmt: skip
    cut = list(answers_in(tokens, [1, 2], END))
    assert [(a.tokens, a.ends) for a in cut] == [(tokens[:3], False)]
    texts = [(a.tokens, a.ends, a.whole) for a in texts_in(tokens, END, False)]
    assert texts == [
        ([2, 5, 6, END], True, False),
        ([9, 2, 7, END], True, True),
        ([9], False, True),
    ]


LLAMA = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}<|start_header_id|>{{ m.role }}"
    "<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_TOKENS = {
    "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|finetune_right_pad_id|>": 128004,
    "<|start_header_id|>": 128006, "<|end_header_id|>": 128007, "<|eot_id|>": 128009,
}  # fmt: skip
QWEN_TOKENS = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
FEW_TOKENS = {"<|endoftext|>": 97, "<|im_start|>": 98, "<|im_end|>": 99}


def write_decoder(
    folder: Path, settings: dict[str, Any], special: dict[str, int], end: str, template: str | None
) -> str:
    """Write a small Llama whose special tokens have the ids of a real tokenizer."""
    size = max(special.values()) + 1
    names = {number: name for name, number in special.items()}
    vocabulary = {names.get(number, f"w{number}"): number for number in range(size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")), eos_token=end
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, tie_word_embeddings=True,
        )
    ).save_pretrained(folder)  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return str(folder)


def published(name: str) -> dict[str, Any]:
    return json.loads((PUBLISHED / f"{name}.json").read_text())


def chats(count: int) -> list[Row]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"w{n} w7 w8 w9"},
                {"role": "assistant", "content": "w7 w8 w9 " + "w5 " * (60 + n)},
            ]
        }
        for n in range(count)
    ]


def settings_in(notices: list[str]) -> list[str]:
    return [line for line in notices if "generation_config.json" in line]


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    ("name", "tokens", "end", "template", "ends"),
    [
        ("llama-3.1-8b", LLAMA_TOKENS, "<|end_of_text|>", LLAMA, [128001, 128009]),
        ("qwen2.5-14b-sft", QWEN_TOKENS, "<|im_end|>", CHATML, [151643, 151645]),
    ],
)
def test_a_published_model_whose_chats_would_not_stop(
    tmp_path: Path, name: str, tokens: dict[str, int], end: str, template: str, ends: list[int]
) -> None:
    model = write_decoder(tmp_path / "model", published(name), tokens, end, template)
    data = write_data(tmp_path / "data", {"train": chats(8), "validation": chats(2)})
    job = make_whole_job(tmp_path / "run", SFT, data, model, max_steps=1)
    notices = settings_in(prepare(job).notices)
    token = next(name for name, number in tokens.items() if number == ends[1])
    assert notices[-1].startswith(f"train: answers end with {token} ({ends[1]}), but eos_token_id ")
    assert notices[-1].endswith(
        f"is {ends[0]}, so generation would not stop; generation_config.json of the trained model "
        f"gets eos_token_id {ends}"
    )
    cut = [line for line in notices[:-1] if line.startswith("train: max_new_tokens 64 in ")]
    assert len(cut) == ("max_new_tokens" in published(name))
    assert all("7 of 8 answers have more tokens (the longest 71)" in line for line in cut)
    saved = GenerationConfig.from_pretrained(result_of(job)["model"])
    assert saved.eos_token_id == ends
    alone = make_whole_job(tmp_path / "run2", SFT, data, model, {"lora_r": 2})
    assert f"pass eos_token_id={ends} to generate" in settings_in(prepare(alone).notices)[-1]


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("task", [SFT, "preference-tuning", "unpaired-preference-tuning", CLM])
def test_reset_generation_removes_reported_settings_from_each_decoder(
    tmp_path: Path, task: str
) -> None:
    """The settings are those of a published encoder-decoder, which a decoder must not have."""
    settings = {
        **published("ubuntu-chatbot"), "max_length": 12, "pad_token_id": -1, "eos_token_id": 97,
    }  # fmt: skip
    model = write_decoder(tmp_path / "model", settings, FEW_TOKENS, "<|im_end|>", CHATML)
    rows: list[Row] = [
        {
            "text": "w7 w8 w9 " * 20, "prompt": f"w{n} w7 w8 w9", "completion": "w7 w8 w9 w5",
            "chosen": "w7 w8 w9 w5", "rejected": "w6 " * 30, "label": n % 2 == 0,
        }
        for n in range(12)
    ]  # fmt: skip
    columns = {
        SFT: ("prompt", "completion"),
        "preference-tuning": ("prompt", "chosen", "rejected"),
        "unpaired-preference-tuning": ("prompt", "completion", "label"),
        CLM: ("text",),
    }[task]
    rows = [{name: row[name] for name in columns} for row in rows]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:4]})
    options: dict[str, Any] = {"block_size": 32} if task == CLM else {}
    job = make_whole_job(tmp_path / "run", task, data, model, options, max_steps=1)
    notices = settings_in(prepare(job).notices)
    count = {"unpaired-preference-tuning": "6 of 6", CLM: " texts "}.get(task, "12 of 12")
    [repeated] = [line for line in notices if "no_repeat_ngram_size 3 in " in line]
    assert count in repeated
    assert repeated.endswith(
        "which generation forbids, so the model cannot write them; to drop the model's generation "
        "settings, train with reset_generation=true"
    )
    assert any(" max_length 12 in " in line for line in notices)
    [padding] = [line for line in notices if "pad_token_id -1" in line]
    assert padding.endswith("the trained model gets pad_token_id 99")
    saved = json.loads((Path(result_of(job)["model"]) / "generation_config.json").read_text())
    assert (saved["pad_token_id"], saved["eos_token_id"]) == (99, [97, 99])
    assert saved["no_repeat_ngram_size"] == 3

    reset = make_whole_job(
        tmp_path / "run2", task, data, model, {**options, "reset_generation": True}, max_steps=1
    )
    assert settings_in(prepare(reset).notices) == []
    folder = Path(result_of(reset)["model"])
    saved = json.loads((folder / "generation_config.json").read_text())
    kept = {"bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id"}
    assert saved.keys() <= {*kept, "_from_model_config", "transformers_version"}
    assert saved["eos_token_id"] == 99
    trained = AutoModelForCausalLM.from_pretrained(folder)
    texts = torch.tensor([[5, 6, 7], [8, 9, 10]])
    trained.generate(texts, attention_mask=torch.ones_like(texts), max_new_tokens=2)


def test_numbers_that_are_not_finite_are_ignored(tmp_path: Path) -> None:
    """Python's JSON reader accepts them in a file, also as 1e999."""
    (tmp_path / "generation_config.json").write_text(
        '{"max_length": Infinity, "min_length": NaN, "max_new_tokens": 1e999}'
    )
    review = AnswerReview(read_generation_settings(tmp_path))
    review.add(iter([TargetAnswer([5, 6, 7], 1)]))
    assert review.notices("train", "org/model", alone=False) == []


def test_settings_that_fit_are_not_reported(tmp_path: Path) -> None:
    settings = {**published("rugpt3xl"), "eos_token_id": [99, 1]}
    model = write_decoder(tmp_path / "model", settings, FEW_TOKENS, "<|im_end|>", CHATML)
    data = write_data(tmp_path / "data", {"train": chats(8), "validation": chats(2)})
    job = make_whole_job(tmp_path / "run", SFT, data, model)
    assert settings_in(prepare(job).notices) == []


def test_a_chat_template_that_ends_answers_with_an_ordinary_token(tmp_path: Path) -> None:
    template = CHATML.replace("<|im_end|>", "w6")
    model = write_decoder(
        tmp_path / "model", {"eos_token_id": 97}, FEW_TOKENS, "<|endoftext|>", template
    )
    data = write_data(tmp_path / "data", {"train": chats(8), "validation": chats(2)})
    notices = prepare(make_whole_job(tmp_path / "run", SFT, data, model)).notices
    assert [line for line in notices if "writes no special token after an answer" in line]
