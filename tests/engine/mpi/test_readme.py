"""The example in the README of the MPI backend works without any other part of ftcluster."""

import sys
from pathlib import Path

import ftcluster_mpi
from ftcluster_mpi.registration import rendezvous_variables
from tests.engine.stranger import example, run_alone

FOLDER = Path(str(ftcluster_mpi.__file__)).parent


def test_the_backend_works_under_plain_mpirun(tmp_path: Path) -> None:
    mpirun = str(Path(sys.executable).parent / "mpirun")
    lines = run_alone(tmp_path, FOLDER, example(FOLDER), mpirun, "-n", "2").splitlines()
    assert sorted(lines) == [f"rank {rank} of 2: [3.0, 3.0, 3.0, 3.0]" for rank in (0, 1)]


def test_ranks_on_one_host_meet_at_a_port_of_their_job() -> None:
    ranks = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "I_MPI_HYDRA_UUID": "a"}
    variables = rendezvous_variables(ranks)
    assert {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items() <= variables.items()
    other = rendezvous_variables(ranks | {"I_MPI_HYDRA_UUID": "b"})
    assert variables["MASTER_PORT"] != other["MASTER_PORT"]
    # torchrun has set all of the variables
    assert rendezvous_variables(ranks | {"RANK": "0"}) == {}
    apart = rendezvous_variables(ranks | {"MPI_LOCALNRANKS": "1"})
    assert apart == {"RANK": "1", "WORLD_SIZE": "2"}
