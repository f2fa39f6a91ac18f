"""All commands, their parser, and what a command line asks for."""

import argparse
from collections.abc import Sequence

from ftcluster.cli import (
    attach,
    bench,
    bundle,
    check,
    clean,
    completion,
    data,
    demo,
    evaluate,
    examples,
    export,
    export_model,
    fetch,
    generate,
    hosts,
    logs,
    plan,
    predict,
    ps,
    recipes,
    report,
    run,
    setup,
    stacks,
    stop,
    sweep,
    teardown,
    train,
    tune,
    version,
)
from ftcluster.cli.help import example_lines
from ftcluster.cli.parser import Commands, MainParser, Parser
from ftcluster.cli.usage import check_command, is_flag, with_overrides
from ftcluster.errors import UsageError
from ftcluster.operations.recipes import known_recipes
from ftcluster.text.printable import is_unicode
from ftcluster_common import __version__

COMMANDS = (
    setup, check, hosts, stacks, bundle, teardown, recipes, data, plan, train, sweep, evaluate,
    predict, generate, export_model, run, examples, export, ps, logs, attach, stop, fetch, report,
    clean, demo, bench, tune, version, completion,
)  # fmt: skip


def build_parser() -> MainParser:
    """The parser with all commands; each command's module adds its own."""
    parser = MainParser(
        prog="ftcluster",
        description="From an Ansible inventory of bare Xeon hosts to a fine-tuned model.",
        usage="ftcluster COMMAND [options]",
    )
    parser.add_argument("--version", action="version", version=f"ftcluster {__version__}")
    action = parser.add_subparsers(metavar="COMMAND", parser_class=Parser, prog="ftcluster")
    parser.commands = Commands(action)
    for command in COMMANDS:
        command.add_parser(parser.commands)
    names = known_recipes()
    for name, one in parser.commands.parsers.items():
        one.set_defaults(parser=one, main_parser=parser)
        one.more = example_lines(name, names if one.get_default("takes_recipe") else ())
    return parser


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line.

    Raises:
        UsageError: it is wrong; has the usage of the command that it is about.
    """
    for word in arguments:
        if not is_unicode(word):
            raise UsageError(f"argument is not valid UTF-8: {word!a}")
    parser = build_parser()
    check_command(arguments, parser.commands.parsers)
    options, rest = parser.parse_known_args(arguments)
    unknown = [word for word in rest if is_flag(word)]
    if unknown:
        takes_recipe = getattr(options, "takes_recipe", False)
        arguments = with_overrides(arguments, unknown, takes_recipe, options.parser)
        options, rest = parser.parse_known_args(arguments)
    # argparse does not accept positional arguments after an option, so they are added here
    options.words = [*getattr(options, "words", []), *rest]
    return options
