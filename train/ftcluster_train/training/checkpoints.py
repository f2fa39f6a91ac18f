"""Models that are saved while the training goes on, each whole or not to be seen."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.job import Job
from ftcluster_train.io.fsync import remove
from ftcluster_train.optim.optimizer_step import Update
from ftcluster_train.training.best import Best
from ftcluster_train.training.progress import Tell
from ftcluster_train.training.save_model import save_model


class Checkpoints:
    """Folders `checkpoints/checkpoint-STEP` of a run, as `from_pretrained` reads them.

    Rank 0 writes them; the others call it alike and go on.

    Args:
        job: the run.
        tokenizer: saved with each.
        update: has the model.
        writes: whether this is rank 0.
        tell: where it is told.
    """

    def __init__(
        self,
        job: Job,
        tokenizer: PreTrainedTokenizerBase,
        update: Update,
        writes: bool,
        tell: Tell,
    ) -> None:
        training = job.recipe.training
        self._folder = job.run_dir / "checkpoints"
        self._tokenizer, self._update, self._writes, self._tell = tokenizer, update, writes, tell
        self._limit = training.save_total_limit
        self._judges = training.load_best_model_at_end or training.save_strategy == "best"
        self._best = Best(training)
        self._best_metrics: dict[str, float] = {}
        self._saved: list[Path] = []

    def judge(self, metrics: Mapping[str, float], step: int) -> bool:
        """Whether the model, which has these metrics, is the best so far.

        Raises:
            TrainError: the metric that the recipe judges by is not among them.
        """
        improved = self._judges and self._best.update(metrics, step)
        if improved:
            self._best_metrics = dict(metrics)
        return improved

    def save(self, step: int) -> Path:
        """Save the model after `step`; of older ones only those within the limit are left.

        Raises:
            TrainError: the disk is full.
        """
        folder = self._path(step)
        if self._writes and folder not in self._saved:
            self._folder.mkdir(exist_ok=True)
            try:
                save_model(self._update.release(), self._tokenizer, folder)
            finally:
                self._update.hold()
            self._saved.append(folder)
            self._tell.checkpoint(step, folder)
            if self._limit is not None:
                self._forget(self._limit)
        return folder

    def load_best(self, model: PreTrainedModel) -> dict[str, float]:
        """Give `model`, in fp32, the weights of the best checkpoint; returns its metrics.

        Where one checkpoint shall be kept, it is that one.
        """
        if self._writes and self._best.step is not None:
            best = self._path(self._best.step)
            model.load_state_dict(type(model).from_pretrained(best).state_dict())
            if self._limit == 1:
                self._remove([folder for folder in self._saved if folder != best])
        return self._best_metrics

    def _path(self, step: int) -> Path:
        return self._folder / f"checkpoint-{step}"

    def _forget(self, limit: int) -> None:
        """Remove the oldest ones, but not the best nor the last."""
        best = None if self._best.step is None else self._path(self._best.step)
        spare = [folder for folder in self._saved[:-1] if folder != best]
        self._remove(spare[: max(0, len(self._saved) - limit)])

    def _remove(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            remove(folder)
            self._saved.remove(folder)
