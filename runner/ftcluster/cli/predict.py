"""`ftcluster predict [RECIPE] --model DIR --data PATH --output FILE`: what a model says of rows."""

import argparse
import csv
import io
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import print_detached, print_result
from ftcluster.cli.evaluate import add_use, document, prepare, speed
from ftcluster.cli.recipe_words import split_words
from ftcluster.cli.train import say_notes, show_plan
from ftcluster.errors import UsageError
from ftcluster.launch.place import place_of
from ftcluster.launch.runs import fetch_model
from ftcluster.launch.training_run import train
from ftcluster.paths import write_atomically
from ftcluster.progress.view import make_view
from ftcluster_common.job import PREDICT
from ftcluster_common.recipe import CausalLm, DecoderTuning

# also as text, which rows of CSV have
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes cells that begin so (OWASP)
FORMATS = {".jsonl": "", ".csv": ",", ".tsv": "\t"}  # the mark between columns
READABLE = 0o644


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="write what a trained model predicts for rows of data",
        description="Predicts the class, number, answer or embedding of each row of --data, over "
        "all hosts of the cluster that was set up last. The rows need no labels; they are written "
        "in their order, with the columns `prediction` and, of classes, `probability`.",
        usage="ftcluster predict [RECIPE] --model DIR --output FILE [key=value ...] [options]",
    )
    add_use(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="*.jsonl, *.csv or *.tsv; a file that is there is replaced",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    split_words(options.words)  # before anything that takes time
    output = Path(options.output).absolute()
    if output.suffix not in FORMATS:
        raise UsageError(f"--output {options.output} does not end in {', '.join(FORMATS)}")
    if not output.parent.is_dir():
        raise UsageError(f"--output {options.output}: there is no folder {output.parent}")
    with ask_passwords(vars(options)) as passwords:
        prepared, reach = prepare(options, PREDICT, passwords)
        if isinstance(prepared.recipe.options, CausalLm | DecoderTuning):
            raise UsageError(
                "a language model predicts nothing of a row",
                "its loss: ftcluster evaluate; its texts: transformers' "
                'pipeline("text-generation", model=DIR)',
            )
        if options.dry_run:
            show_plan(prepared, options)
            return 0
        view = make_view(options.verbose)
        say_notes(prepared, view)
        progress = train(prepared, view, reach)
        if progress.state == "running":  # detached from
            view.say(
                f"its predictions will be in {prepared.launch.run_dir}/predictions on the head"
            )
            print_detached(options, progress.run)
            return 0
        place = replace(place_of(prepared.cluster), options=reach)
        with tempfile.TemporaryDirectory() as scratch:
            copied = Path(scratch) / "predictions"
            fetch_model(place, prepared.id, progress.result["predictions"], copied)
            [file] = copied.iterdir()
            rows = file.read_text(encoding="utf-8")
    write_atomically(output, as_table(rows, FORMATS[output.suffix]), READABLE)
    found = {**document(progress, options.model), "output": str(output)}
    count = rows.count("\n")
    text = f"{count} predictions: {options.output}\n{speed(progress, prepared)}"
    print_result(options, {**found, "rows": count}, text)
    return 0


def as_table(rows: str, mark: str) -> str:
    """JSON lines as they are, or as a table with a mark between columns.

    Texts that a spreadsheet would take for a formula get a ' in front; numbers stay as they are.

    >>> as_table('{"a": "x, y", "b": [1]}\\n', ",")
    'a,b\\n"x, y",[1]\\n'
    """
    if not mark:
        return rows
    found = [json.loads(line) for line in rows.split("\n") if line]
    columns = list(dict.fromkeys(name for row in found for name in row))
    table = io.StringIO()
    writer = csv.writer(table, delimiter=mark, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    for row in found:
        writer.writerow(_cell(row.get(name, "")) for name in columns)
    return table.getvalue()


def _cell(value: Any) -> Any:
    """A value as a cell of a table.

    >>> [_cell(one) for one in ('=HYPERLINK("x")', "-1.5", "-", "+1 day", -2.5, ["=1"])]
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
