"""docs/python.ipynb: setup, plan, training and predictions with the installed package."""

import csv
import json
import subprocess
from pathlib import Path

from tests.cluster.conftest import Machine
from tests.programs import CONTROL, HANG_SECONDS, ROOT

NOTEBOOK = ROOT / "docs/python.ipynb"
SETUP = 'ftcluster.setup("localhost", view=view)'
# run cells like a Jupyter kernel: one namespace, one cell after the other; the last expression is
# not shown
PROGRAM = """
import json, sys
namespace = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin), 1):
    exec(compile(source, f"cell {number}", "exec"), namespace)
print(json.dumps({"run": namespace["run"].id, "metrics": namespace["result"].metrics,
                  "model": str(namespace["folder"]), "rows": namespace["predicted"].rows}))
"""


def cells(prefix: Path) -> list[str]:
    """Return the notebook's code, changed to the cluster in this prefix."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    [number] = [number for number, source in enumerate(code) if SETUP in source]
    options = f'options=("--extra-vars", "ftcluster_prefix={prefix}")'
    code[number] = code[number].replace(SETUP, f"{SETUP[:-1]}, {options})")
    return code


def test_the_cells_of_the_notebook(machine: Machine, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(CONTROL / "python"), "-c", PROGRAM],
        input=json.dumps(cells(machine.home.prefix)),
        env=machine.home.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *shown, last = done.stdout.splitlines()
    found = json.loads(last)
    assert 0 < found["metrics"]["accuracy"] <= 1
    assert (Path(found["model"]) / "model.safetensors").is_file()
    with (tmp_path / "predicted.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert found["rows"] == len(rows) == 2
    assert all(row["prediction"] for row in rows)
    assert any("quickstrat" in line for line in shown)  # an error that the program survived
    listed = json.loads(machine.home.run("ps", "--json").stdout)
    assert found["run"] in [one["run"] for one in listed]  # the command lists this run too
    assert machine.home.left_running() == []
