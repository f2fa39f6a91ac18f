"""The format of events.jsonl in a run's folder: one JSON object per line.

Rank 0 writes the file while the ranks run; before and after that, the supervisor writes it.
Standard library only.
"""

from collections.abc import Mapping
from typing import Any

from ftcluster_common.protocol.class_report import ClassReport, read_report

Number = int | float
CHECKPOINT, SNAPSHOT = "checkpoint", "snapshot"
# the fields of each kind of event, besides `event` (the kind) and `time` (seconds since the epoch)
EVENTS: dict[str, dict[str, Any]] = {
    "phase": {"doing": str},
    # a notice to the user, such as that samples were truncated. If a checkpoint or snapshot could
    # not be saved, there is also `failed_save`: CHECKPOINT or SNAPSHOT
    "notice": {"message": str},
    # a notification about the run was delivered: `about` is the run's state (done, failed, stopped
    # or waiting), and `by` is command or webhook. If a delivery fails, there is a notice instead
    "notified": {"about": str, "by": str},
    # size and contents of the data, see `ftcluster_train.engine.data_report`
    "data": {"columns": dict, "sets": list, "samples": list},
    # the ranks are restarted; `message` is the reason
    "restart": {"restart": int, "max_restarts": int, "message": str},
    # measured placement of each rank: rank, host, cpus (such as 0-15), threads, memory_nodes (its
    # preferred NUMA nodes; [] for the kernel's default policy, null if unknown)
    "placement": {"ranks": list},
    # matmul speed of each rank alone, by rank, and the number of weights in these matmuls,
    # see `ftcluster_train.health.host_benchmark`
    "products": {"gflops": list, "weights": int},
    "start": {
        "world_size": int,
        "threads_per_rank": int,
        "precision": str,
        "ipex": bool,
        "backend": str,
        "steps": int,
        "epochs": Number,
        "train_samples": int,
        "parameters": int,
    },
    # kernels that the first step used, see `ftcluster_train.patching.patch_model`
    "kernels": {"used": list},
    "step": {
        "step": int,
        "epoch": Number,
        "loss": Number,
        "grad_norm": Number,
        "learning_rate": Number,
        "samples_per_second": Number,
        # excludes all evaluations and checkpoints, even if they were before a restart
        "train_seconds": Number,
        "remaining_seconds": Number,
    },
    # written with each step; the values are totals over the `steps` since the ranks started.
    # train_seconds excludes evaluation and checkpoints. tokens: tokens of rank 0 with padding;
    # useful_tokens: tokens of all ranks without padding. waited_seconds: time for which each rank
    # was blocked in collectives; transfer_seconds: the part of this time in which data moved;
    # input_seconds: time in which each rank made batches, see `ftcluster_train.engine.step_times`.
    # sent_bytes and collectives: traffic of rank 0, see `ftcluster_train.comm.traffic`.
    # latency_seconds: duration of a collective on a tensor with one element
    "communication": {
        "step": int,
        "steps": int,
        "train_seconds": Number,
        "tokens": int,
        "useful_tokens": int,
        "waited_seconds": list,
        "transfer_seconds": Number,
        "input_seconds": list,
        "sent_bytes": Number,
        "collectives": int,
        "latency_seconds": Number,
    },
    # the parts of one step on rank 0, if there are several ranks: a list of kind (of STEP_PARTS;
    # blocked: in a collective), note (the size of an exchange), begin and end, in seconds since the
    # step began, see `ftcluster_train.comm.traffic`
    "timeline": {"step": int, "spans": list},
    # a host that has fallen behind, and the reason. ratio: the host's time per step divided by the
    # usual time; 0 after the host has recovered
    "slow_host": {"host": str, "step": int, "ratio": Number, "message": str},
    # classification adds `classes`, a `ClassReport` for each set. Generation adds `texts`, some
    # sources, references and generated texts for each set. `result` may contain both fields
    "evaluation": {"step": int, "epoch": Number, "metrics": dict, "seconds": Number},
    "parameters": {"step": int, "equal": bool, "sha256": str},
    "checkpoint": {"step": int, "folder": str, "seconds": Number},
    # a saved model was loaded again and equals the trained model. tensors: number of its tensors;
    # mapped_bytes: bytes mapped from its files; difference: relative difference of the outputs,
    # null if no outputs were computed
    "reloaded": {
        "folder": str,
        "tensors": int,
        "mapped_bytes": int,
        "difference": Number | None,
        "seconds": Number,
    },
    # model: folder of the trained model, "" if nothing was trained. A prediction adds
    # `predictions`, a folder; generation adds `answers` and `tokens`; an evaluation of answers adds
    # `examples`, each of which maps names to texts
    "result": {
        "model": str,
        "metrics": dict,
        "samples_per_second": Number,
        "train_seconds": Number,
        "world_size": int,
    },
    # a piece of generated text; prompts are numbered from 0
    "text": {"prompt": int, "text": str},
    # the end of the answer to a prompt
    "answered": {"prompt": int},
    # results of `bench allreduce` for a pair of ranks, as in `network_benchmark.Link`
    "link": {"ranks": list, "latency_us": Number, "mb_per_second": Number},
    # results for one size in fp32 or bf16, see `bench_all_reduce.Times`
    "all_reduce": {
        "bytes": int,
        "type": str,
        "turns": int,
        "milliseconds": dict,
        "left_out": str,
        "spread": dict,
        "load": Number,
    },
    # backend of torch.distributed's process group in a user's script
    "backend": {"name": str},
    # output of rank 0 of a user's script to stdout or stderr
    "output": {"rank": int, "stream": str, "text": str},
    # errors that guardians report also have `step` and `cause`, see
    # ftcluster_train.supervisor.rank_life
    "error": {"message": str, "hint": str, "host": str, "rank": int | None},
    # state: done, failed or stopped. Unless it is done, there are also `cause` and `why`, one line
    # for users. cause: stop (the command `ftcluster stop`), signal, shutdown (of the head), or the
    # cause of the first error
    "end": {"state": str, "exit_code": int, "seconds": Number},
}
# types of the elements of lists and the values of dicts
ELEMENTS: dict[str, Any] = {
    "gflops": Number,
    "input_seconds": Number,
    "metrics": Number,
    "milliseconds": Number,
    "ranks": dict | int,
    "spread": Number,
    "used": str,
    "waited_seconds": Number,
}
STEP_PARTS = ("forward", "backward", "exchange", "optimizer", "blocked")
PLACEMENT = {"rank": int, "host": str, "cpus": str, "threads": int}
MOST_NUMBER = 1 << 63


def is_event(kind: str, fields: Mapping[str, Any]) -> bool:
    """Return True if an event contains all fields of its kind, with the right types."""
    wanted = EVENTS[kind]
    return (
        wanted.keys() <= fields.keys()
        and all(_is(fields[name], type_) for name, type_ in wanted.items())
        and all(
            _is(element, ELEMENTS[name])
            for name in wanted.keys() & ELEMENTS.keys()
            for element in (fields[name].values() if wanted[name] is dict else fields[name])
        )
        and (kind != "data" or is_data(fields))
        and (kind != "notice" or _is(fields.get("failed_save", ""), str))
        and (kind != "timeline" or all(map(_is_step_part, fields["spans"])))
        and _are_reports(fields.get("classes", {}))
        and _are_texts(fields.get("texts", {}))
        and _are(fields.get("answers", []), str)
        and all(
            _is(rank.get(name), type_)
            for rank in (fields["ranks"] if kind == "placement" else ())
            for name, type_ in PLACEMENT.items()
        )
    )


def _is_step_part(value: Any) -> bool:
    """Return True for a part of a step: a kind, a note, begin and end."""
    match value:
        case [str(kind), str(), begin, end]:
            return kind in STEP_PARTS and _is(begin, Number) and _is(end, Number)
    return False


DATA_SET = {
    "set": str, "samples": int, "documents": int, "median": int, "longest": int, "limit": int,
    "cut": int, "left_out": int, "classes": dict, "rows": int | None, "duplicates": int | None,
}  # fmt: skip


def is_data(fields: Mapping[str, Any]) -> bool:
    """Return True if the fields of an event `data` or of a host's data report are valid."""
    try:
        return (
            all(_is(fields[name], type_) for name, type_ in EVENTS["data"].items())
            and all(_are(fields["columns"][use], str) for use in fields["columns"])
            and all(
                all(_is(data_set[name], type_) for name, type_ in DATA_SET.items())
                and _are(data_set["classes"].values(), int)
                and _is(data_set.get("class_count", 0), int)
                and all(_are(names, str) for names in data_set.get("columns", {}).values())
                for data_set in fields["sets"]
            )
            and all(
                _is(document["label"], str)
                and _is(document.get("set", ""), str)
                and all(
                    _is(text, str) and _is(is_target, bool) for text, is_target in document["parts"]
                )
                for sample in fields["samples"]
                for document in sample
            )
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _are_reports(found: Any) -> bool:
    try:
        return all(isinstance(read_report(report), ClassReport) for report in found.values())
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _are_texts(found: Any) -> bool:
    try:
        return all(len(text) == 3 and _are(text, str) for rows in found.values() for text in rows)
    except (TypeError, AttributeError):
        return False


def _are(values: Any, type_: Any) -> bool:
    return all(_is(value, type_) for value in values)


def _is(value: Any, type_: Any) -> bool:
    if type(value) is type_ is not int:
        return True
    # bool is an int in Python, and ints have no size limit
    whole = isinstance(value, int)
    return (
        isinstance(value, type_)
        and isinstance(value, bool) == (type_ is bool)
        and not (whole and abs(value) > MOST_NUMBER)
    )
