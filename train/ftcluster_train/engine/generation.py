"""Generate text: answers to prompts, and sample answers to compare with reference answers."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.generation.streamers import TextStreamer
from transformers.utils import GENERATION_CONFIG_NAME

from ftcluster_common.models.adapter_config import CONFIG as ADAPTERS
from ftcluster_common.protocol.job import Job
from ftcluster_train.engine.adapters import use_adapters
from ftcluster_train.engine.data.download import fetch_base
from ftcluster_train.engine.data.run_inputs import Inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.models import dtype_keyword, load_tokenizer, positions_of
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError, TrainingStopped, first_line

SAMPLES, SAMPLE_TOKENS = 3, 64
SHOWN_CHARACTERS = 600
# file in the run's folder to which the user's prompts are added; the line `null` ends the session
PROMPTS = "prompts.jsonl"
SESSION_SECONDS = 60.0  # a session ends after this time without a new line; the line may be empty
PAUSE_SECONDS = 0.1


class _Pieces(TextStreamer):  # type: ignore[misc]
    """Forwards whole words during generation, and raises an error if a stop is requested."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, take: Callable[[str], None],
        stop_asked: Callable[[], bool],
    ) -> None:  # fmt: skip
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._take, self._stop_asked = take, stop_asked

    def put(self, value: torch.Tensor) -> None:
        if self._stop_asked():
            raise TrainingStopped
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002
        if text:
            self._take(text)


def generate(
    job: Job, inputs: Inputs, log: ProgressLog, stop_asked: Callable[[], bool] = lambda: False
) -> None:
    """Answer the job's prompts one after another, and log each answer while it is generated.

    Raises:
        TrainError: the model cannot be loaded, or its chat template rejects a message.
        TrainingStopped: this process received a request to stop.
    """
    asked, began = job.generation, time.perf_counter()
    tokenizer = load_tokenizer(inputs.tokenizer)
    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
    model = load_decoder(inputs.model, job.prefix / "models", dtype)
    log.write("phase", doing="answering")
    answers, tokens, spent = [], 0, 0.0
    for number, prompt in enumerate(_prompts(job, stop_asked)):
        ids = prompt_ids(tokenizer, prompt, asked.get("system") or "")
        started = time.perf_counter()

        def take(text: str, number: int = number) -> None:
            log.write("text", prompt=number, text=text)

        set_seed(asked["seed"])
        answer = answer_of(model, ids, asked, _Pieces(tokenizer, take, stop_asked))
        spent += time.perf_counter() - started
        tokens += len(answer)
        answers.append(str(tokenizer.decode(answer, skip_special_tokens=True)))
        log.write("answered", prompt=number)
    log.write(
        "result", model="", metrics={}, world_size=1, train_seconds=time.perf_counter() - began,
        samples_per_second=tokens / max(spent, 1e-9), answers=answers, tokens=tokens,
    )  # fmt: skip


def _prompts(job: Job, stop_asked: Callable[[], bool]) -> Iterator[str]:
    """Yield the job's prompts and, in an interactive session, the prompts that the user types."""
    prompts, path = job.generation["prompts"], job.run_dir / PROMPTS
    if not job.generation.get("more"):
        yield from prompts
        return
    path.touch()
    try:
        yield from prompts
        yield from _typed(path, stop_asked)
    finally:
        path.unlink(missing_ok=True)


def _typed(path: Path, stop_asked: Callable[[], bool]) -> Iterator[str]:
    """Yield each prompt that is added to a file.

    The session ends at the line `null`, or after SESSION_SECONDS without a new line.
    """
    with path.open("rb") as file:
        latest = time.monotonic()
        while time.monotonic() - latest < SESSION_SECONDS:
            if stop_asked():
                raise TrainingStopped
            line = file.readline()
            if not line.endswith(b"\n"):
                file.seek(-len(line), os.SEEK_CUR)
                time.sleep(PAUSE_SECONDS)
                continue
            if line.strip():
                if (prompt := read_prompt(line)) is None:
                    return
                yield prompt
            latest = time.monotonic()


def read_prompt(line: bytes) -> str | None:
    """Return the prompt in a line of the file PROMPTS, or None for the line that ends the session.

    Raises:
        TrainError: the line is neither a prompt nor null.
    """
    try:
        prompt = json.loads(line)
        if prompt is None or isinstance(prompt, str):
            return prompt
    except (ValueError, RecursionError):
        pass
    raise TrainError(
        f"cannot read a line of {PROMPTS} as a prompt: {line[:100]!a}", "type the prompt again"
    )


def load_decoder(folder: str, models: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load a language model.

    If the folder contains adapters, load their base model and add the adapters.

    Raises:
        TrainError: the model, or the base model of the adapters, cannot be loaded.
    """
    keyword: dict[str, Any] = {
        dtype_keyword(transformers.__version__): dtype,
        "trust_remote_code": False,
    }
    try:
        if not (Path(folder) / ADAPTERS).is_file():
            return AutoModelForCausalLM.from_pretrained(folder, **keyword).eval()
        base = fetch_base(folder, models, weights=True)
        model = AutoModelForCausalLM.from_pretrained(base, **keyword)
        use_adapters(model, Path(folder))
        if (Path(folder) / GENERATION_CONFIG_NAME).is_file():
            ends = GenerationConfig.from_pretrained(folder).eos_token_id
            if ends is not None:  # adapters saved by other programs may lack this field
                model.generation_config.eos_token_id = ends
        return model.eval()
    except TrainError:
        raise
    except Exception as error:  # from_pretrained may raise any exception of its many readers
        raise TrainError(f"{folder} cannot generate text: {first_line(error)}") from error


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str, system: str) -> list[int]:
    """Return the token ids of a prompt, formatted by the tokenizer's chat template if it has one.

    Raises:
        TrainError: the template rejects the messages, or there is a system message but no template.
    """
    if not tokenizer.chat_template:
        if system:
            raise TrainError(
                "the model has no chat template, so there is no place for a system message",
                "write it into the prompt",
            )
        return list(tokenizer(prompt)["input_ids"])
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # template code may raise any exception
        raise TrainError(f"the chat template refuses the messages: {first_line(error)}") from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@torch.inference_mode()  # type: ignore[untyped-decorator]
def answer_of(
    model: PreTrainedModel, ids: Sequence[int], asked: Mapping[str, Any],
    streamer: TextStreamer | None = None,
) -> list[int]:  # fmt: skip
    """Return the token ids that the model generates to continue `ids`.

    The answer never extends beyond the last position of the model.

    Args:
        asked: generation settings: `max_new_tokens`, `temperature` (0 always takes the most
            probable token) and `top_p`.

    Raises:
        TrainError: the model has fewer positions than `ids` has tokens.
    """
    positions, most = positions_of(model.config), asked["max_new_tokens"]
    if positions is not None:
        if len(ids) > positions:
            raise TrainError(
                f"the prompt has {len(ids)} tokens, but the model has {positions} positions",
                "shorten the prompt",
            )
        most = min(most, positions - len(ids))
    if most == 0:
        return []
    sampled = asked["temperature"] > 0
    chosen = {"temperature": asked["temperature"], "top_p": asked["top_p"], "top_k": 0}
    inputs = torch.tensor([list(ids)])
    out = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=most, do_sample=sampled,
        streamer=streamer, **(chosen if sampled else {}),
    )  # fmt: skip
    return list(out[0, len(ids) :].tolist())


def samples_beside_references(
    task: Task, model: PreTrainedModel, samples: Samples
) -> list[list[str]]:
    """Return the prompt, reference answer and generated answer for the first rows of a set.

    Decoding is greedy, so the same model always generates the same texts.
    """
    asked = {"max_new_tokens": SAMPLE_TOKENS, "temperature": 0.0, "top_p": 1.0}
    texts = []
    for number in range(min(SAMPLES, len(samples))):
        document = task.documents(samples[number], samples)[0]
        ids, targets = list(document.ids), set(document.targets)
        first = end = min(targets)
        while end in targets:  # in a conversation, only the first answer is used
            end += 1
        answer = answer_of(model, ids[:first], asked)
        decoded = (
            str(task.tokenizer.decode(part, skip_special_tokens=True))
            for part in (ids[:first], ids[first:end], answer)
        )
        texts.append([text[:SHOWN_CHARACTERS] for text in decoded])
    return texts
