"""The program of one rank of a run: `mpirun ... python -m ftcluster_train.engine.rank RUN_DIR`."""

import gc
import signal

if __name__ == "__main__":
    gc.disable()  # garbage collection would take a quarter of the imports' CPU time
    # threads that libraries start inherit this block, see `io.signals`
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # when a host shuts down, SIGHUP follows SIGTERM
    from ftcluster_train.engine.model_lists import read_models_once

    read_models_once()

import errno
import logging
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistBackendError
from transformers import PreTrainedModel, set_seed
from transformers.utils import logging as transformers_logging

from ftcluster_common.data.data_files import TRAIN
from ftcluster_common.data.data_sets import is_test, split_name
from ftcluster_common.given_files import GivenFileError
from ftcluster_common.models.adapter_config import read_adapters
from ftcluster_common.models.row_hashes import ROWS
from ftcluster_common.models.sentence_modules import MODULES
from ftcluster_common.protocol.class_report import read_report
from ftcluster_common.protocol.cpu_list import format_cpus
from ftcluster_common.protocol.job import GENERATE, Job
from ftcluster_common.protocol.launch import own_rank
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.spec import Options
from ftcluster_kernels.nf4 import dtype_of, shape_of
from ftcluster_kernels.products import has_amx, has_avx512_bf16
from ftcluster_train.comm.world import (
    World,
    abandon_world,
    check_equal_samples,
    gather_over_ranks,
    host_led,
    join_world,
    leave_world,
)
from ftcluster_train.engine.adapters import (
    add_adapters,
    merge_adapters,
    saved_parameters,
    trained_config,
    use_adapters,
)
from ftcluster_train.engine.checkpoints import check_space, save_model
from ftcluster_train.engine.class_head import (
    begin_head,
    head_notice,
    head_of,
    settings_to_load,
)
from ftcluster_train.engine.continued import begin_with_adapters, load_adapters
from ftcluster_train.engine.data.download import hash_of_weights
from ftcluster_train.engine.data.run_code import code_failure, open_job, own_metrics
from ftcluster_train.engine.data.run_inputs import Inputs, read_inputs
from ftcluster_train.engine.data.token_samples import Samples, joined
from ftcluster_train.engine.evaluation import run_on_sets
from ftcluster_train.engine.generation import generate
from ftcluster_train.engine.loop import LoopResult, train
from ftcluster_train.engine.model_card import MeasuredModel, write_card
from ftcluster_train.engine.models import (
    check_tokens,
    load_config,
    load_model,
    load_tokenizer,
    new_weights,
    new_weights_notice,
)
from ftcluster_train.engine.new_tokens import add_token_rows, extend_embeddings, token_ids
from ftcluster_train.engine.optim.ipex import load_ipex
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.saved_check import SavedCheck
from ftcluster_train.engine.tasks.base import TEST_ROWS, VALIDATION_ROWS, Task
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.engine.trackers import make_trackers
from ftcluster_train.errors import STOPPED_LINE, TrainError, TrainingStopped, error_line
from ftcluster_train.health.host_benchmark import matmul_gflops, matmul_shapes, weights_of
from ftcluster_train.io.events import EventWriter
from ftcluster_train.io.rank_status import report, report_signal, write_stacks_on_signal
from ftcluster_train.io.signals import Received, take_signals
from ftcluster_train.rank.bind import memory_nodes

SHOWN_CLASSES = 8
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
MUCH_FASTER = 1.2  # ratio of matmul rates from which the other precision is suggested
DOING = {"evaluate": "evaluating", "predict": "predicting"}


def run(job: Job) -> None:
    """Run the job (train, evaluate or predict); every rank must call this function.

    Raises:
        TrainError: the run failed because of a problem that the user can fix.
        TrainingStopped: a rank was asked to stop.
    """
    stop_asked = listen_for_stop()
    inputs = read_inputs(job.run_dir)
    if job.ipex:
        load_ipex()  # fail early
    world = join_world()
    events = EventWriter(job.run_dir) if world.rank == 0 else None
    log = ProgressLog(events)
    write_placement(log)
    report(0, "loading")
    if job.purpose == GENERATE:
        log.write("phase", doing="loading the model")
        generate(job, inputs, log, stop_asked)
    else:
        log.write("phase", doing="loading model and data")
        task, model, samples = _load_checked(job, inputs, log)
        if job.purpose == "train":
            _train(job, inputs, task, model, samples, world, log, events, stop_asked)
        else:
            _measure(job, inputs, task, model, samples, world, log)
    leave_world()


def _load_checked(
    job: Job, inputs: Inputs, log: ProgressLog
) -> tuple[Task, PreTrainedModel, dict[str, Samples]]:
    """Load task, model and samples, compare them between ranks, and log notices for the user."""
    log.write("data", **inputs.report)
    for notice in inputs.notices:
        log.notice(notice)
    check_equal_commits(inputs)
    task, model, samples = load(job, inputs)
    if job.code.metrics:
        task.own_metrics = own_metrics(job.code.metrics, job.run_dir / job.code.metrics.name)
    check_equal_samples("".join(split.about["sha256"] for split in samples.values()))
    largest = max(split.about["largest"]["input_ids"] for split in samples.values())
    vocabulary = model.get_input_embeddings().num_embeddings
    check_tokens(vocabulary, largest, job.recipe.tokenizer or job.recipe.model)
    task.check_model(model)
    for notice in task.model_notices:
        log.notice(notice)
    if job.purpose == "train" and (notice := new_weights_notice(model, not task.trains_head)):
        log.notice(notice)
    if notice := head_notice(model):
        log.notice(notice)
    return task, model, samples


def _measure(
    job: Job, inputs: Inputs, task: Task, model: PreTrainedModel, samples: dict[str, Samples],
    world: World, log: ProgressLog,
) -> None:  # fmt: skip
    """Evaluate or predict, and log the result."""
    count = sum(map(len, samples.values()))
    log.write("phase", doing=f"{DOING[job.purpose]} {count} samples")
    result = run_on_sets(job, task, model, samples, Path(inputs.samples), world)
    warn_of_unpredicted_classes(log, result.get("classes", {}))
    for notice in task.score_notices:
        log.notice(notice)
    log.write("result", **result)


def _train(
    job: Job, inputs: Inputs, task: Task, model: PreTrainedModel, samples: dict[str, Samples],
    world: World, log: ProgressLog, events: EventWriter | None, stop_asked: Callable[[], bool],
) -> None:  # fmt: skip
    """Train the model, and save it on rank 0."""
    adapters = job.recipe.adapters
    if adapters:
        set_seed(job.recipe.training.seed)
        add_adapters(model, adapters)
        continued = read_adapters(Path(inputs.adapters)).token_ids if inputs.adapters else {}
        add_token_rows(model, token_ids(task.tokenizer, job.recipe.listed_tokens), continued)
        if inputs.adapters:
            load_adapters(model, Path(inputs.adapters))
    bf16 = job.precision == "bf16"
    train_sets = []
    for data_set in job.recipe.data_sets:
        split = split_name(TRAIN, data_set.name)
        with task.using(data_set.name):
            train_sets.append(task.prepare_train_set(model, samples.pop(split), world, bf16, log))
    train_set = joined(train_sets)
    tests = {
        name: samples.pop(name) for name in [*samples] if job.recipe.has_test and is_test(name)
    }
    length = sum(train_set.lengths("input_ids")) / len(train_set)
    write_matmul_speed(log, job, model, length, world.size)
    merged = adapters is not None and adapters.merge_adapters
    trackers = check = None
    if world.rank == 0:
        saved = model.parameters() if merged else saved_parameters(model)
        check_space(job.run_dir, sum(shape_of(p).numel() * dtype_of(p).itemsize for p in saved))
        for name in (VALIDATION_ROWS, TEST_ROWS):
            drawn = Path(inputs.samples) / name
            if drawn.exists():
                shutil.copyfile(drawn, job.run_dir / name)
        trackers = make_trackers(job.recipe.training, job.run_dir, job.run, log.notice)
        log = ProgressLog(events, trackers)
        plain = not (job.recipe.from_scratch or job.recipe.load_in_4bit)
        check = SavedCheck(
            task, next(iter(samples.values()), train_set), inputs.model if plain else "", log
        )
    try:
        done, trained = train(
            job, task, model, train_set, samples, world, log, stop_asked=stop_asked, check=check,
            sizes=[*map(len, train_sets)], test_sets=tests,
        )  # fmt: skip
    finally:
        if trackers:
            trackers.close(failed=sys.exc_info()[0] is not None)
    if check:
        _save(job, task, trained, done, world, log, check)
    gather_over_ranks("saved")  # wait: until the model is saved, a restart needs the snapshots
    if host_led(world.rank) is not None:
        for run in job.run_dirs:
            shutil.rmtree(run / "snapshots", ignore_errors=True)


def _save(
    job: Job, task: Task, trained: PreTrainedModel, done: LoopResult, world: World,
    log: ProgressLog, check: SavedCheck,
) -> None:  # fmt: skip
    """Save the trained model, load it again, and check that both models give the same results."""
    adapters = job.recipe.adapters
    log.write("phase", doing="saving the model")
    folder = job.run_dir / "model"
    outputs = check.outputs(trained)
    if adapters is not None and adapters.merge_adapters:
        merge_adapters(trained)
    measured = MeasuredModel(done.metrics, done.classes, done.step, world.size)
    save_model(trained, task, folder, lambda path: write_card(path, job, task, measured))
    log.write("phase", doing="comparing the saved model with the trained one")
    check.check(folder, trained, outputs)
    warn_of_unpredicted_classes(log, done.classes, job.recipe.options)
    for notice in task.score_notices:
        log.notice(notice)
    log.write("result", model=str(folder), world_size=world.size, **asdict(done))


def check_equal_commits(inputs: Inputs) -> None:
    """Check that all hosts have downloaded the same commits from the Hub.

    Raises:
        TrainError: the commits differ; the message names them.
    """
    of_ranks = gather_over_ranks(inputs.commits)
    for what in sorted({name for of_rank in of_ranks for name in of_rank}):
        commits = sorted({of_rank.get(what, "none") for of_rank in of_ranks})
        if len(commits) > 1:
            raise TrainError(
                f"the hosts have downloaded different commits of the {what}: {', '.join(commits)}",
                f"name one of them: {what}=NAME@COMMIT",
            )


def warn_of_unpredicted_classes(
    log: ProgressLog, classes: Mapping[str, Any], options: Options | None = None
) -> None:
    """Log a notice about classes in the validation sets that the model never predicts.

    Args:
        options: task options, for advice on changing them; None if the job does not train.
    """
    unweighted = options is not None and spec_of(options).lacks_class_weights(options)
    for name, class_report in classes.items():
        report = read_report(class_report)
        if missing := report.never_predicted:
            shown = ", ".join(missing[:SHOWN_CLASSES])
            more = f" and {len(missing) - SHOWN_CLASSES} more" if missing[SHOWN_CLASSES:] else ""
            rows = {scores.name: scores.support for scores in report.classes}
            rare = 2 * min(rows[name] for name in missing) <= max(rows.values())
            weights = ", class_weights=balanced" * (unweighted and rare and not report.several)
            advice = f"; what may help: more epochs, a higher learning rate{weights}"
            log.notice(
                f"NEVER PREDICTED for any row of {name}: {shown}{more}{advice * bool(options)}"
            )


def listen_for_stop() -> Callable[[], bool]:
    """Treat SIGTERM and SIGINT as stop requests, and report which process sent them.

    Returns:
        A function that returns True once a stop was requested.
    """
    requests: list[Received] = []

    def take(received: Received) -> None:
        requests.append(received)
        if not received.internal:
            report_signal(received.to_dict())

    take_signals((signal.SIGTERM, signal.SIGINT), take)
    return lambda: bool(requests)


def load(job: Job, inputs: Inputs) -> tuple[Task, PreTrainedModel, dict[str, Samples]]:
    """Return the task, the model and the samples of each split."""
    recipe, tokenizer = job.recipe, load_tokenizer(inputs.tokenizer)
    folders = [path for path in sorted(Path(inputs.samples).iterdir()) if path.is_dir()]
    samples = {folder.name: Samples(folder) for folder in folders}
    if job.purpose != "train":
        config = trained_config(recipe, inputs.model, tokenizer, inputs.adapters)
        task = make_task(recipe, tokenizer, job.purpose, config)
        trained = task.has_head and not inputs.adapters
        model = load_model(
            task.model_class, recipe, inputs.model, config, trained, any_head=bool(inputs.adapters)
        )
        if inputs.adapters:
            loaded = use_adapters(model, Path(inputs.adapters), merge=True)
            _read_beside(model, inputs.adapters)
            if task.has_head and (missing := sorted(new_weights(model) - loaded)):
                what = f"neither {inputs.adapters} nor {inputs.model} has the weights {missing[0]}"
                raise TrainError(what, "use the model that the adapters were trained with")
        return task, model, samples
    task = make_task(recipe, tokenizer)
    first = samples[split_name(TRAIN, recipe.data_sets[0].name)]
    task.columns = first.about.get("columns", {})
    task.about_data = {**inputs.report, "commits": inputs.commits}
    task.trained_rows = Path(inputs.samples) / ROWS
    if inputs.teacher:
        task.load_teacher(Path(inputs.teacher))
    settings = task.model_settings(first)
    head = head_of(recipe, inputs.model, task.model_class, settings, inputs.adapters)
    config = load_config(recipe, inputs.model, tokenizer, **settings)
    to_load = load_config(recipe, inputs.model, tokenizer, **settings_to_load(head, settings))
    set_seed(recipe.training.seed)  # makes random weights the same on all ranks
    frozen = recipe.lora_r is not None and job.precision == "bf16"
    dtype = torch.bfloat16 if frozen else torch.float32
    model = load_model(
        task.model_class, recipe, inputs.model, to_load, dtype=dtype, in_4bit=recipe.load_in_4bit,
        any_head="id2label" in settings,
    )  # fmt: skip
    if not recipe.from_scratch:
        extend_embeddings(model, token_ids(tokenizer, recipe.listed_tokens), inputs.new_token_ids)
    if inputs.adapters:
        begin_with_adapters(model, Path(inputs.adapters), merge=recipe.adapters is None)
        _read_beside(model, inputs.adapters)
        if not inputs.teacher:  # the reference is the base model with these adapters
            task.reference_key = f"{hash_of_weights(Path(inputs.adapters))}-"
    begin_head(model, head, task.model_class, config)
    return task, model, samples


def _read_beside(model: PreTrainedModel, adapters: str) -> None:
    """Let the task read pooling, prompts and other settings from the folder of the adapters."""
    if (Path(adapters) / MODULES).is_file():
        model.name_or_path = adapters


def write_placement(log: ProgressLog) -> None:
    """Log the host and CPUs of each rank; every rank must call this function."""
    place = {
        "host": socket.gethostname(),
        "cpus": format_cpus(os.sched_getaffinity(0)),
        "memory_nodes": memory_nodes(),
        "threads": torch.get_num_threads(),
    }
    places = enumerate(gather_over_ranks(place))
    log.write("placement", ranks=[{"rank": rank, **place} for rank, place in places])


def write_matmul_speed(
    log: ProgressLog, job: Job, model: PreTrainedModel, length: float, ranks: int
) -> None:
    """Log how fast each rank multiplies matrices while all ranks do so at the same time.

    Args:
        length: mean number of tokens per sample.
        ranks: number of ranks in the run.
    """
    shapes, recipe = matmul_shapes(model), job.recipe
    parts = ranks * recipe.training.gradient_accumulation_steps
    tokens = round(length * recipe.batch_size / parts)
    gflops = matmul_gflops(shapes, tokens, DTYPES[job.precision])
    log.write("products", gflops=gather_over_ranks(gflops), weights=weights_of(shapes))
    if text := precision_notice(job, shapes, tokens, gflops):
        log.write("notice", message=text)


def precision_notice(
    job: Job, shapes: Mapping[tuple[int, int], int], tokens: int, gflops: float
) -> str:
    """Return a notice if matmuls are faster in the other precision on every rank, otherwise "".

    The plan chooses a precision by the CPU's generation, which a hypervisor may state wrongly. This
    function measures the other precision where the generation matters: with AVX512-BF16 and
    without AMX. Every rank must call it.

    Args:
        gflops: measured rate of the matmuls in the job's precision.
    """
    other, ratio = "fp32" if job.precision == "bf16" else "bf16", 0.0
    if job.recipe.precision != "fp32" and has_avx512_bf16() and not has_amx() and gflops:
        ratio = matmul_gflops(shapes, tokens, DTYPES[other]) / gflops
    least = min(gather_over_ranks(ratio))
    if least <= MUCH_FASTER:
        return ""
    return (
        f"this CPU multiplies matrices {least:.1f} times as fast in {other} as in {job.precision}: "
        f"set precision={other}"
    )


def main() -> int:
    """Run the program and return its exit code."""
    gc.freeze()  # imported objects are never freed
    gc.enable()
    logging.captureWarnings(True)
    transformers_logging.disable_progress_bar()
    write_stacks_on_signal()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    run_dir = Path(sys.argv[1])
    try:
        run(open_job(run_dir))
    except TrainingStopped:
        if own_rank(os.environ) == 0:
            print(STOPPED_LINE, flush=True)
        leave_world()
    except TrainError as error:
        return fail(error)
    except GivenFileError as error:
        return fail(TrainError(str(error), "start again as a new run"))
    except DistBackendError as error:  # the MPI backend's message names rank, host and call
        traceback.print_exc()
        hint = "if it happens again, train with gloo: training.ddp_backend=gloo"
        return fail(TrainError(str(error), hint, restartable=True))
    except OSError as error:
        traceback.print_exc()
        return fail(disk_full(run_dir) if error.errno == errno.ENOSPC else None)
    except Exception as error:  # an error in the user's own task, or a bug in ftcluster
        failure = code_failure(error)
        traceback.print_exc()
        return fail(failure)
    return 0


def fail(error: TrainError | None) -> int:
    """Print an error for the supervisor, leave the other ranks without waiting, and return 1."""
    if error:
        print(error_line(error), flush=True)
    abandon_world()
    return 1


def disk_full(folder: Path) -> TrainError:
    """Return the error for a full disk."""
    free = shutil.disk_usage(folder).free
    return TrainError(
        f"the disk of {folder} is full ({free / 1e6:.0f} MB free)",
        "free some space there; the folders of all runs are next to this folder",
    )


if __name__ == "__main__":
    sys.exit(main())
