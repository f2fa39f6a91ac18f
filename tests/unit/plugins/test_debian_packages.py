"""The script that installs packages with apt-get, which is a stub here."""

import subprocess
from pathlib import Path

import pytest

from tests.programs import ROOT

SCRIPT = ROOT / "roles/os_package/files/debian.sh"
# an installation succeeds whatever was asked for; `$FOUND` is what it would install
APT_GET = """\
#!/bin/sh
case " $* " in
*" -s install "*) [ -z "$FOUND" ] || echo "Inst $FOUND (1.0 Ubuntu:22.04 [amd64])" ;;
*" install "*) touch "$PLACE/installed" ;;
esac
"""


@pytest.mark.parametrize(
    ("found", "installs"), [("python3.11", True), ("python3-distutils", False), ("", False)]
)
def test_what_merely_matches_a_name_is_not_installed(
    tmp_path: Path, found: str, installs: bool
) -> None:
    """To apt-get an unknown name with a dot is a pattern."""
    record = tmp_path / "record"
    for name, text in {"apt-get": APT_GET, "dpkg-query": "#!/bin/sh\nexit 1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", SCRIPT, "install", record, "really", "1", "python3.11"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "FOUND": found, "PLACE": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == installs, done.stdout + done.stderr
    assert (tmp_path / "installed").exists() == record.exists() == installs
    assert ("apt-get could not install python3.11" in done.stdout) == (not installs)
