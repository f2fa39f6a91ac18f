"""From an Ansible inventory of bare Xeon hosts to a fine-tuned Hugging Face model.

The main commands of `ftcluster` are functions here. They print nothing, ask nothing, and raise
FtclusterError. They are in `ftcluster.api`, which is imported at the first use.

    cluster = ftcluster.setup("inventory.ini")
    run = ftcluster.train("classify", data="reviews.csv", cluster=cluster)
    print(run.wait().metrics)
    run.fetch("my-model")
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ftcluster.errors import FtclusterError, UsageError

if TYPE_CHECKING:
    from ftcluster.api import (
        Cluster,
        LaunchOptions,
        Run,
        check,
        data,
        evaluate,
        find_run,
        generate,
        last_cluster,
        load,
        plan,
        predict,
        run,
        runs,
        setup,
        sweep,
        teardown,
        terminal_view,
        train,
    )

__all__ = [
    "Cluster", "FtclusterError", "LaunchOptions", "Run", "UsageError", "check", "data",
    "evaluate", "find_run", "generate", "last_cluster", "load", "plan", "predict", "run", "runs",
    "setup", "sweep", "teardown", "terminal_view", "train",
]  # fmt: skip

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ftcluster.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
