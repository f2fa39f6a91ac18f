"""Build hook of the hosts' package: compiles the C files for the hosts' CPUs, and adds the version.

The compiled libraries depend on no other library, not even the C library, so the wheel is tagged
for all systems. On systems where the libraries do not load, torch's functions are used.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("ftcluster_kernels")
COMPILERS = ("cc", "gcc", "clang")
# compiler flags by library; simd.py in ftcluster_kernels has the same libraries
CPUS = {
    "libavx512.so": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "libavx2.so": ("-mavx2", "-mfma"),
}
ALONE = ("-shared", "-fPIC", "-fvisibility=hidden", "-nostdlib")


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the libraries to the wheel if this machine has a C compiler for x86-64."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries; hatchling calls this before it builds the wheel."""
        self._scratch = tempfile.TemporaryDirectory(prefix="ftcluster-version-")
        module = Path(self._scratch.name) / "_version.py"
        module.write_text(f'__version__ = "{self.metadata.version}"\n', encoding="utf-8")
        build_data["force_include"][str(module)] = "ftcluster_common/_version.py"
        for name in CPUS:
            (Path(self.root) / KERNELS / name).unlink(missing_ok=True)
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            self.app.display_warning("no C compiler: trainings will be slower")
            return
        for name in CPUS:
            self._compile(compiler, name, build_data)

    def _compile(self, compiler: str, name: str, build_data: dict[str, Any]) -> None:
        library = Path(self.root) / KERNELS / name
        new = library.with_suffix(".new")
        files = sorted(map(str, (library.parent / "native").glob("*.c")))
        done = subprocess.run(
            [compiler, "-O3", *CPUS[name], *ALONE, "-o", str(new), *files],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            new.unlink(missing_ok=True)
            self.app.display_warning(f"{compiler} cannot compile {KERNELS}/native: {done.stderr}")
            return
        new.replace(library)
        build_data["artifacts"].append(str(KERNELS / library.name))
