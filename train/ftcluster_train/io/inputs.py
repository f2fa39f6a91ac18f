"""inputs.json in a run's folder: what `prepare` has made for the ranks of this host."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import read_form


@dataclass(frozen=True)
class Inputs:
    """Where the ranks of a host find model and data.

    Attributes:
        model: a folder for `from_pretrained`, or `config:TYPE`.
        tokenizer: a folder for `from_pretrained`.
        samples: the folder with a folder of token samples for each split.
        report: what the samples say of the data, see `engine.data_report`.
        notices: what to tell the user, such as that samples were truncated.
    """

    model: str
    tokenizer: str
    samples: str
    notices: list[str]
    report: dict[str, Any]


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write `run_dir`/inputs.json."""
    text = json.dumps(asdict(inputs)) + "\n"
    partial = run_dir / ".inputs.json.partial"
    partial.write_text(text, encoding="utf-8")
    partial.rename(run_dir / "inputs.json")  # the ranks of another host may be reading it


def read_inputs(run_dir: Path) -> Inputs:
    """Read `run_dir`/inputs.json.

    Raises:
        GivenFileError: it is missing or damaged.
    """
    return read_form(run_dir / "inputs.json", lambda data: Inputs(**data))
