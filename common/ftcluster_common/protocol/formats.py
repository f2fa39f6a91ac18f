"""Format versions of the documents that ftcluster keeps or sends to other hosts. Pure functions.

The field `format` of a document holds the number of its format; without it the format is 0.
Increase a kind's format if an older reader would fail on the new documents or misread them. Then
make the kind's reader migrate documents of the previous format. A new optional field needs no new
format if it is omitted at its default, see `Kind.first_fields`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftcluster_common.given_files import FormatError

FORMAT = "format"
RUN_FORMAT = 1  # format of launch.json and job.json; run_folder.py on the hosts parses this line
MOST_FORMAT = 1 << 31
UPGRADE_HOSTS = "upgrade the ftcluster of these hosts: ftcluster setup"
UPGRADE_HERE = "upgrade this ftcluster"
STOP_OLD = "end the run with ftcluster stop --force, or install the version that started it"


@dataclass(frozen=True)
class Kind:
    """A kind of document.

    Attributes:
        name: file name.
        format: format of new documents.
        oldest: oldest format that can be read.
        older_hint: advice for a document that is too old.
        newer_hint: advice for a document of a newer ftcluster.
        required: fields that all readable formats have; a document that lacks both `format` and one
            of these fields is older than all formats.
        first_fields: fields of format 0, for kinds whose old readers reject unknown fields; later
            fields are written only if they are set. Empty if readers ignore unknown fields.
    """

    name: str
    format: int
    oldest: int = 0
    older_hint: str = "make it again with this version"
    newer_hint: str = UPGRADE_HERE
    required: frozenset[str] = frozenset()
    first_fields: frozenset[str] = frozenset()


LAUNCH = Kind(
    "launch.json", RUN_FORMAT, older_hint=STOP_OLD, newer_hint=UPGRADE_HOSTS,
    required=frozenset({"program", "hosts", "idle"}),
    first_fields=frozenset(
        {"program", "env", "hosts", "ssh_config", "stack", "script", "restarts", "max_restarts",
         "idle", "spares", "min_nodes", "wait", "share_hosts", "timeout_seconds", "hang_seconds",
         "slurm_job", "grace_seconds", "started_by"}
    ),
)  # fmt: skip
JOB = Kind(
    "job.json", RUN_FORMAT, older_hint=STOP_OLD, newer_hint=UPGRADE_HOSTS,
    required=frozenset({"run", "prefix"}),
    first_fields=frozenset(
        {"run", "prefix", "recipe", "precision", "ipex", "resume", "must_resume",
         "snapshot_seconds", "log_samples", "nodes", "shard_optimizer", "purpose", "shared_folder",
         "hardware", "price_per_hour", "currency", "generation", "script"}
    ),
)  # fmt: skip
INPUTS = Kind(
    "inputs.json", 1, older_hint=STOP_OLD, newer_hint=UPGRADE_HOSTS,
    required=frozenset({"model", "tokenizer", "samples"}),
)  # fmt: skip
OPTIONS = Kind("options.json", 1)  # read by control nodes only
EVENTS = Kind("events.jsonl", 1)
STATE = Kind("format.json", 1, newer_hint=UPGRADE_HOSTS)  # in a checkpoint or snapshot
TRAINED = Kind("ftcluster.json", 1)
CLUSTER = Kind("cluster.json", 1)  # on the control node
RECORD = Kind("cluster.json", 1, oldest=1)  # on the head; plugins/module_utils/record.py writes it
RUN_RECORD = Kind("run.json", 1)
CHECKS = Kind("checks.json", 1)
KINDS = (LAUNCH, JOB, OPTIONS, INPUTS, EVENTS, STATE, TRAINED, CLUSTER, RECORD, RUN_RECORD, CHECKS)


def stamped(kind: Kind, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the format number of its kind, without unset later fields."""
    later = {name for name in content if kind.first_fields and name not in kind.first_fields}
    kept = {name: value for name, value in content.items() if value or name not in later}
    return {FORMAT: kind.format, **kept}


def later_fields(kind: Kind, document: Mapping[str, Any]) -> list[str]:
    """Return a document's fields that readers of format 0 would reject, except `format`."""
    return sorted(document.keys() - kind.first_fields - {FORMAT}) if kind.first_fields else []


def format_of(document: Mapping[str, Any]) -> int:
    """Return the format of a document; 0 if the document names none.

    Raises:
        ValueError: the format is not a whole number from 0.
    """
    number = document.get(FORMAT, 0)
    if type(number) is not int or not 0 <= number <= MOST_FORMAT:
        raise ValueError(f"its format is {number!a:.40}")
    return number


def opened(kind: Kind, document: Any) -> dict[str, Any]:
    """Return the content of a document without the field `format`.

    Raises:
        FormatError: the format is too old or too new. The message says what to do; callers put the
            file's name before it.
        ValueError: the document is not a mapping, or `format` is not a number.
    """
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping")
    number = format_of(document)
    if number > kind.format:
        raise FormatError(
            f"was written by a newer ftcluster (format {number}, this one reads up to "
            f"{kind.format}): {kind.newer_hint}"
        )
    missing = sorted(kind.required - document.keys())
    if number < kind.oldest or (missing and FORMAT not in document):
        lacks = f" without {', '.join(missing)}" if missing else ""
        raise FormatError(
            f"was written by an older ftcluster (format {number}{lacks}): {kind.older_hint}"
        )
    return {name: value for name, value in document.items() if name != FORMAT}
