"""Exit codes and `--json` documents that others rely on: contract.json has them as recorded.

Texts for people may change, so of a string with blanks only that it is there is compared. After a
wanted change: FTCLUSTER_RENEW_CONTRACT=1 .venv-dev/bin/pytest tests/unit/cli/test_contract.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs import ROOT

RECORDED = Path(__file__).with_name("contract.json")
FACTS = json.loads((ROOT / "tests/unit/planning/golden/sapphire-rapids-snc4.json").read_text())
COMMANDS = (
    "",
    "nonsense",
    "setup missing.ini",
    "setup --json missing.ini",
    "teardown",
    "stacks --json",
    "stacks native --json",
    "stacks unknown --json",
    "stacks --torch 2.7 --ipex --json",
    "stacks --torch 1.0 --json",
    "stacks --torch abc",
    "plan quickstart --json",
    "plan quickstart --json --facts facts.json",
    "plan mrpc --ranks-per-host 2 --json --facts facts.json",
    "plan gpt2 training.ddp_backend=ccl --json --facts facts.json",
    "plan unknown --json --facts facts.json",
    "plan --json --facts missing.json",
    "train quickstart --dry-run --json",
    "train quickstart --dry-run --json --nodes 9",
    "train quickstart --dry-run --json --hosts node9,node9",
    "train quickstart --dry-run --hosts node1,",
    "plan quickstart --json --facts facts.json --spares 1",
    "train quickstart --dry-run no_such_key=1",
    "train unknown --dry-run",
    "train missing.yml",
    "run --dry-run --json -- script.py --epochs 3",
    "run --dry-run --json -- missing.py",
    "run",
    "data classify --json --here --data rows.csv --model someone/bert",
    "data --json --here --task word_count.py --data texts.jsonl --model someone/bert",
    "data --here --task missing.py",
    "data classify --here --metrics missing.py --data rows.csv --model someone/bert",
    "data unknown",
    "bundle --stack unknown",
    "bench",
    "bench allreduce --json --sizes 25X",
    "bench allreduce --json --backends nccl",
    "bench scaling --json unknown",
    "report --json --scaling facts.json",
    "report --json",
)


def outline(value: Any, folder: str) -> Any:
    """Return a document without values that differ between runs or wording of sentences."""
    if isinstance(value, dict):
        return {key: outline(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        shown = [outline(one, folder) for one in value]
        return shown if len(shown) < 5 else [shown[0], f"... {len(shown)}"]
    if isinstance(value, str):
        value = re.sub(r"\d{8}-\d{6}-\w+", "TIME", value.replace(folder, "FOLDER"))
        value = re.sub(r"work-[0-9a-f]{12}", "work-DIGEST", value)
        return "a text" if " " in value or "\n" in value else value
    return value


def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}  # type: ignore[no-any-return]


@pytest.mark.parametrize("command", COMMANDS)
def test_exit_codes_and_documents_are_as_recorded(command: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "script.py").write_text("print(1)\n")
    (work / "rows.csv").write_text("text,label\na b,x\nc d,y\n")
    (work / "texts.jsonl").write_text('{"text": "two words"}\n')
    (work / "word_count.py").write_text((ROOT / "examples/word_count.py").read_text())
    (work / "word_count.py").chmod(0o644)
    (work / "facts.json").write_text(json.dumps(FACTS["facts"]))
    state = tmp_path / "state/ftcluster"
    if command.startswith(("train", "run", "bench")):
        state.mkdir(parents=True)
        cluster = {
            "inventories": [], "hosts": "all", "options": [], "facts": FACTS["facts"],
            "record": "", "as_of": "",
        }  # fmt: skip
        (state / "cluster.json").write_text(json.dumps(cluster))
    paths = os.environ.get("FTCLUSTER_RUNNER") or f"{ROOT / 'runner'}:{ROOT / 'common'}"
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": paths, "COLUMNS": "100",
        "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from ftcluster.cli.main import main; sys.exit(main())",
         *command.split()],
        env=environment, cwd=work, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout) if "--json" in command and done.stdout else None
    found = {"exit": done.returncode, "document": outline(document, str(tmp_path))}
    if "FTCLUSTER_RENEW_CONTRACT" in os.environ:
        text = json.dumps({**recorded(), command: found}, indent=1, sort_keys=True)
        RECORDED.write_text(text + "\n")
    assert found == recorded()[command]
