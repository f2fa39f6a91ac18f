"""Strangers run the READMEs' examples of the packages that need nothing of ftcluster."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ftcluster_kernels
import ftcluster_mpi
from ftcluster_mpi.registration import rendezvous_variables

ALONE = {
    package: Path(str(package.__file__)).parent for package in (ftcluster_kernels, ftcluster_mpi)
}


def example(folder: Path) -> str:
    readme = Path(__file__).parents[2] / "train" / folder.name / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.strip().splitlines()) <= 15
    return str(code)


def run_alone(tmp_path: Path, folder: Path, code: str, *launcher: str) -> str:
    """Run a program beside a copy of one package, where nothing else of ftcluster can be found."""
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


def test_the_kernels_train_in_a_plain_loop(tmp_path: Path) -> None:
    code = example(ALONE[ftcluster_kernels])
    losses = run_alone(
        tmp_path, ALONE[ftcluster_kernels], code + "    print(loss.item())\n"
    ).split()
    assert len(losses) == 20
    assert float(losses[-1]) < float(losses[0]) / 2


def test_the_backend_works_under_plain_mpirun(tmp_path: Path) -> None:
    mpirun = str(Path(sys.executable).parent / "mpirun")
    code = example(ALONE[ftcluster_mpi])
    lines = run_alone(tmp_path, ALONE[ftcluster_mpi], code, mpirun, "-n", "2").splitlines()
    assert sorted(lines) == [f"rank {rank} of 2: [3.0, 3.0, 3.0, 3.0]" for rank in (0, 1)]


def test_ranks_on_one_host_meet_at_a_port_of_their_job() -> None:
    ranks = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "I_MPI_HYDRA_UUID": "a"}
    variables = rendezvous_variables(ranks)
    assert {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items() <= variables.items()
    other = rendezvous_variables(ranks | {"I_MPI_HYDRA_UUID": "b"})
    assert variables["MASTER_PORT"] != other["MASTER_PORT"]
    assert rendezvous_variables(ranks | {"RANK": "0"}) == {}  # torchrun has set all of them
    apart = rendezvous_variables(ranks | {"MPI_LOCALNRANKS": "1"})
    assert apart == {"RANK": "1", "WORLD_SIZE": "2"}
