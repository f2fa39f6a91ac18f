"""Small trainings with the engine in this process."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe, Training
from ftcluster_common.tasks.chat import InstructionTuning, PreferenceTuning
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.distill import TextDistillation
from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_common.tasks.few_shot import FewShotClassification
from ftcluster_common.tasks.lm import CausalLm, MaskedLm
from ftcluster_common.tasks.multi_vector import MultiVectorEncoding
from ftcluster_common.tasks.ner import TokenClassification
from ftcluster_common.tasks.rerank import TextRanking
from ftcluster_common.tasks.seq2seq import Seq2SeqLm
from ftcluster_common.tasks.sparse import SparseEncoding
from ftcluster_common.tasks.spec import Options
from ftcluster_common.tasks.squad import QuestionAnswering
from ftcluster_common.tasks.unpaired import UnpairedPreferenceTuning
from ftcluster_train.comm.world import World
from ftcluster_train.engine import rank
from ftcluster_train.engine.checkpoints import save_model
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.loop import LoopResult, train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.saved_check import SavedCheck
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.io.events import EventWriter
from tests.engine.models import SPECIAL, VOCABULARY, make_tokenizer

CLASSES = 3
FIRST_WORD = len(SPECIAL)

OPTIONS: dict[str, Options] = {
    "text-classification": TextClassification(text_columns=("text",), max_length=48),
    "token-classification": TokenClassification(max_length=48, doc_stride=8),
    "question-answering": QuestionAnswering(
        max_length=24, doc_stride=4, max_query_length=8, n_best_size=5, max_answer_length=6
    ),
    "causal-lm": CausalLm(block_size=16, validation_split_percentage=10.0),
    "masked-lm": MaskedLm(max_length=16),
    "sentence-similarity": SentenceSimilarity(max_length=24),
    "text-ranking": TextRanking(max_length=32),
    "few-shot-classification": FewShotClassification(max_length=24),
    "sparse-encoding": SparseEncoding(max_length=24),
    "multi-vector-encoding": MultiVectorEncoding(max_length=24, query_length=8, dimension=16),
    "instruction-tuning": InstructionTuning(max_length=40),
    "preference-tuning": PreferenceTuning(max_length=40),
    "unpaired-preference-tuning": UnpairedPreferenceTuning(max_length=40),
    "text-distillation": TextDistillation(max_length=32),
    "seq2seq-lm": Seq2SeqLm(max_source_length=32, max_target_length=12),
}
NO_PLACES: Sample = {"null": [0], "first": [1], "question": [0], "begins": [], "ends": []}


def make_samples(task: str, count: int, seed: int = 0, length: int = 0) -> list[Sample]:
    """Return samples as `task` encodes them, of random lengths unless the length is fixed."""
    draw = random.Random(seed)
    fixed = {"question-answering": 24, "causal-lm": 16}.get(task, length)
    made: list[Sample] = []
    for _ in range(count):
        size = fixed or draw.randrange(4, 40)
        # a few tokens are frequent, so that the model can learn something
        words = [
            int(FIRST_WORD + (VOCABULARY - FIRST_WORD) * draw.random() ** 3) for _ in range(size)
        ]
        sample: Sample = {"input_ids": words}
        if task == "text-classification":
            sample["label"] = [sum(words) % CLASSES]
        if task == "masked-lm":
            sample["kinds"] = [1] * size
        if task == "question-answering":
            start = draw.randrange(1, size - 4)
            sample |= {**NO_PLACES, "start": [start], "end": [start + draw.randrange(4)]}
        made.append(sample)
    return made


def write_samples(folder: Path, samples: Sequence[Sample]) -> Samples:
    kinds = {name: "H" if name == "input_ids" else "i" for name in samples[0]}
    writer = SampleWriter(folder, kinds)
    for sample in samples:
        writer.add(sample)
    writer.close(classes=CLASSES)
    return Samples(folder)


def make_job(
    folder: Path, task: str, precision: str = "fp32", batch_size: int = 8, **changes: Any
) -> Job:
    """Return a job with a recipe's defaults that logs each step and evaluates nothing."""
    plain = {"logging_steps": 1, "eval_strategy": "no", "learning_rate": 1e-3}
    recipe = Recipe(
        name="tiny", task=task, model="tiny", from_scratch=True, data="samples",
        options=OPTIONS[task], batch_size=batch_size, precision=precision,
        training=Training(**{**plain, **changes}),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    return Job("tiny", folder, folder, recipe, precision, ipex=False)


def make_task_of(job: Job) -> Task:
    return make_task(job.recipe, make_tokenizer())


@dataclass(frozen=True)
class Run:
    """The results of a training."""

    result: LoopResult
    model: PreTrainedModel
    events: list[dict[str, Any]]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [found for found in self.events if found["event"] == event]

    @property
    def notices(self) -> list[str]:
        """Return the notices, without the usual notice about a missing C compiler."""
        said = (event["message"] for event in self.of("notice"))
        return [message for message in said if "without a C compiler" not in message]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("step")]

    @property
    def digests(self) -> list[str]:
        return [event["sha256"] for event in self.of("parameters")]


def check_saved(
    folder: Path,
    task_name: str,
    model: PreTrainedModel,
    base: str = "",
    spoil: Callable[[Path], None] = lambda _: None,
    save: Callable[..., None] = save_model,
) -> dict[str, Any]:
    """Save a model, change its files, and compare both; return the event of the check.

    Raises:
        NotAsTrainedError: they differ.
    """
    job = make_job(folder, task_name)
    task, samples = make_task_of(job), make_samples(task_name, 4)
    for sample in samples:
        sample["input_ids"][-1] = SPECIAL.index("[SEP]")  # T5 needs an end-of-text token
    check = SavedCheck(task, samples, base, ProgressLog(EventWriter(job.run_dir)))
    outputs = check.outputs(model)
    save(model, task, folder / "saved")
    spoil(folder / "saved")
    check.check(folder / "saved", model, outputs)
    return read_events(job)[-1]


def read_events(job: Job) -> list[dict[str, Any]]:
    text = (job.run_dir / "events.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def run_rank(job: Job) -> list[dict[str, Any]]:
    """Return the events of a job whose only rank is this process; see the fixture `one_world`."""
    job.run_dir.mkdir(parents=True, exist_ok=True)
    write_inputs(job.run_dir, prepare(job))
    rank.run(job)
    return read_events(job)


def result_of(job: Job) -> dict[str, Any]:
    """Return the event `result` of `run_rank`."""
    [found] = [event for event in run_rank(job) if event["event"] == "result"]
    return found


def run(
    job: Job,
    model: PreTrainedModel,
    samples: Sequence[Sample],
    world: World,
    validation: Sequence[Sample] = (),
    task: Task | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Run:
    """Train in this process, as a rank does."""
    train_set = write_samples(job.run_dir / "samples/train", samples)
    sets = {}
    if validation:
        sets["validation"] = write_samples(job.run_dir / "samples/validation", validation)
    log = ProgressLog(EventWriter(job.run_dir))
    result, trained = train(
        job, task or make_task_of(job), model, train_set, sets, world, log, stop_asked=stop_asked
    )
    return Run(result, trained, read_events(job))
