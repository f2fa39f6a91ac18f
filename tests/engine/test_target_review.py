"""Targets that a model cannot generate, compared with transformers' generate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from ftcluster_common.protocol.job import EVALUATE
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.seq2seq.target_review import TargetReview
from tests.engine.jobs import result_of
from tests.engine.models import make_model, make_tokenizer
from tests.engine.runs import make_whole_job, summaries, write_data, write_model

TASK = "seq2seq-lm"
START, END = 2, 3  # ids of [CLS] and [SEP] in the tests' tokenizer


class Wants(torch.nn.Module):
    """A logits processor that makes a target's tokens the most likely ones."""

    def __init__(self, model: PreTrainedModel, target: list[int]) -> None:
        super().__init__()
        self.model, self.target = model, target

    def written(self, **settings: Any) -> list[int]:
        """Return the text that generate produces if the model prefers the target."""

        def wish(_: Any, __: Any, kwargs: Any, output: Any) -> Any:
            length = kwargs["decoder_input_ids"].shape[1]
            wanted = self.target[min(length - 1, len(self.target) - 1)]
            output.logits[:, -1, wanted] += 1e4
            return output

        hook = self.model.register_forward_hook(wish, with_kwargs=True)
        config = GenerationConfig(
            decoder_start_token_id=START, eos_token_id=END, pad_token_id=0, **settings
        )
        source = torch.tensor([[2, 7, 8, 9, 3]])
        has_limit = {"max_length", "max_new_tokens"} & settings.keys()
        most = {} if has_limit else {"max_new_tokens": 12}
        found = self.model.generate(source, generation_config=config, use_cache=False, **most)
        hook.remove()
        return list(found[0, 1:].tolist())


TARGET = [5, 6, 5, 6, 11, END]


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("min_length", range(3, 10)),
        ("min_new_tokens", range(3, 9)),
        ("max_length", range(4, 10)),
        ("max_new_tokens", range(2, 9)),
        ("no_repeat_ngram_size", (1, 2, 3)),
        ("encoder_no_repeat_ngram_size", (1, 2)),
        ("forced_bos_token_id", (5, 6)),
        ("suppress_tokens", ([11], [12])),
        ("begin_suppress_tokens", ([5], [6])),
        ("bad_words_ids", ([[11]], [[12]], [[5, 6]], [[6, 5]], [[END]], [[8], [20, 5]])),
    ],
)
@pytest.mark.parametrize("target", [TARGET, [7, 8, END], [5, 20, 5, END]])
def test_a_setting_is_reported_if_generate_does_not_write_the_target(
    setting: str, values: Any, target: list[int]
) -> None:
    model = Wants(make_model("bart", TASK).eval(), target)
    for value in values:
        settings = {setting: value, "eos_token_id": END}
        reviewed = TargetReview(make_tokenizer(), settings, 100)
        reviewed.add([[2, 7, 8, 9, 3]], [target], ["" for _ in "1"], 0)
        notices = reviewed.notices("train", "m")
        contradicts = model.written(**{setting: value}) != target
        assert bool(notices) == contradicts, (value, notices)
        assert not notices or f"{setting}" in notices[0]


def test_unknown_tokens_and_letters_of_a_vocabulary() -> None:
    letters = {letter: number for number, letter in enumerate(["<unk>", *"abcdefghij "])}
    letters |= {"</s>": len(letters)}
    plain = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    texts = ["{'a'}", "abc", "a\nb"]
    tokens = tokenizer(texts)["input_ids"]
    reviewed = TargetReview(tokenizer, {}, 100)
    reviewed.add(tokens, tokens, texts, 100)
    [notice] = reviewed.notices("train", "m")
    unknown = sum(ids.count(0) for ids in tokens)
    assert f"2 of 3 targets have {unknown} unknown tokens" in notice
    assert "'\"'\"' 2".replace("'\"'\"'", '"\'"') in notice
    assert "'\\n' 1" in notice


def test_a_token_of_two_meanings_is_not_unknown() -> None:
    tokenizer = make_tokenizer()
    tokenizer.unk_token = tokenizer.eos_token = "[SEP]"
    ids = [5, 6, tokenizer.eos_token_id]
    reviewed = TargetReview(tokenizer, {}, 100)
    reviewed.add([ids], [ids], [tokenizer.decode(ids, skip_special_tokens=True)], 100)
    assert reviewed.notices("train", "m") == []


def test_a_training_inherits_the_settings_of_a_summarizer(tmp_path: Path) -> None:
    """The settings equal those of facebook/bart-large-cnn."""
    model = write_model(tmp_path / "bart", "bart", TASK, head=True)
    path = Path(model) / "generation_config.json"
    settings = {"min_length": 56, "max_length": 142, "no_repeat_ngram_size": 3}
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    data = write_data(tmp_path / "data", {"train": summaries(12, 1), "validation": summaries(4, 2)})
    notices = prepare(make_whole_job(tmp_path / "run", TASK, data, model)).notices
    [notice] = [line for line in notices if line.startswith("train: min_length 56 in generation")]
    assert "12 of 12 targets have fewer tokens (the shortest 3)" in notice
    assert notice.endswith("each as long as the limit, 12 tokens; set min_length=2")
    plain = write_model(tmp_path / "plain", "bart", TASK, head=True)
    notices = prepare(make_whole_job(tmp_path / "run2", TASK, data, plain)).notices
    assert not [line for line in notices if "generation_config" in line]


SUMMARIZER = {  # facebook/bart-large-cnn has the first ones
    "min_length": 56, "max_length": 142, "no_repeat_ngram_size": 3, "length_penalty": 2.0,
    "forced_bos_token_id": 7, "forced_eos_token_id": 8, "bad_words_ids": [[5], [6, 7]],
    "suppress_tokens": [9], "num_beams": 4,
}  # fmt: skip


@pytest.mark.usefixtures("one_world")
def test_each_remedy_in_a_notice_removes_it_from_training_and_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bart", "bart", TASK, head=True)
    path = Path(model) / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **SUMMARIZER}))
    rows = [*summaries(12, 1), {"document": "w5", "summary": "w5 w9 w6 w7 w9 w6 w7"}]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:4]})

    def settings_in(notices: list[str]) -> list[str]:
        about = [line for line in notices if "in generation_config.json" in line]
        assert all(line.startswith("train: ") for line in about)  # once for a run
        return [line.split()[1] for line in about]

    notices = prepare(make_whole_job(tmp_path / "run", TASK, data, model)).notices
    named = settings_in(notices)
    assert {*named} == SUMMARIZER.keys() - {"length_penalty", "num_beams", "max_length"}
    assert len(named) == len({*named})
    remedies = {line.rpartition("; ")[2] for line in notices if "in generation_config" in line}
    assert remedies == {
        "set min_length=2",
        "set no_repeat_ngram_size=0",
        "to drop the model's generation settings, train with reset_generation=true",
    }
    options: dict[str, Any] = {"min_length": 2, "no_repeat_ngram_size": 0}
    notices = prepare(make_whole_job(tmp_path / "run2", TASK, data, model, options)).notices
    assert not {"min_length", "no_repeat_ngram_size"} & {*settings_in(notices)}
    job = make_whole_job(
        tmp_path / "run3", TASK, data, model, options | {"reset_generation": True}, max_steps=1
    )
    assert settings_in(prepare(job).notices) == []
    result = result_of(job)
    saved = GenerationConfig.from_pretrained(result["model"]).to_diff_dict()
    dropped = {"forced_bos_token_id", "bad_words_ids", "suppress_tokens", "num_beams"}
    assert not dropped & saved.keys()
    ends = {"decoder_start_token_id": END, "eos_token_id": END, "max_new_tokens": 12}
    assert {name: saved[name] for name in ends} == ends


@pytest.mark.usefixtures("one_world")
def test_an_evaluation_reports_the_settings_of_a_trained_model_too(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bart", "bart", TASK, head=True)
    path = Path(model) / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "min_length": 56}))
    rows = {"train": summaries(12, 1), "validation": summaries(4, 2)}
    data = write_data(tmp_path / "data", rows)
    trained = result_of(make_whole_job(tmp_path / "run", TASK, data, model, max_steps=1))
    job = make_whole_job(tmp_path / "run2", TASK, data, trained["model"])
    job = replace(job, purpose=EVALUATE)
    found = result_of(job)
    assert found["metrics"]["gen_len"] > 11
    [notice] = [line for line in prepare(job).notices if "min_length" in line]
    assert notice.startswith("validation: min_length 56")
    lower = make_whole_job(tmp_path / "run3", TASK, data, trained["model"], {"min_length": 0})
    lower = replace(lower, purpose=EVALUATE)
    assert not [line for line in prepare(lower).notices if "min_length" in line]


@pytest.mark.parametrize(
    ("task", "kind", "rows"),
    [
        ("causal-lm", "gpt2", [{"text": "w5 w6 so w7"}] * 40),
        ("instruction-tuning", "gpt2", [{"prompt": "w5 so", "completion": "w6 {"}] * 40),
        ("seq2seq-lm", "bart", [{"document": "w5 so", "summary": "w6 {"}] * 40),
    ],
)
def test_unknown_tokens_are_counted_in_what_is_learned_alone(
    tmp_path: Path, task: str, kind: str, rows: list[dict[str, Any]]
) -> None:
    model = write_model(tmp_path / "model", kind, task, head=True)
    tokenizer = make_tokenizer()
    tokenizer.bos_token = tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(model)
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:20]})
    options = {"chat_template": False} if task == "instruction-tuning" else {}
    notices = prepare(make_whole_job(tmp_path / "run", task, data, model, options)).notices
    found = [line for line in notices if line.startswith("train: NOT KNOWN to the tokenizer")]
    [notice] = [line for line in found if " sources " not in line]
    assert "40 " in notice.partition(" unknown")[0]
    if task == "seq2seq-lm":
        assert "40 of 40 targets have 40 unknown tokens ('{' 40)" in notice
        assert (
            "40 of 40 sources have 40 unknown tokens ('so' 40), which the model cannot" in found[0]
        )


def test_examples_of_unknown_tokens_are_also_those_of_truncated_texts(tmp_path: Path) -> None:
    """Characters that a tokenizer loses are only counted in whole texts."""
    model = write_model(tmp_path / "model", "bart", TASK, head=True)
    rows = [
        {"document": f"w{n + 5} {'café ' * (n % 2)}", "summary": f"w{n + 9} {{ w7 w8 w9 }}"}
        for n in range(20)
    ]
    data = write_data(tmp_path / "data", {"train": rows, "validation": rows[:2]})
    job = make_whole_job(tmp_path / "run", TASK, data, model, {"max_target_length": 4})
    sources, targets = [
        line for line in prepare(job).notices if line.startswith("train: NOT KNOWN to the")
    ]
    assert "10 of 20 sources have 10 unknown tokens ('caf\\xe9' 10)" in sources
    assert "20 of 20 targets have 20 unknown tokens ('{' 20, '}' 20)" in targets
