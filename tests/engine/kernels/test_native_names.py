"""No name in the C loops hides another name, so each name has one meaning in a function."""

import os
import subprocess
from pathlib import Path

import ftcluster_kernels

NATIVE = Path(ftcluster_kernels.__file__).with_name("native")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma")


def hidden_names(*files: Path) -> list[str]:
    """Return the compiler's warnings about names that hide a name of an outer scope."""
    command = ["cc", *AVX512, "-fsyntax-only", "-Wshadow", *map(str, files)]
    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True
    )
    return [line for line in done.stderr.splitlines() if "Wshadow" in line]


def test_no_name_hides_another_one() -> None:
    files = sorted(NATIVE.glob("*.c"))
    assert NATIVE / "product.c" in files
    assert hidden_names(*files) == []


def test_a_variable_with_the_name_of_a_type_is_found(tmp_path: Path) -> None:
    source = tmp_path / "names.c"
    source.write_text("typedef int words;\nint twice(int words) { return 2 * words; }\n")
    [message] = hidden_names(source)
    assert message.startswith(f"{source}:2:15: warning")
