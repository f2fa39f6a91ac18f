"""events.jsonl in a run's folder: what a run reports, one JSON object a line.

Rank 0 writes while there are ranks; the supervisor writes before and after. Standard library only.
"""

from collections.abc import Mapping
from typing import Any

from ftcluster_common.protocol.class_report import ClassReport, read_report

Number = int | float
# the fields of each kind of event, besides `event` (the kind) and `time` (seconds since the epoch)
EVENTS: dict[str, dict[str, Any]] = {
    "phase": {"doing": str},
    # what a user should know, such as that samples were truncated
    "notice": {"message": str},
    # what is read and learned, see `ftcluster_train.engine.data_report`
    "data": {"columns": dict, "sets": list, "samples": list},
    # the ranks are started again; its number, and why
    "restart": {"restart": int, "max_restarts": int, "message": str},
    # where each rank really is: rank, host, cpus (such as 0-15), threads, memory_nodes (NUMA nodes
    # that it prefers; [] for the kernel's default policy, null where that is not known)
    "placement": {"ranks": list},
    # how fast each rank computes the model's matrix products alone, by rank, and how many weights
    # they have, see `ftcluster_train.health.host_benchmark`
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
    # of the first step, see `ftcluster_train.patching.patch_model`
    "kernels": {"used": list},
    "step": {
        "step": int,
        "epoch": Number,
        "loss": Number,
        "grad_norm": Number,
        "learning_rate": Number,
        "samples_per_second": Number,
        # without evaluation and checkpoints, also before a restart
        "train_seconds": Number,
        "remaining_seconds": Number,
    },
    # with each step, of the `steps` since the ranks started: seconds without evaluation and
    # checkpoints; rank 0's tokens with padding, all ranks' without; seconds in which each rank was
    # blocked in collectives, those of them that the exchange itself took, and those in which each
    # rank made batches, see `ftcluster_train.engine.step_times`; bytes and collectives of rank 0,
    # see `ftcluster_train.comm.traffic`; seconds of a collective on one number
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
    # a host that has fallen behind, and why; ratio: how many times as long as usual its steps take,
    # 0 where it has recovered
    "slow_host": {"host": str, "step": int, "ratio": Number, "message": str},
    # of a classification also `classes`: a `ClassReport` for each set; of a model that writes texts
    # `texts`: for each set some sources, references and texts; `result` may have both
    "evaluation": {"step": int, "epoch": Number, "metrics": dict, "seconds": Number},
    "parameters": {"step": int, "equal": bool, "sha256": str},
    "checkpoint": {"step": int, "folder": str, "seconds": Number},
    # a saved model that was loaded again and found to be the trained one: its tensors, their bytes
    # that were mapped from its files, and the relative difference of outputs, null where they were
    # not computed
    "reloaded": {
        "folder": str,
        "tensors": int,
        "mapped_bytes": int,
        "difference": Number | None,
        "seconds": Number,
    },
    # model: "" where it was not trained; of a prediction also `predictions`, a folder; of texts
    # `answers` and `tokens`; of the evaluation of answers `examples`, each texts by name
    "result": {
        "model": str,
        "metrics": dict,
        "samples_per_second": Number,
        "train_seconds": Number,
        "world_size": int,
    },
    # what a model writes, in pieces: the number of the prompt, from 0
    "text": {"prompt": int, "text": str},
    # its answer to a prompt is whole
    "answered": {"prompt": int},
    # of `bench allreduce`; the numbers of two ranks, as `network_benchmark.Link` has them
    "link": {"ranks": list, "latency_us": Number, "mb_per_second": Number},
    # a size in fp32 or bf16, see `all_reduce_benchmark.Times`
    "all_reduce": {
        "bytes": int,
        "type": str,
        "turns": int,
        "milliseconds": dict,
        "left_out": str,
        "spread": dict,
        "load": Number,
    },
    # of torch.distributed, of the process group that a user's script has made
    "backend": {"name": str},
    # what rank 0 of a user's script prints, to stdout or stderr
    "output": {"rank": int, "stream": str, "text": str},
    # of what guardians report also `step` and `cause`, see ftcluster_train.supervisor.rank_life
    "error": {"message": str, "hint": str, "host": str, "rank": int | None},
    # state: done, failed or stopped
    "end": {"state": str, "exit_code": int, "seconds": Number},
}
# what lists, and the values of dicts, are made of
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
PLACEMENT = {"rank": int, "host": str, "cpus": str, "threads": int}
MOST_NUMBER = 1 << 63


def is_event(kind: str, fields: Mapping[str, Any]) -> bool:
    """Whether an event of this kind has all of its fields, each of its type."""
    wanted = EVENTS[kind]
    return (
        wanted.keys() <= fields.keys()
        and all(_is(fields[name], type_) for name, type_ in wanted.items())
        and all(
            _is(one, ELEMENTS[name])
            for name in wanted.keys() & ELEMENTS.keys()
            for one in (fields[name].values() if wanted[name] is dict else fields[name])
        )
        and (kind != "data" or is_data(fields))
        and _are_reports(fields.get("classes", {}))
        and _are_texts(fields.get("texts", {}))
        and _are(fields.get("answers", []), str)
        and all(
            _is(one.get(name), type_)
            for one in (fields["ranks"] if kind == "placement" else ())
            for name, type_ in PLACEMENT.items()
        )
    )


DATA_SET = {
    "set": str, "samples": int, "documents": int, "median": int, "longest": int, "limit": int,
    "cut": int, "left_out": int, "classes": dict, "rows": int | None, "duplicates": int | None,
}  # fmt: skip


def is_data(fields: Mapping[str, Any]) -> bool:
    """Whether an event `data`, or what a host says of data, has its form."""
    try:
        return (
            all(_is(fields[name], type_) for name, type_ in EVENTS["data"].items())
            and all(_are(fields["columns"][use], str) for use in fields["columns"])
            and all(
                all(_is(one[name], type_) for name, type_ in DATA_SET.items())
                and _are(one["classes"].values(), int)
                and _is(one.get("class_count", 0), int)
                for one in fields["sets"]
            )
            and all(
                _is(document["label"], str)
                and all(_is(text, str) and _is(said, bool) for text, said in document["parts"])
                for sample in fields["samples"]
                for document in sample
            )
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _are_reports(found: Any) -> bool:
    try:
        return all(isinstance(read_report(one), ClassReport) for one in found.values())
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _are_texts(found: Any) -> bool:
    try:
        return all(len(one) == 3 and _are(one, str) for rows in found.values() for one in rows)
    except (TypeError, AttributeError):
        return False


def _are(values: Any, type_: Any) -> bool:
    return all(_is(value, type_) for value in values)


def _is(value: Any, type_: Any) -> bool:
    if type(value) is type_ is not int:
        return True
    # Python takes true for a whole number, and one of any length
    whole = isinstance(value, int)
    return (
        isinstance(value, type_)
        and isinstance(value, bool) == (type_ is bool)
        and not (whole and abs(value) > MOST_NUMBER)
    )
