"""`ftcluster generate RUN|DIR PROMPT ...`: generates text with a language model."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from ftcluster.cli.ansible_options import add_options
from ftcluster.cli.arguments import add_commands, add_dry_run, add_output
from ftcluster.cli.connection import add_cluster, connected
from ftcluster.cli.launch_arguments import add_hub_token, add_sharing, launch_options
from ftcluster.cli.output import print_plan, print_result, say_error
from ftcluster.errors import Interrupted, UsageError
from ftcluster.operations.connection import CONNECTION
from ftcluster.operations.models.generate import GenerateRequest, Sampling, dry_run, generate
from ftcluster.progress.view import make_view
from ftcluster.text.printable import printable
from ftcluster.text.prompts import all_of_stdin, is_terminal, typed_lines

DEFAULTS = Sampling()


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "generate",
        help="generate text with a language model",
        description="Generates answers to prompts on the head of the cluster that was set up "
        "last, and prints the text while it is generated. If the model has a chat template, each "
        "prompt is sent as a user message; otherwise the model continues the prompt.",
        usage="ftcluster generate RUN|DIR [PROMPT ...] [options]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN|DIR PROMPT",
        help="a run with a trained model, a model's folder on this machine, or a model OWNER/NAME "
        "on the Hub; then prompts, each answered separately (default: a prompt for each line that "
        "you type, or all of stdin as one prompt)",
    )
    group = parser.add_argument_group("sampling")
    group.add_argument("--system", default="", metavar="TEXT", help="system message")
    for name, kind, what in (
        ("max_new_tokens", int, "maximum number of tokens per answer"),
        ("temperature", float, "sampling temperature; 0 always takes the most probable token"),
        ("top_p", float, "sample from the most probable tokens with this total probability"),
        ("seed", int, "seed of the sampling"),
    ):
        default = getattr(DEFAULTS, name)
        group.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=default, metavar="N",
            help=f"{what} (default: {default})",
        )  # fmt: skip
    add_hub_token(parser)
    add_cluster(parser)
    add_sharing(parser)
    add_dry_run(parser)
    add_commands(parser)
    add_output(parser, verbose="print plain lines instead of the live view")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run, max_restarts=0)


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    model, *prompts = [*options.words, ""] if not options.words else options.words
    if not model:
        raise UsageError("no model is named", 'ftcluster generate RUN "a question"')
    names = ("system", "max_new_tokens", "temperature", "top_p", "seed")
    sampling = Sampling(**{name: getattr(options, name) for name in names})
    asks = not (prompts or options.json or options.dry_run) and is_terminal()
    with connected(options) as connection:
        lines = typed_lines() if asks else None
        for batch in ((line,) for line in lines) if lines else [tuple(prompts or [all_of_stdin()])]:
            request = GenerateRequest(
                model, batch, sampling, options.hf_token, launch_options(options), connection,
                lines and _after_answers(lines),
            )  # fmt: skip
            try:
                _answer(options, request)
            except Interrupted as error:
                if not asks:
                    raise
                print(file=sys.stderr)
                say_error(error)
    return 0


def _after_answers(lines: Iterator[str]) -> Iterator[str]:
    """Yield typed lines, so that each prompt appears below the previous answer."""
    print()
    for line in lines:
        yield line
        print()


def _answer(options: argparse.Namespace, request: GenerateRequest) -> None:
    """Print the generated text; with --dry-run, print the plan instead."""
    view, shown = make_view(options.verbose), -1

    def write(number: int, text: str) -> None:
        nonlocal shown
        if number != shown and len(request.prompts) > 1:
            print(f"{chr(10) * (shown >= 0)}> {printable(request.prompts[number])}")
        shown = number
        print(printable(text), end="", flush=True)

    if options.dry_run:
        print_plan(options, dry_run(request, view))
    elif options.json:
        print_result(options, generate(request, view))
    else:
        generate(request, view, write)
        if not request.more:
            print()
