"""The operations that bench/matmul_limit counts, against torch's counter of operations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.matmul_limit import Limit, attention_operations, operations_of
from tests.engine.jobs import make_job, write_samples
from tests.engine.models import VOCABULARY, make_model

LENGTHS, WRITTEN = (7, 19, 30), (5, 4, 9)


def counted(model: Any, *, back: bool, **inputs: torch.Tensor) -> int:
    """Return the operations of a pass, as torch counts them: also those of masked scores."""
    with FlopCounterMode(display=False) as counter:
        output = model(**inputs)
        if back:
            output[0].sum().backward()
    return int(counter.get_total_flops())


def tokens(length: int) -> torch.Tensor:
    return torch.arange(4, 4 + length).unsqueeze(0) % VOCABULARY


def test_an_encoder_that_is_trained(tmp_path: Path) -> None:
    """A row of pairs has two texts, which do not attend to each other."""
    model = make_model("bert", "sentence-similarity", attn_implementation="eager")
    model.pooler = None  # it is not trained
    rows = [
        {"input_ids": [5] * (length + 8), "lengths": [length, 8], "texts": [1, 2]}
        for length in LENGTHS
    ]
    job = make_job(tmp_path / "job", "sentence-similarity")
    samples = write_samples(tmp_path / "samples", rows)
    # the first layer's input also gets a gradient, because the embeddings are trained
    texts = [length for row in rows for length in row["lengths"]]
    wanted = sum(counted(model, back=True, input_ids=tokens(length)) for length in texts)
    assert operations_of(model, samples, job.recipe) == wanted


def test_a_pooler_does_not_count(tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "samples", [{"input_ids": [5] * n} for n in LENGTHS])
    job = make_job(tmp_path / "job", "sentence-similarity")
    model = make_model("bert", "sentence-similarity")
    with_pooler = operations_of(model, samples, job.recipe)
    model.pooler = None
    assert operations_of(model, samples, job.recipe) == with_pooler


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_masked_scores_of_a_decoder_do_not_count(tmp_path: Path, kind: str) -> None:
    model = make_model(kind, "causal-lm", attn_implementation="eager")
    samples = write_samples(tmp_path / "samples", [{"input_ids": [5] * n} for n in LENGTHS])
    job = make_job(tmp_path / "job", "causal-lm")
    every = sum(counted(model, back=True, input_ids=tokens(length)) for length in LENGTHS)
    scores = sum(length * length for length in LENGTHS)
    seen = sum(length * (length + 1) // 2 for length in LENGTHS)
    of_attention = 3 * attention_operations(model, samples)
    of_all_scores = of_attention * scores / seen
    found = operations_of(model, samples, job.recipe) - of_attention + of_all_scores
    assert found == pytest.approx(every, rel=1e-9)


def test_an_encoder_and_a_decoder(tmp_path: Path) -> None:
    model = make_model("t5", "seq2seq-lm", attn_implementation="eager").eval()
    rows = [
        {"input_ids": [5] * read, "labels": [6] * written}
        for read, written in zip(LENGTHS, WRITTEN, strict=True)
    ]
    samples = write_samples(tmp_path / "samples", rows)
    job = make_job(tmp_path / "job", "seq2seq-lm")
    every = sum(
        counted(model, back=False, input_ids=tokens(read), decoder_input_ids=tokens(written))
        for read, written in zip(LENGTHS, WRITTEN, strict=True)
    )
    config = model.config
    width = config.d_kv * config.num_heads
    masked = 4 * width * config.num_decoder_layers * sum(n * (n - 1) // 2 for n in WRITTEN)
    assert operations_of(model, samples, job.recipe) == pytest.approx(3 * (every - masked))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_is_that_of_the_fastest_function(dtype: torch.dtype) -> None:
    limit = Limit([(64, 32, 96), (64, 96, 32)], dtype)
    for _ in range(4):
        limit.measure()
    seconds = torch.tensor(limit._seconds[1:], dtype=torch.float64)
    work = 2 * 2.0 * 64 * 32 * 96
    by_function = work * len(seconds) / seconds.sum((0, 2))
    assert limit.rate(1) >= float(by_function.max()) * (1 - 1e-9)
