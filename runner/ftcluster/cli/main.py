"""Entry point of the command `ftcluster`."""

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Sequence

from rich.text import Text

from ftcluster.ansible.signals import ended_in_order
from ftcluster.cli import (
    attach,
    bench,
    bundle,
    check,
    clean,
    completion,
    demo,
    evaluate,
    export,
    fetch,
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
    teardown,
    train,
    tune,
    version,
)
from ftcluster.cli.help import BEGIN, example_lines, grouped
from ftcluster.cli.usage import (
    Commands,
    Parser,
    check_command,
    is_flag,
    with_overrides,
)
from ftcluster.errors import ClusterChanged, FtclusterError, Interrupted, UsageError
from ftcluster.paths import is_unicode
from ftcluster.progress.view import make_view
from ftcluster.recipe.recipe import known_recipes
from ftcluster.text.streams import READER_GONE, drop_output, standard_streams
from ftcluster.text.terminal import print_lines
from ftcluster_common import __version__
from ftcluster_common.process_one import leave_process_one

AGAIN = 2  # times that a plan is made anew, because the cluster was another one
COMMANDS = (
    setup, check, hosts, stacks, bundle, teardown, recipes, plan, train, evaluate, predict, run,
    export, ps, logs, attach, stop, fetch, report, clean, demo, bench, tune, version, completion,
)  # fmt: skip


class MainParser(Parser):
    """The parser with all commands, whose help has them in groups."""

    commands: Commands

    def format_help(self) -> str:
        """What the program does, and its commands."""
        lines = [self.usage_line(), "", *(self.description or "").split("\n")]
        lines += [
            *grouped(self.commands.summaries),
            "",
            "help of one: ftcluster COMMAND --help",
            "",
        ]
        return "\n".join(lines)


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
    names = list(known_recipes())
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


def run_as_it_is(options: argparse.Namespace) -> int:
    """Run the command, again where it was planned for what the cluster was; returns the exit code.

    Raises:
        ClusterChanged: that was so each time.
        FtclusterError: it failed.
    """
    code: int
    for _ in range(AGAIN):
        try:
            code = options.run(options)
            return code
        except ClusterChanged as error:
            make_view(False).say(f"{error.message}; planning again")
    code = options.run(options)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 stopped,
    143 where the run was stopped elsewhere, 141 where nobody reads the result any more.
    """
    leave_process_one()  # as the command of a container
    with standard_streams():
        code = 0
        try:
            try:
                code = run_command(sys.argv[1:] if arguments is None else arguments)
            finally:  # also after --help, which raises SystemExit
                sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            return code or READER_GONE
        except OSError as error:
            drop_output()
            if not code:  # else it is said already
                say_error(FtclusterError(f"stdout cannot be written: {error.strerror or error}"))
            return code or 1
        return code


def run_command(arguments: Sequence[str]) -> int:
    """Run one command, and say what it fails with; returns the exit code."""
    if not arguments:
        print(BEGIN)
        return 2
    as_json = "--json" in itertools.takewhile(lambda word: word != "--", arguments)
    try:
        options = read_arguments(arguments)
        as_json = getattr(options, "json", False)  # not where it is a script's own word
        with ended_in_order():
            return run_as_it_is(options)
    except FtclusterError as error:
        failed = error
    except KeyboardInterrupt:
        failed = Interrupted("stopped")
    except BrokenPipeError:
        raise  # by whoever writes the result
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        failed = FtclusterError(f"{what}{error.strerror or error}")
    except Exception as error:  # a mistake of ftcluster's; Python shows where
        if as_json:
            print(json.dumps(FtclusterError(repr(error)).to_dict()))
        raise
    say_error(failed)
    if as_json:
        with contextlib.suppress(BrokenPipeError):  # the exit code is the error's
            print(json.dumps(failed.to_dict()))
    return failed.exit_code


def say_error(error: FtclusterError) -> None:
    """Print an error to stderr."""
    label = "" if isinstance(error, Interrupted) else "error: "
    first, *others = str(error).split("\n")
    print_lines([Text.assemble((label, "bold red"), first), *others], sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
