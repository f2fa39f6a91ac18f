"""Going on from a state that was saved."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ftcluster_common.job import Job
from ftcluster_train.comm.world import World, gather_over_ranks, host_led
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.state_files import NUMBERS, newest_state, read_tensors
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import TrainError

SHOWN = 3  # names of parameters in a message


def state_folders(job: Job) -> list[Path]:
    """Where this host may have states of this run, and of those that it continues."""
    return [run / name for run in job.run_dirs for name in ("checkpoints", "snapshots")]


def resume(
    job: Job, optimizer: OptimizerStep, world: World, new: TrainState, log: ProgressLog
) -> TrainState:
    """Put a training where the newest state of any host is; every rank calls it.

    One rank sends its tensors to the others, so one host with the state is enough.

    Args:
        new: of this training before its first step.

    Returns:
        `new` where there is no state.

    Raises:
        TrainError: the state is that of another model, or there is none and the job needs one.
    """
    start = str(job.recipe.training.resume_from_checkpoint or "")
    needed = start or (f"run {job.resume[0]}" if job.resume and job.must_resume else "")
    folders = [*state_folders(job), *([Path(start)] if start else [])]
    damaged: list[str] = []
    newest = None
    if host_led(world.rank) is not None:  # the other ranks of a host have the same folders
        newest = newest_state(folders, lambda folder: damaged.append(str(folder)))
    step, path = newest or (0, None)
    by_rank: list[tuple[int, list[str]]] = gather_over_ranks((step, damaged))
    for rank, (_, names) in enumerate(by_rank):
        for name in names:
            log.notice(f"{name} on the host of rank {rank} is damaged and is not used")
    steps = [step for step, _ in by_rank]
    if max(steps) == 0 and needed:
        raise TrainError(
            f"{needed} has no checkpoint of ftcluster that is whole, on any host",
            "to start from the weights of a model folder: --model DIR",
        )
    if max(steps) == 0:
        return new
    source = steps.index(max(steps))
    tensors = optimizer.state()
    assert tensors is not None  # the control node does not resume with IPEX
    problem, text = "", "{}"
    values: dict[str, torch.Tensor] = {}
    if world.rank == source and path:
        values, problem = read_tensors(path, tensors.header)
        text = (path / NUMBERS).read_text(encoding="utf-8")
    problem, text = gather_over_ranks((problem, text))[source]
    state = TrainState(**json.loads(text))
    if problem := problem or _other_layout(state.layout, new.layout):
        raise TrainError(f"the training cannot be resumed: {problem}", "start it anew")
    tensors.load(values, source)
    optimizer.state_loaded(state.step)
    changed = [
        f"{name} from {previous} to {new.settings[name]}"
        for name, previous in state.settings.items()
        if new.settings.get(name, previous) != previous
    ]
    differs = f"; changed since then: {', '.join(changed)}" if changed else ""
    log.notice(f"resumed after step {state.step}{differs}")
    return replace(state, settings=new.settings)


def _other_layout(saved: Sequence[str], wanted: Sequence[str]) -> str:
    """In which parameters a state is not that of this model, or ""; sizes alone may be the same."""
    if list(saved) == list(wanted):
        return ""
    lost = [name for name in saved if name not in wanted]
    more = [name for name in wanted if name not in saved]
    if not lost and not more:
        return "its state has the parameters of this model in another order"
    differences = [
        f"{what} {', '.join(names[:SHOWN])}" + (" ..." if len(names) > SHOWN else "")
        for what, names in (("with", lost), ("without", more))
        if names
    ]
    return f"its state is of another model, {' and '.join(differences)}"
