"""Build hook of the hosts' package: compiles the C files for the hosts' CPUs, and adds the version.

The compiled libraries depend on no other library, not even the C library, so the wheel is tagged
for all systems. On systems where the libraries do not load, torch's functions are used.
"""

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
COMPILE = ("-O3", "-fPIC", "-fvisibility=hidden", "-c")
LINK = ("-shared", "-nostdlib")


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
        files = sorted((Path(self.root) / KERNELS / "native").glob("*.c"))
        scratch = Path(self._scratch.name)
        objects = {name: [scratch / f"{file.stem}-{name}.o" for file in files] for name in CPUS}
        # one program for each file, because all files together need 20 s of one core
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            compiled = {
                name: [
                    threads.submit(_errors, [compiler, *COMPILE, *flags, "-o", output, file])
                    for file, output in zip(files, objects[name], strict=True)
                ]
                for name, flags in CPUS.items()
            }
        for name, outputs in objects.items():
            library = Path(self.root) / KERNELS / name
            new = library.with_suffix(".new")
            # a compiler that lacks an instruction set fails for every file
            errors = next(filter(None, (one.result() for one in compiled[name])), "")
            errors = errors or _errors([compiler, *LINK, "-o", new, *outputs])
            if errors:
                new.unlink(missing_ok=True)
                self.app.display_warning(f"{compiler} cannot compile {KERNELS}/native: {errors}")
                continue
            new.replace(library)
            build_data["artifacts"].append(str(KERNELS / name))


def _errors(command: list[str | Path]) -> str:
    """Run a compiler; return its messages if it fails, otherwise ""."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr or f"exit code {done.returncode}") if done.returncode else ""
