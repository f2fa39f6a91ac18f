"""The example in the README of the kernels works without any other part of ftcluster."""

from pathlib import Path

import ftcluster_kernels
from tests.engine.stranger import example, run_alone

FOLDER = Path(str(ftcluster_kernels.__file__)).parent


def test_the_kernels_train_in_a_plain_loop(tmp_path: Path) -> None:
    losses = run_alone(tmp_path, FOLDER, example(FOLDER) + "    print(loss.item())\n").split()
    assert len(losses) == 20
    assert float(losses[-1]) < float(losses[0]) / 2
