"""Entry point of the command `ftcluster`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from ftcluster import __version__
from ftcluster.cli import (
    attach,
    bench,
    bundle,
    check,
    clean,
    demo,
    fetch,
    logs,
    plan,
    ps,
    run,
    setup,
    stacks,
    stop,
    teardown,
    train,
)
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.paths import is_unicode

COMMANDS = (
    setup, check, plan, train, run, ps, logs, attach, stop, fetch, clean, bench, demo, stacks,
    bundle, teardown,
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands; each command's module adds its own."""
    parser = argparse.ArgumentParser(
        prog="ftcluster",
        description="From an Ansible inventory of bare Xeon hosts to a fine-tuned model.",
    )
    parser.add_argument("--version", action="version", version=f"ftcluster {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 stopped,
    143 where the run was stopped elsewhere.
    """
    parser = build_parser()
    for word in sys.argv[1:] if arguments is None else arguments:
        if not is_unicode(word):
            parser.error(f"argument is not valid UTF-8: {word!a}")
    # argparse does not accept positional arguments after an option, so they are added here
    options, more = parser.parse_known_args(arguments)
    unknown = [word for word in more if word.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.words = [*getattr(options, "words", []), *more]
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except FtclusterError as error:
        if options.json:
            print(json.dumps(error.to_dict()), flush=True)
        label = "" if isinstance(error, Interrupted) else "error: "
        print(f"{label}{error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print(f"error: {what}{error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
