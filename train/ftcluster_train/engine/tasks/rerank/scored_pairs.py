"""The scores of many pairs in little memory: 16 bytes for each pair on every rank."""

import base64
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ftcluster_train.comm.world import World, gather_over_ranks
from ftcluster_train.engine.data.sampler import INDEX
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.predictions import predictions_of_rank
from ftcluster_train.patching.batch_context import BatchContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FLOAT = "d"


class ScoredPairs(Sequence[tuple[float, float]]):
    """The logit and the loss of each pair.

    Args:
        logits: logit of each pair.
        losses: loss of each pair.
    """

    def __init__(self, logits: "array[float]", losses: "array[float]") -> None:
        self._logits, self._losses = logits, losses

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ScoredPairs(self._logits[index], self._losses[index])
        return self._logits[index], self._losses[index]


def score_pairs(
    task: Task, model: "PreTrainedModel", samples: Samples, world: World, bf16: bool,
    context: BatchContext | None,
) -> ScoredPairs:  # fmt: skip
    """Return the scores of all pairs of a set; every rank returns the same scores.

    Args:
        context: batch context, see `predictions.predict`.
    """
    numbers, logits, losses = array(INDEX), array(FLOAT), array(FLOAT)
    indices = range(len(samples))
    for number, (logit, loss) in predictions_of_rank(
        task, model, samples, world, bf16, context, indices
    ):
        numbers.append(number)
        logits.append(logit)
        losses.append(loss)
    empty = [0.0] * len(samples)
    all_logits, all_losses = array(FLOAT, empty), array(FLOAT, empty)
    own = [_encoded(values) for values in (numbers, logits, losses)]
    for written in gather_over_ranks(own):
        places = array(INDEX, base64.b64decode(written[0]))
        for values, text in zip((all_logits, all_losses), written[1:], strict=True):
            for place, value in zip(places, array(FLOAT, base64.b64decode(text)), strict=True):
                values[place] = value
    return ScoredPairs(all_logits, all_losses)


def _encoded(values: "array[Any]") -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
