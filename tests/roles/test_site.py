"""The site of documents, built as for users."""

import subprocess
from pathlib import Path

from tests.programs import ROOT


def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run([ROOT / "scripts/docs"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    index = Path(done.stdout.strip())
    start = index.read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html' in start or page.stem == "index", "not in the navigation"
    assert (index.parent.parent / "index.html").is_file()
