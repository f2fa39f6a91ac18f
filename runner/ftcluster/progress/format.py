"""Formats the facts of a setup and a run as short texts."""

import time
from datetime import datetime

from ftcluster.progress.state import HostProgress, RunProgress, SetupProgress
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted

# descriptions of the stages of setup, check and teardown
STAGES = {
    "preflight": "inspect the hosts",
    "system": "set allocator, limits and firewall",
    "stack": "install Python, torch and transformers",
    "mesh": "connect the head with the hosts",
    "verify": "check that everything works",
    "teardown": "remove what setup installed",
}


def stage_line(stage: str) -> str:
    """Format the line that announces a stage.

    >>> stage_line("mesh")
    'mesh: connect the head with the hosts ...'
    """
    return f"{stage}: {STAGES[stage]} ..." if stage in STAGES else f"{stage} ..."


def waiting_lines(progress: SetupProgress, now: float, seconds: float) -> list[str]:
    """Return a line, with the hosts, for each activity that has run for at least `seconds` seconds.

    Args:
        now: time.monotonic().
    """
    hosts: dict[str, list[str]] = {}
    for name, host in progress.hosts.items():
        if host.busy and now >= host.since + seconds:
            hosts.setdefault(host.activity or host.task, []).append(name)
    return [
        f"{short_names(names)}: {activity} (for "
        f"{duration(now - min(progress.hosts[name].since for name in names))})"
        for activity, names in hosts.items()
        if activity
    ]


def duration(seconds: float) -> str:
    """Format a duration as 7 s, 1:05 or 2:03:04."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def clock(seconds: float) -> str:
    """Format seconds since 1970 as 03:12:45 if the day is today, else as 01-31 03:12:45."""
    at, now = (datetime.fromtimestamp(moment).astimezone() for moment in (seconds, time.time()))
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%m-%d %H:%M:%S}"


def metrics(values: dict[str, float]) -> str:
    """Format metrics as accuracy 0.953, f1 0.955."""
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def shape(progress: RunProgress) -> str:
    """Format the ranks of a run as 2 ranks, 1 thread each, bf16, IPEX, gloo."""
    start = progress.start
    ranks = counted(start["world_size"], "rank")
    threads = counted(start["threads_per_rank"], "thread")
    ipex = "IPEX, " if start["ipex"] else ""
    return f"{ranks}, {threads} each, {start['precision']}, {ipex}{start['backend']}"


def step_line(progress: RunProgress) -> str:
    """Format the latest step; the total is "?" if the event `start` is missing."""
    step, steps = progress.step, progress.start.get("steps", "?")
    return (
        f"step {step['step']}/{steps}  epoch {step['epoch']:.2f}  "
        f"loss {step['loss']:.4f}  {step['samples_per_second']:.1f} samples/s  "
        f"{duration(step['remaining_seconds'])} left"
    )


def checkpoint_line(progress: RunProgress) -> str:
    """Format the latest checkpoint with its folder."""
    step, folder = progress.checkpoint["step"], progress.checkpoint["folder"]
    return f"checkpoint of step {step}: {folder} on the head"


def stopped_line(progress: RunProgress) -> str:
    """Return a line about a stopped run: the reason, the checkpoint and how to continue."""
    run, checkpoint = progress.run, progress.checkpoint
    step = progress.step.get("step", 0)
    parts = [f"stopped: run {run}{f' at step {step}' if step else ''}"]
    if why := progress.end.get("why"):
        parts.append(str(why))
    parts.append("no rank is left running")
    if checkpoint:
        parts.append(checkpoint_line(progress))
        if not progress.start.get("ipex"):
            parts.append(f"continue it: ftcluster train --resume {run}")
    elif progress.start:
        parts.append("no model was saved")
    return "; ".join(parts)


def host_state(host: HostProgress, finished: bool) -> str:
    """Return a host's state as a word."""
    if host.failed:
        return "unreachable" if host.unreachable else "failed"
    return "done" if finished else "running"
