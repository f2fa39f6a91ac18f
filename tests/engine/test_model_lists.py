"""transformers reads the list of its models once, and lists the same names."""

import json
import subprocess
import sys
from typing import Any


def printed(program: str) -> Any:
    """Return the JSON document that a new Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_models_are_read_once_and_listed_as_before() -> None:
    program = """
import json, sys
reads = []
sys.addaudithook(
    lambda event, args: reads.append(args[0]) if event == "open" and args[1] == "r" else None
)
{first}
import transformers.models
bert = [path for path in reads if str(path).endswith("/modeling_bert.py")]
print(json.dumps([len(bert), sorted(dir(transformers)), sorted(dir(transformers.models))]))
"""
    plain = printed(program.format(first=""))
    hook = "from ftcluster_train.engine.model_lists import read_models_once as r; r()"
    once = printed(program.format(first=hook))
    assert (once[0], plain[0]) == (1, 2)
    assert once[1:] == plain[1:]
    assert "BertModel" in once[1]
