"""Write a trained model's predictions for rows of data."""

import csv
import io
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ftcluster.ansible.answers import json_object
from ftcluster.errors import UsageError
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.runs import fetch_model
from ftcluster.operations.models.trained import TrainedModelRequest, TrainedModelResult
from ftcluster.operations.train.train import speed
from ftcluster.paths import write_atomically
from ftcluster.progress.view import View
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe

# pattern of a number in a cell; cells of a CSV file are always text
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # cells that spreadsheets evaluate (OWASP)
FORMATS = {".jsonl": "", ".csv": ",", ".tsv": "\t"}  # separator between columns; "" for JSON lines


@dataclass(frozen=True)
class PredictRequest(TrainedModelRequest):
    """Rows of data to make predictions for, and a trained model.

    Attributes:
        output: path of the file for the predictions: *.jsonl, *.csv or *.tsv. An existing file is
            replaced.
    """

    output: str = ""

    purpose: ClassVar[Purpose] = PREDICT

    def __post_init__(self) -> None:
        """Check that the output can be written.

        Raises:
            UsageError: the output cannot be written.
        """
        super().__post_init__()
        path = Path(self.output).absolute()
        if path.suffix not in FORMATS:
            raise UsageError(f"--output {self.output} must end in one of {', '.join(FORMATS)}")
        if not path.parent.is_dir():
            raise UsageError(f"--output {self.output}: there is no folder {path.parent}")

    def refusal(self, recipe: Recipe) -> UsageError | None:
        """Return an error if models of the recipe's task cannot predict rows; None otherwise."""
        reason = recipe.spec.why_not_predicted()
        return UsageError(*reason) if reason else None


@dataclass(frozen=True)
class PredictResult(TrainedModelResult):
    """The predictions that were written; or the detached run that is still computing them.

    Attributes:
        output: path of the predictions' file, as the user wrote it.
        rows: number of predictions in the file.
    """

    output: str
    rows: int

    def finished_document(self) -> dict[str, Any]:
        """Return the document of a finished run, with the file and its number of rows."""
        output = str(Path(self.output).absolute())
        return {**super().finished_document(), "output": output, "rows": self.rows}

    def finished_lines(self) -> list[str]:
        """Return the number of rows and the speed."""
        return [f"{self.rows} predictions: {self.output}", speed(self.progress, self.run)]


def predict(request: PredictRequest, view: View) -> PredictResult:
    """Predict the class, number, answer or embedding of each row, in the order of the rows.

    Raises:
        ClusterChanged: the cluster has changed since the run was planned. `again`
            retries the operation.
        FtclusterError: the request is not valid, or the run failed.
    """
    run, progress = request.launched(view)
    model = str(request.model)
    if progress.state == "running":  # the caller has detached from the run
        view.say(f"the predictions will be in {run.launch.run_dir}/predictions on the head")
        return PredictResult(run, progress, model, request.output, 0)
    run_hosts = replace(run_hosts_of(run.cluster), options=request.connection.to(run.cluster))
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / "predictions"
        fetch_model(run_hosts, run.id, str(progress.result.get("predictions")), copied)
        rows = "".join(file.read_text("utf-8", "backslashreplace") for file in copied.iterdir())
    output = Path(request.output).absolute()
    if mark := FORMATS[output.suffix]:
        lines = filter(None, rows.split("\n"))
        table = as_table(
            [json_object(run_hosts.head, "a row", line.encode()) for line in lines], mark
        )
    text = table if mark else rows
    write_atomically(output, text.encode("utf-8", "backslashreplace"))
    return PredictResult(run, progress, model, request.output, rows.count("\n"))


def as_table(rows: Sequence[dict[str, Any]], mark: str) -> str:
    """Return rows as a table in text form, with `mark` as the separator between columns.

    A string that a spreadsheet would read as a formula gets the prefix '. Numbers are unchanged.

    >>> as_table([{"a": "x, y", "b": [1]}], ",")
    'a,b\\n"x, y",[1]\\n'
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO()
    writer = csv.writer(table, delimiter=mark, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    for row in rows:
        writer.writerow(_cell(row.get(name, "")) for name in columns)
    return table.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell of a table.

    >>> [_cell(cell) for cell in ('=HYPERLINK("x")', "-1.5", "-", "+1 day", -2.5, ["=1"])]
    ['\\'=HYPERLINK("x")', '-1.5', "'-", "'+1 day", -2.5, '["=1"]']
    """
    if isinstance(value, dict | list):
        return json.dumps(value)
    if (
        isinstance(value, str)
        and value.lstrip(" ").startswith(FORMULA)
        and not NUMBER.fullmatch(value)
    ):
        return f"'{value}"
    return value
