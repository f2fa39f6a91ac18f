"""The environment of oneccl_bind_pt, tested with a folder in place of the real package."""

import importlib
from pathlib import Path

import pytest

from ftcluster_train.comm.torch_backends import (
    ONECCL,
    find_setvars,
    import_ccl,
    sourced_variables,
    variables_for,
)
from ftcluster_train.errors import TrainError

PATH = "/usr/bin:/bin"
# a short form of oneCCL's own setvars.sh and vars.sh
SETVARS = """
WORK_DIR="$(cd "$( dirname "${BASH_SOURCE[0]}" )" > /dev/null && pwd)"
export CCL_ROOT="$(cd ${WORK_DIR}/../; pwd -P)"
echo ":: initializing"
if [ -z "${I_MPI_ROOT}" ]; then export I_MPI_ROOT="${CCL_ROOT}/opt/mpi"; fi
LD_LIBRARY_PATH="${CCL_ROOT}/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; export LD_LIBRARY_PATH
PATH="${CCL_ROOT}/bin:${PATH}"; export PATH
FI_PROVIDER_PATH="${CCL_ROOT}/lib/prov"; export FI_PROVIDER_PATH
export CCL_ARGUMENTS="$*"
"""


def make_binding(site: Path, setvars: str | None = SETVARS, code: str = "") -> Path:
    """Make a folder that replaces the installed package; return the path of setvars.sh."""
    package = site / ONECCL
    (package / "env").mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    if setvars is not None:
        (package / "env/setvars.sh").write_text(setvars)
    return package / "env/setvars.sh"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return folder


def test_what_the_script_sets_or_changes_is_taken(tmp_path: Path) -> None:
    setvars = make_binding(tmp_path)
    root = tmp_path / ONECCL
    assert sourced_variables(setvars, PATH) == {
        "CCL_ROOT": str(root),
        "I_MPI_ROOT": f"{root}/opt/mpi",
        "LD_LIBRARY_PATH": f"{root}/lib",
        "PATH": f"{root}/bin:{PATH}",
        "FI_PROVIDER_PATH": f"{root}/lib/prov",
        "CCL_ARGUMENTS": "",
    }


def test_the_hosts_environment_does_not_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("I_MPI_ROOT", "/opt/intel/oneapi/mpi/latest")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/intel/oneapi/mpi/latest/lib")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "none"))
    found = sourced_variables(make_binding(tmp_path), PATH)
    assert "oneapi" not in str(found)


def test_values_may_have_any_character(tmp_path: Path) -> None:
    setvars = tmp_path / "a folder's setvars.sh"
    setvars.write_text("export ODD=$'two\\nlines = \\'quoted\\''\nUNEXPORTED=1\n")
    assert sourced_variables(setvars, PATH) == {"ODD": "two\nlines = 'quoted'"}
    # a failed script is reported with the end of its output
    fails = tmp_path / "setvars.sh"
    fails.write_text("echo first >&2; echo 'no MPI here' >&2; return 3\n")
    with pytest.raises(TrainError, match="failed: no MPI here") as caught:
        sourced_variables(fails, PATH)
    assert "training.ddp_backend=gloo" in caught.value.hint


def test_a_host_without_bash(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="needs bash"):
        sourced_variables(make_binding(tmp_path), str(tmp_path))


@pytest.mark.usefixtures("site")
def test_a_stack_without_the_binding() -> None:
    with pytest.raises(TrainError, match=f"needs {ONECCL}, which the stack does not contain"):
        find_setvars()
    with pytest.raises(TrainError, match=f"{ONECCL} cannot be imported: No module named"):
        import_ccl()


def test_a_binding_without_its_script(site: Path) -> None:
    make_binding(site, setvars=None)
    with pytest.raises(TrainError, match=r"env/setvars.sh does not exist"):
        find_setvars()


def test_only_ccl_needs_it(site: Path) -> None:
    make_binding(site)
    assert variables_for({"FTCLUSTER_BACKEND": "gloo"}, PATH) == {}
    assert variables_for({}, PATH) == {}
    found = variables_for({"FTCLUSTER_BACKEND": "ccl"}, PATH)
    assert found["CCL_ROOT"] == str(site / ONECCL)


def test_libraries_that_are_not_found(site: Path) -> None:
    make_binding(site, code="raise OSError('libccl.so.1: cannot open shared object file')")
    with pytest.raises(TrainError, match=r"cannot be imported: libccl.so.1"):
        import_ccl()
