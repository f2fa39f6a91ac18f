"""One process of bench/large_data, with the Python of a host's stack.

    PYTHON -m bench.large_data_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a run. OPTIONS is a JSON object with `part` (`prepare`, `train` or
`evaluate`) and `limit`: the maximum number of bytes of private memory that the process may
allocate; 0 for no limit. Prints one JSON object.
"""

import json
import resource
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from ftcluster_common.protocol.job import Job, read_job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.evaluation import evaluate
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.step import Batches

WORLD = World(rank=0, size=1, backend="gloo")
SECONDS = 0.02  # between two readings of the memory
WORDS = [f"word{number:036}" for number in range(5000)]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TRAIN = "train"
STEPS = 30  # number of steps of the training


class PeakMemory:
    """Measures the peak of this process's anonymous memory in a `with` block.

    Anonymous memory does not include pages of mapped files, which the kernel can drop and read
    again.

    Attributes:
        before: bytes at the begin of the block.
        peak: largest number of bytes in the block.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = self.peak = _anonymous()

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS):
            self.peak = max(self.peak, _anonymous())


def main() -> int:
    """Prepare or train once, and return the exit code."""
    logging.set_verbosity_error()
    run_dir, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if options["limit"]:  # counts private writable mappings, see getrlimit(2)
        resource.setrlimit(resource.RLIMIT_DATA, (options["limit"],) * 2)
    job = read_job(run_dir)
    began = time.perf_counter()
    with PeakMemory() as memory:
        measured = PARTS[options["part"]](job, run_dir)
    measured |= {"before": memory.before, "peak": memory.peak}
    print(json.dumps(measured | {"seconds": time.perf_counter() - began}))
    return 0


def _prepare(job: Job, run_dir: Path) -> dict[str, Any]:
    _make_tokenizer(Path(job.recipe.tokenizer or ""))
    inputs = prepare(job)
    write_inputs(run_dir, inputs)
    files = [path for path in Path(inputs.samples).rglob("*") if path.is_file()]
    return {"token_bytes": sum(path.stat().st_size for path in files)}


def _train(job: Job, run_dir: Path) -> dict[str, Any]:
    """Read all batches of an epoch, then train for a few steps."""
    task, model, samples = load(job, read_inputs(run_dir))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    batches = Batches(job, task, samples[TRAIN], WORLD)
    rows = 0
    for step, indices in batches.after(0):
        rows += batches.read(step, indices).samples
    training = replace(job.recipe.training, max_steps=STEPS)
    job = replace(job, recipe=replace(job.recipe, training=training))
    train(job, task, model, samples[TRAIN], {}, WORLD, ProgressLog())
    return {"rows": rows}


def _evaluate(job: Job, run_dir: Path) -> dict[str, Any]:
    """Search the corpus of the validation set."""
    task, model, samples = load(job, read_inputs(run_dir))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    scores = evaluate(task, model, {"validation": samples["validation"]}, WORLD, False)
    return {"texts": len(samples["validation"]), "metrics": scores.metrics}


PARTS = {"prepare": _prepare, "train": _train, "evaluate": _evaluate}


def _make_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token for each word."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(name, SPECIAL.index(name)) for name in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    sys.exit(main())
