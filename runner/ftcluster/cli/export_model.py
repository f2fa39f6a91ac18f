"""`ftcluster export-model FORMAT RUN|DIR`: exports a trained model for other runtimes."""

import argparse
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_output
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.output import print_result
from ftcluster.errors import UsageError
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.models.export_model import FORMATS, ExportModelRequest, export_model
from ftcluster.progress.view import make_view


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export-model",
        help="write a trained model for OpenVINO or ONNX Runtime",
        description="Exports a model on this machine, in a separate environment that the first "
        "export creates (about 2 GB), and compares its output with torch.",
        usage=f"ftcluster export-model {'|'.join(FORMATS)} RUN|DIR [options]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FORMAT RUN|DIR",
        help=f"{' or '.join(FORMATS)}; a run, or a model's folder on this machine",
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="DIR", help="a new folder (default: MODEL-FORMAT)"
    )
    parser.add_argument("--int8", action="store_true", help="quantize the weights to 8 bits")
    parser.add_argument(
        "--data",
        default="",
        metavar="FILE",
        help="labelled rows for measuring the accuracy before and after the export",
    )
    add_cluster(parser)
    add_output(parser, verbose="")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if len(options.words) != 2:
        raise UsageError(
            f"name a format ({', '.join(FORMATS)}) and a run or a model's folder",
            "ftcluster export-model openvino RUN",
        )
    kind, model = options.words
    with connected(options) as connection:
        request = ExportModelRequest(
            kind, model, options.output, options.int8, options.data, connection
        )
        print_result(options, export_model(request, make_view(False)))
    return 0
