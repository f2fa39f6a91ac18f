"""Masked language models against transformers: the collator's masks, the loss, run_mlm's blocks."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import DataCollatorForLanguageModeling

from ftcluster_kernels import cross_entropy as kernel
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.step import Batches
from ftcluster_train.engine.tasks.lm.masking import BEGINS, INSIDE, SPECIAL, Masks, kinds_of
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode
from tests.engine.jobs import (
    make_job,
    make_samples,
    make_task_of,
    result_of,
    run_rank,
    write_samples,
)
from tests.engine.models import VOCABULARY, make_model, make_tokenizer
from tests.engine.runs import classes, make_whole_job, write_data, write_model
from tests.engine.test_token_classification import LETTERS, make_pieces, tagged

TASK = "masked-lm"
IGNORED = -100


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert"])
def test_loss_and_all_gradients_are_those_of_all_logits(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the logits of masked tokens are computed."""
    model = make_model(kind, TASK)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:  # otherwise the test would not show that biases are skipped
                parameter.normal_()
    task = make_task_of(make_job(tmp_path, TASK))
    samples = [task.draw(one, n, 0) for n, one in enumerate(make_samples(TASK, 6))]
    inputs, targets = task.collate(samples)
    labels = torch.full(inputs["input_ids"].shape, IGNORED)
    labels.view(-1)[targets["places"]] = targets["tokens"]
    assert len(targets["places"]) < inputs["attention_mask"].sum() / 2
    wanted = model.eval()(**inputs, labels=labels).loss
    wanted.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)

    head = task.use_fused_loss(model)
    assert head is not None
    rows: list[int] = []
    product = kernel._product
    monkeypatch.setattr(
        kernel, "_product", lambda left, *others: rows.append(len(left)) or product(left, *others)
    )
    with KernelMode(head=head):
        outputs = model(**inputs)
        loss = task.loss(outputs, targets) / len(targets["places"])
    loss.backward()
    assert {*rows} == {len(targets["places"])}
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert {name for name, p in model.named_parameters() if p.grad is not None} == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-6)
    # the loss of an evaluation
    with torch.inference_mode(), task.evaluation_kernels(model):
        sums = task.predictions(model(**inputs), samples)
    assert task.score(sums, Samples.__new__(Samples))["loss"] == pytest.approx(
        wanted.item(), rel=1e-5
    )


def shares(ids: Any, before: Any, labels: Any, mask: int) -> tuple[float, float, float]:
    """Return the share of predicted tokens, and of these the masked and unchanged shares."""
    chosen = labels != IGNORED
    return (
        float(chosen.mean()), float((ids[chosen] == mask).mean()),
        float((ids[chosen] == before[chosen]).mean()),
    )  # fmt: skip


def test_tokens_are_masked_as_often_as_transformers_masks_them() -> None:
    tokens, mask = [7] * 40_000, 1
    ids, places = Masks(mask, 1000, 0.15, False).draw(tokens, [BEGINS] * len(tokens), "key")
    labels = np.full(len(tokens), IGNORED)
    labels[places] = 7
    ours = shares(np.array(ids), np.array(tokens), labels, mask)
    tokenizer = make_pieces()
    tokenizer.mask_token = "[UNK]"
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=1)
    inputs, wanted = collator.torch_mask_tokens(
        torch.tensor([tokens]), torch.zeros(1, len(tokens), dtype=torch.int64)
    )
    theirs = shares(inputs[0].numpy(), np.array(tokens), wanted[0].numpy(), mask)
    assert ours[0] == pytest.approx(theirs[0], abs=0.01)  # 4 standard deviations
    assert ours[1:] == pytest.approx(theirs[1:], abs=0.03)  # share among 6,000 tokens


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_words_whose_space_belongs_to_them_are_words(kind: str) -> None:
    """Tokens without gaps are words of their own; otherwise a whole text would be one word."""
    text = "one two three, four fivefold sixteen"
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tokenizer.pre_tokenizer = split if kind == "bytes" else pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        [text] * 3, trainers.BpeTrainer(vocab_size=32, special_tokens=["[UNK]"])
    )
    encoded = tokenizer.encode(text)
    kinds = kinds_of(text, encoded.special_tokens_mask, encoded.offsets)
    begins = {begin for begin, kind in zip(encoded.offsets, kinds, strict=True) if kind == BEGINS}
    spaces = {at for at, letter in enumerate(text) if letter == " "} | {0}
    assert {begin for begin, _ in begins} == spaces
    assert any(one == INSIDE for one in kinds)


def test_whole_words_are_those_of_transformers() -> None:
    tokenizer = make_pieces()
    texts = [", ".join(row["tokens"]) for row in tagged(20, 1)]
    encoded = tokenizer(
        texts, padding=True, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    collator = DataCollatorForLanguageModeling
    ids, not_begins = collator._calc_word_ids_and_prob_mask(
        np.array(encoded["offset_mapping"]), np.array(encoded["special_tokens_mask"])
    )
    masks = Masks(1, len(tokenizer), 0.3, True)
    for number, special in enumerate(encoded["special_tokens_mask"]):
        kinds = kinds_of(texts[number], special, encoded["offset_mapping"][number])
        wanted = np.where(
            np.array(special) == 1, SPECIAL, np.where(not_begins[number], INSIDE, BEGINS)
        )
        assert kinds == wanted.tolist()
        found, places = masks.draw(encoded["input_ids"][number], kinds, str(number))
        words = {ids[number][place] for place in places}
        assert places == [at for at, word in enumerate(ids[number]) if word in words]
        assert {found[place] for place in places} == {1}
        others = [
            n
            for n, (a, b) in enumerate(zip(found, encoded["input_ids"][number], strict=True))
            if a != b
        ]
        assert {*others} <= {*places}


def test_masks_are_those_of_the_seed_the_epoch_and_the_sample(tmp_path: Path) -> None:
    """Masks do not depend on the number of ranks or on the first step."""
    train_set = write_samples(tmp_path / "samples", make_samples(TASK, 12, length=40))
    job = make_job(tmp_path, TASK, batch_size=4, num_train_epochs=2)

    def read(size: int, after: int) -> dict[tuple[int, int], Any]:
        found = {}
        for rank in range(size):
            world = World(rank=rank, size=size, backend="gloo")
            batches = Batches(job, make_task_of(job), train_set, world)
            for step, indices in batches.after(after):
                batch = batches.read(step, indices)
                masked = [len(sample["targets"]) for part in batch.parts for sample in part]
                assert sum(masked) == batch.by_rank[rank]
                samples = chain.from_iterable(batch.parts)
                found |= {(step, n): s for n, s in zip(batch.share, samples, strict=True)}
        return found

    alone = read(1, 0)
    assert read(3, 0) == alone
    assert read(2, 4) == {key: sample for key, sample in alone.items() if key[0] > 4}
    places = {n: {str(s["targets"]) for (_, m), s in alone.items() if m == n} for n in range(12)}
    assert all(len(of_epochs) == 2 for of_epochs in places.values())  # each epoch has other masks
    other = make_task_of(make_job(tmp_path, TASK, seed=7))
    assert other.draw(train_set[0], 0, 0) != make_task_of(job).draw(train_set[0], 0, 0)
    assert other.draw(train_set[0], 0, None) == make_task_of(job).draw(train_set[0], 0, None)


def job_of(folder: Path, texts: list[str], name: str = "train.txt", **options: Any) -> Any:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / name).write_text("\n".join(texts) + "\n")
    model = write_model(folder / "bert", "bert", TASK)
    return make_whole_job(folder / "run", TASK, str(folder / "data"), model, options)


def test_blocks_are_those_of_run_mlm(tmp_path: Path) -> None:
    """The expected blocks come from run_mlm's tokenize_function and group_texts."""
    texts = [row["text"] for row in classes(60, 1)]
    lines = [line for text in texts for line in (text, "")]  # blank lines are not texts
    inputs = prepare(job_of(tmp_path, lines))
    joined = list(chain.from_iterable(make_tokenizer()(texts)["input_ids"]))
    wanted = [joined[n : n + 16] for n in range(0, len(joined) // 16 * 16, 16)]
    sets = [Samples(Path(inputs.samples) / split) for split in ("train", "validation")]
    assert [sample["input_ids"] for one in sets for sample in one] == wanted
    assert sets[1][0]["kinds"] == [
        SPECIAL if n in (2, 3) else BEGINS for n in sets[1][0]["input_ids"]
    ]


def test_a_long_line_is_several_samples_and_nothing_is_lost(tmp_path: Path) -> None:
    texts = [row["text"] for row in classes(30, 2)]
    inputs = prepare(job_of(tmp_path, texts, line_by_line=True))
    sets = [Samples(Path(inputs.samples) / split) for split in ("train", "validation")]
    samples = [sample["input_ids"] for one in sets for sample in one]
    assert any("texts have more than 16 tokens and were split" in n for n in inputs.notices)
    assert all(ids[0] == 2 and ids[-1] == 3 and len(ids) <= 16 for ids in samples)
    inner = list(chain.from_iterable(ids[1:-1] for ids in samples))
    encoded = make_tokenizer()(texts)["input_ids"]
    assert inner == list(chain.from_iterable(ids[1:-1] for ids in encoded))


def test_paragraphs_and_rows_are_texts(tmp_path: Path) -> None:
    lines = ["w5 w6", "w7", "", " ", "w8 w9 w10", ""] * 8
    options = {"line_by_line": True, "paragraphs": True}
    folder = Path(prepare(job_of(tmp_path / "p", lines, **options)).samples)
    first = [Samples(folder / "train")[n]["input_ids"] for n in range(2)]
    assert first == make_tokenizer()(["w5 w6 w7", "w8 w9 w10"])["input_ids"]
    rows = [json.dumps({"text": "w5 w6\nw7"}), json.dumps({"text": "w8 w9 w10"})] * 8
    job = job_of(tmp_path / "r", rows, "train.jsonl", line_by_line=True)
    samples = Samples(Path(prepare(job).samples) / "train")
    assert [samples[n]["input_ids"] for n in range(2)] == first


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_evaluation_has_the_masks_of_the_training(tmp_path: Path, precision: str) -> None:
    rows = classes(60, 3)
    sets = {"train": rows[:40], "validation": rows[40:]}
    model = write_model(tmp_path / "bert", "bert", TASK)
    data = write_data(tmp_path / "data", sets)
    job = make_whole_job(
        tmp_path / "train", TASK, data, model, max_steps=4, eval_strategy="epoch", seed=3
    )
    events = run_rank(replace(job, precision=precision))
    assert "cross_entropy" in next(e["used"] for e in events if e["event"] == "kernels")
    result = events[-1]
    assert result["metrics"]["loss"] < np.log(VOCABULARY) + 0.5
    again = make_whole_job(tmp_path / "evaluate", TASK, data, str(job.run_dir / "model"))
    found = result_of(replace(again, purpose="evaluate", precision=precision))["metrics"]
    assert found == pytest.approx(result["metrics"], rel=1e-5 if precision == "fp32" else 0.01)


def test_a_tokenizer_without_a_mask_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, list(LETTERS))
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(job.recipe.model)
    with pytest.raises(TrainError, match="has no mask token, which replaces the tokens to predict"):
        prepare(job)


@pytest.mark.parametrize("of_tokens", [False, True])
def test_loss_and_gradients_with_a_bias(of_tokens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "LOGITS", 1)  # limits the logits to 16 tokens at once
    draws = torch.Generator().manual_seed(1)
    shapes = ((40, 8), (70, 8), (70,))
    given = [torch.randn(shape, generator=draws, requires_grad=True) for shape in shapes]
    tokens = torch.randint(70, (40,), generator=draws)
    hidden, weight, bias = given
    if of_tokens:
        found = kernel.token_losses(hidden, weight, tokens, bias).sum()
    else:
        found = kernel.linear_cross_entropy(hidden, weight, tokens, bias)
    wanted = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, tokens, reduction="sum")
    torch.testing.assert_close(found, wanted)
    pairs = zip(
        torch.autograd.grad(3 * found, given), torch.autograd.grad(3 * wanted, given), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)
