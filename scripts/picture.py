"""Writes docs/cluster.svg: the terminal at the end of a setup and of a training run.

scripts/picture DATA MODEL

Needs root. Sets up four test hosts, and trains the recipe mrpc on them for 60 steps. DATA is a
folder with MRPC (train.jsonl, validation.jsonl), MODEL a folder with an encoder and its tokenizer.
"""

import io
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/cluster.svg"
WIDTH = 116  # characters
HOSTS = 4
INSIDE = "--inside"  # option for the process in the hosts' network


def main(data: str, model: str) -> None:
    """Create the test hosts, draw the picture inside their network, and remove the hosts."""
    # imported here, because `draw` runs in .venv, which has no packages for tests
    from tests.cluster.control import PIN_LOGINS
    from tests.testbed import Settings, Testbed

    with Testbed(replace(Settings.from_environment(), suite="bookworm")) as bed:
        bed.up(HOSTS)
        for number in range(HOSTS):
            pin = PIN_LOGINS.format(number % 2)
            bed.exec_(f"node{number}", "sh", "-c", pin, check=True)
        with tempfile.TemporaryDirectory() as folder:
            inventory = Path(folder) / "inventory.ini"
            inventory.write_text(bed.inventory().replace("\nnode", "\nxeon"))
            own = {"XDG_STATE_HOME": f"{folder}/state"}
            program = (ROOT / ".venv/bin/python", __file__, INSIDE)
            done = bed.run(*program, inventory, data, model, env=own)
            print(done.stdout, done.stderr)
    if done.returncode != 0:
        raise SystemExit(done.returncode)


def draw(inventory: str, data: str, model: str) -> None:
    """Set up, train, and save the terminal's text."""
    from ftcluster.operations.connection import Connection
    from ftcluster.operations.setup.setup import SetupRequest, setup
    from ftcluster.operations.train.train import TrainRequest, train
    from ftcluster.progress.pictures import run_picture, setup_picture
    from ftcluster.progress.view import make_view

    view = make_view(verbose=False)
    ready = setup(SetupRequest(Connection((inventory,))), view)
    trained = train(TrainRequest(("mrpc", "training.max_steps=60"), data, model), view)
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True)
    for command, picture, lines in (
        ("setup inventory.ini", setup_picture(ready.stages.progress), ready.stages.table),
        (
            "train mrpc max_steps=60 --data DIR --model DIR",
            run_picture(trained.progress),
            trained.lines(),
        ),
    ):
        console.print(Text(f"$ ftcluster {command}", style="bold"))
        console.print(picture)
        console.print()
        for line in (*lines, ""):
            console.print(line, highlight=False, markup=False)
    PICTURE.write_text(console.export_svg(title="ftcluster"), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        draw(*sys.argv[2:])
    elif len(sys.argv) != 3 or os.geteuid() != 0:
        raise SystemExit(__doc__)
    else:
        main(*sys.argv[1:])
