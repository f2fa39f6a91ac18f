"""Evaluate or predict: each rank processes a part of the samples, then all ranks share results."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from ftcluster_common.data.data_files import TEST
from ftcluster_common.protocol.job import PREDICT, Job
from ftcluster_train.comm.world import World, folder_led, gather_over_ranks
from ftcluster_train.engine.data.sets import PREDICTED
from ftcluster_train.engine.data.token_samples import Samples, joined
from ftcluster_train.engine.generation import samples_beside_references
from ftcluster_train.engine.metrics import perplexity
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.base import ROWS_FILE, Task
from ftcluster_train.engine.tasks.predictions import predict
from ftcluster_train.io.fsync import new_folder, write_atomically
from ftcluster_train.io.rank_status import report
from ftcluster_train.patching.batch_context import BatchContext

PREDICTIONS = "predictions"  # name of the folder, and of the file in this folder without suffix


class Scores(NamedTuple):
    """The results of an evaluation.

    Attributes:
        metrics: metrics by name.
        classes: `ClassReport` of each set as JSON; empty unless the task classifies.
        texts: first generated texts for each set, see `Task.texts`; empty unless the task
            generates text.
    """

    metrics: dict[str, float]
    classes: dict[str, Any]
    texts: dict[str, list[list[str]]]


def evaluate(
    task: Task,
    model: PreTrainedModel,
    validation_sets: Mapping[str, Samples],
    world: World,
    bf16: bool,
    context: BatchContext | None = None,
    fits: bool = True,
) -> Scores:
    """Evaluate a model on all validation sets, and return the same scores on every rank.

    If there are several sets, the name of each metric ends with the name of its set: for example,
    `accuracy_matched` for the set `validation_matched`. If the recipe has several data sets,
    `accuracy` is also reported: the mean over all sets with this metric, weighted by their numbers
    of samples.

    If the job trains, settings such as thresholds are tuned on one set and used for all sets. They
    are tuned on the set that `metric_for_best_model` names, by default on the first set. If the
    recipe has several data sets, they are tuned on all sets together.

    Args:
        context: batch context, see `predict`.
        fits: False to use such settings as they are, without tuning; for test sets.
    """
    metrics, classes, texts = {}, {}, {}
    doubts: list[str] = []
    best = task.recipe.training.metric_for_best_model or ""
    sets = sorted(validation_sets, key=lambda name: not best.endswith(_suffix(name)))
    mixes = len(task.recipe.data_sets) > 1
    predicted: dict[str, Sequence[Any]] = {}
    measured_sets = {}
    for name in sets:
        with task.using(name):
            samples = validation_sets[name]
            condensed = task.condense(model, samples, world, bf16, context)
            if condensed is None:
                condensed = predict(task, model, samples, world, bf16, context)
            predicted[name] = condensed
    if task.purpose == "train" and sets and fits:
        fitted = sets if mixes else sets[:1]
        every = predicted[fitted[0]]
        if len(fitted) > 1:
            every = [prediction for name in fitted for prediction in predicted[name]]
        task.fit(every, joined([validation_sets[name] for name in fitted]))
    for name in sets:
        samples, predictions = validation_sets[name], predicted[name]
        with task.using(name):
            of_set = task.score(predictions, samples)
            if task.own_metrics:
                measured = task.own_metrics(*task.compared(predictions, samples))
                of_set |= gather_over_ranks(measured)[0]  # ranks may compute different values
            if report := task.class_report(predictions, samples):
                classes[name] = report.to_dict()
            if written := task.texts(predictions, samples):
                texts[name] = written
            if doubt := task.doubts(predictions, samples):
                doubts.append(f"{name}: {doubt}")
        measured_sets[name] = of_set
        suffix = _suffix(name) if len(sets) > 1 else ""
        metrics.update({f"{metric}{suffix}": value for metric, value in of_set.items()})
    if mixes:
        metrics = {**mean_metrics(measured_sets, validation_sets, task.loss_column), **metrics}
    task.score_notices = doubts
    return Scores(metrics, classes, texts)


def mean_metrics(
    of_sets: Mapping[str, Mapping[str, float]], sets: Mapping[str, Samples], loss_column: str
) -> dict[str, float]:
    """Return the mean of each metric over the sets that have this metric.

    Each set is weighted by its number of samples; for the loss, by its number of values in
    `loss_column` instead. The mean perplexity is computed from the mean loss.
    """
    samples = {name: len(sets[name]) for name in of_sets}
    values = {name: sum(sets[name].lengths(loss_column)) for name in of_sets if loss_column}
    means: dict[str, float] = {}
    for metric in dict.fromkeys(name for metrics in of_sets.values() for name in metrics):
        having = [name for name, metrics in of_sets.items() if metric in metrics]
        sizes = values if loss_column and metric == "loss" else samples
        total = sum(sizes[name] for name in having)
        means[metric] = sum(of_sets[name][metric] * sizes[name] for name in having) / total
    if {"loss", "perplexity"} <= means.keys():
        means["perplexity"] = perplexity(means["loss"])
    return means


def _suffix(name: str) -> str:
    return f"_{name.removeprefix('validation_').removeprefix('test_')}"


def evaluate_tests(
    task: Task, model: PreTrainedModel, test_sets: Mapping[str, Samples], world: World, bf16: bool,
    context: BatchContext | None,
) -> Scores:  # fmt: skip
    """Evaluate a trained model on the test sets; the names of the metrics begin with `test_`.

    Settings such as thresholds are not tuned on these sets.
    """
    doubts = [*task.score_notices]
    scores: Scores = evaluate(task, model, test_sets, world, bf16, context, fits=False)
    task.score_notices = [*doubts, *task.score_notices]
    metrics = {f"{TEST}_{name}": value for name, value in scores.metrics.items()}
    return scores._replace(metrics=metrics)


class Evaluator:
    """Evaluates a model while it is trained.

    Args:
        optimizer: optimizer that trains the model; an evaluation first waits for its pending
            gathers.
        bf16: True if the model computes in bf16.
    """

    def __init__(
        self, task: Task, model: PreTrainedModel, optimizer: OptimizerStep, world: World,
        bf16: bool, log: ProgressLog,
    ) -> None:  # fmt: skip
        self._task, self._model = task, model
        self._pending, self._context = optimizer.pending_gathers, optimizer.context
        self._world, self._bf16, self._log = world, bf16, log

    def compute_reference(self, job: Job, sets: Sequence[Samples]) -> None:
        """Pass the task the predictions of its reference model: a teacher, or the untrained model.

        The predictions are computed once and saved in the run's folder on each host. If this run
        restarts, or another run resumes it, the saved predictions are reused.
        """
        other, key = self._task.reference_model, self._task.reference_key
        for samples in sets:
            name = f"reference-{key}{samples.about['sha256'][:16]}.json"
            kept = _read_kept([folder / name for folder in job.run_dirs], len(samples))
            ranks = [rank for rank, has in enumerate(gather_over_ranks(bool(kept))) if has]
            if ranks:
                mine = kept if self._world.rank == ranks[0] else []
                predictions = gather_over_ranks(mine)[ranks[0]]
            else:
                report(0, "evaluating")
                what = f"evaluating {len(samples)} samples before the first step"
                self._log.write("phase", doing=what)
                self._pending.wait()
                model, context = (self._model, self._context) if other is None else (other, None)
                predictions = predict(self._task, model, samples, self._world, self._bf16, context)
                if folder_led(self._world.rank, job.shared_folder) is not None:
                    write_atomically(job.run_dir / name, json.dumps(predictions))
            if notice := self._task.set_reference(samples, predictions):
                self._log.notice(notice)
        self._task.reference_model = None  # frees its memory

    def evaluate(self, sets: Mapping[str, Samples], step: int, epoch: float) -> Scores:
        """Evaluate after step `step`, log the scores and return them.

        When this method returns, the model is in training mode again.
        """
        self._pending.wait()
        began = time.perf_counter()
        scores: Scores = evaluate(
            self._task, self._model, sets, self._world, self._bf16, self._context
        )
        seconds = round(time.perf_counter() - began, 3)
        self._log.write("evaluation", step=step, epoch=epoch, seconds=seconds, **scores._asdict())
        self._model.train()
        return scores


def _read_kept(paths: Sequence[Path], count: int) -> list[Any]:
    """Return the predictions in the first file that contains exactly `count` predictions, or []."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            predictions = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(predictions, list) and len(predictions) == count:
                return predictions
    return []


def run_on_sets(
    job: Job,
    task: Task,
    model: PreTrainedModel,
    sets: Mapping[str, Samples],
    samples_dir: Path,
    world: World,
) -> dict[str, Any]:
    """Evaluate or predict, depending on the job, and return the fields of the event `result`.

    Predictions are written as JSON lines into the run's folder on the head. Each line has a row and
    its prediction.
    """
    started = time.perf_counter()
    bf16 = job.precision == "bf16"
    result: dict[str, Any] = {"model": "", "metrics": {}, "world_size": world.size}
    if job.purpose == PREDICT:
        samples = sets[PREDICTED]
        predictions = predict(task, model, samples, world, bf16)
        if world.rank == 0:
            answers = task.answers(predictions, samples)
            write_predictions(samples_dir / ROWS_FILE, answers, job.run_dir / PREDICTIONS)
            result["predictions"] = str(job.run_dir / PREDICTIONS)
    else:
        result |= evaluate(task, model, sets, world, bf16)._asdict()
    seconds = time.perf_counter() - started
    if task.shows_answers and world.rank == 0:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            name, samples = next(iter(sets.items()))
            result["texts"] = {name: samples_beside_references(task, model, samples)}
    speed = sum(map(len, sets.values())) / seconds
    return {**result, "train_seconds": seconds, "samples_per_second": speed}


def write_predictions(rows: Path, answers: list[dict[str, Any]], folder: Path) -> None:
    """Write a JSON lines file with rows and predictions into a new folder.

    Args:
        rows: JSON lines file with the rows to predict.
        answers: fields to add, for each row.
        folder: new folder.
    """
    with (
        rows.open(encoding="utf-8") as lines,
        new_folder(folder) as partial,
        (partial / f"{PREDICTIONS}.jsonl").open("w", encoding="utf-8") as file,
    ):
        for line, answer in zip(lines, answers, strict=True):
            file.write(json.dumps({**json.loads(line), **answer}, ensure_ascii=False) + "\n")
