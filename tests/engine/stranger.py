"""Programs of users who have only one of the packages that work without ftcluster."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.programs import ROOT


def example(folder: Path) -> str:
    """Return the example of a package's README."""
    readme = ROOT / "train" / folder.name / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.strip().splitlines()) <= 15
    return str(code)


def run_alone(tmp_path: Path, folder: Path, code: str, *launcher: str) -> str:
    """Run a program beside a copy of one package, without the rest of ftcluster."""
    shutil.copytree(folder, tmp_path / folder.name)
    program = tmp_path / "example.py"
    program.write_text(code, encoding="utf-8")
    hidden = {"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1"}
    refuse = "import sys; sys.modules['ftcluster_train'] = sys.modules['ftcluster_common'] = None; "
    start = f"{refuse}import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    variables["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")
    done = subprocess.run(
        [*launcher, sys.executable, "-P", "-c", start],
        env={**variables, **hidden, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
