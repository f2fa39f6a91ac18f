"""The file RUN_DIR/inputs.json, in which ranks find the paths of model and data on a host."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import read_form
from ftcluster_common.protocol.formats import INPUTS, opened, stamped
from ftcluster_common.protocol.launch import LAUNCH_FILE, PLANNED_FILE


@dataclass(frozen=True)
class Inputs:
    """The locations of model and data on a host.

    Attributes:
        model: folder for `from_pretrained`, or `config:TYPE`.
        tokenizer: folder for `from_pretrained`.
        samples: folder with a subfolder of token samples for each split.
        teacher: folder of the teacher model for `from_pretrained`, or "".
        adapters: folder of the adapters to add to the model, or "".
        report: report on the data, see `engine.data_report`.
        notices: notices for the user, for example about truncated samples.
        new_token_ids: ids of the recipe's tokens that were added to the tokenizer.
        commits: Hub commits by the keys "model" and "data", if these were downloaded from the Hub.
    """

    model: str
    tokenizer: str
    samples: str
    notices: list[str]
    report: dict[str, Any]
    teacher: str = ""
    commits: dict[str, str] = field(default_factory=dict)
    adapters: str = ""
    new_token_ids: list[int] = field(default_factory=list)


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write `run_dir`/inputs.json.

    On the head, this function then gives the planned launch file its final name, so that the
    supervisor launches the ranks.
    """
    text = json.dumps(stamped(INPUTS, asdict(inputs))) + "\n"
    partial = run_dir / ".inputs.json.partial"
    partial.write_text(text, encoding="utf-8")
    partial.rename(run_dir / "inputs.json")  # a rank may be reading the file
    if (run_dir / PLANNED_FILE).exists():
        (run_dir / PLANNED_FILE).replace(run_dir / LAUNCH_FILE)


def read_inputs(run_dir: Path) -> Inputs:
    """Read `run_dir`/inputs.json.

    Raises:
        GivenFileError: the file is missing, damaged, or of an unsupported format.
    """
    return read_form(run_dir / "inputs.json", lambda document: Inputs(**opened(INPUTS, document)))
