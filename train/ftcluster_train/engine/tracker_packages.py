"""Check on rank 0's host that the packages for the recipe's report_to are installed.

    python -m ftcluster_train.engine.tracker_packages NAME...

If a package is missing, the program prints an error and exits with 1. Standard library only.
"""

import importlib.util
import socket
import sys
from collections.abc import Iterable

from ftcluster_train.errors import TrainError

PACKAGES = {
    "tensorboard": "tensorboard", "trackio": "trackio", "mlflow": "mlflow-skinny", "wandb": "wandb",
}  # fmt: skip
IN_STACK = ("tensorboard", "trackio")  # trackers whose packages are in the stack native-trackers


def check_packages(names: Iterable[str]) -> None:
    """Check that the package of each tracker is installed.

    Raises:
        TrainError: a package is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise missing(name, f"No module named '{name}'")


def missing(name: str, why: object) -> TrainError:
    """Return the error for a missing package of a tracker, with advice for the user."""
    host, package = socket.gethostname(), PACKAGES[name]
    stack = "or on all hosts: ftcluster setup --stack native-trackers; " * (name in IN_STACK)
    return TrainError(
        f"report_to: {name} needs the package {package}, which is not installed on {host}: {why}",
        f"install it on {host}: {sys.executable} -I -m pip install {package}; {stack}"
        "or train without trackers: training.report_to=none",
    )


def main() -> int:
    """Run the program and return its exit code."""
    try:
        check_packages(sys.argv[1:])
    except TrainError as error:
        print(error.message)
        print(error.hint)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
