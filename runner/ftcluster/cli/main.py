"""The entry point of the command `ftcluster`."""

import contextlib
import itertools
import json
import sys
from collections.abc import Sequence

from ftcluster.cli.commands import read_arguments
from ftcluster.cli.help import BEGIN
from ftcluster.cli.output import say_error
from ftcluster.cli.process import ended_in_order, warnings_shown
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.operations.connection import again
from ftcluster.progress.view import make_view
from ftcluster.text.streams import READER_GONE, drop_output, standard_streams
from ftcluster_common.process_one import leave_process_one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The exit code is 0 after success, 1 after a failure, 2 for wrong usage, 130 if the user stopped
    the command, 143 if the run was stopped elsewhere, and 141 if the reader of stdout has exited.
    """
    leave_process_one()  # needed if this is the first process of a container
    with standard_streams(), warnings_shown():
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
            if not code:  # otherwise the error is already printed
                say_error(FtclusterError(f"cannot write to stdout: {error.strerror or error}"))
            return code or 1
        return code


def run_command(arguments: Sequence[str]) -> int:
    """Run a command, print its error if it fails, and return the exit code."""
    if not arguments:
        print(BEGIN)
        return 2
    as_json = "--json" in itertools.takewhile(lambda word: word != "--", arguments)
    try:
        options = read_arguments(arguments)
        as_json = getattr(options, "json", False)  # False if --json comes after --
        with ended_in_order():
            return again(lambda: int(options.run(options)), make_view(False))
    except FtclusterError as error:
        failed = error
    except KeyboardInterrupt:
        failed = Interrupted("stopped")
    except BrokenPipeError:
        raise  # main() handles this error
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        failed = FtclusterError(f"{what}{error.strerror or error}")
    except Exception as error:  # a bug in ftcluster; Python prints the traceback
        if as_json:
            print(json.dumps(FtclusterError(repr(error)).to_dict()))
        raise
    say_error(failed)
    if as_json:
        with contextlib.suppress(BrokenPipeError):  # keep the exit code of the error
            print(json.dumps(failed.to_dict()))
    return failed.exit_code


if __name__ == "__main__":
    sys.exit(main())
