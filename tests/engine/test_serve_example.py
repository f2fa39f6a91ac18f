"""examples/serve.py answers as `ftcluster predict` does, with ONNX Runtime and with OpenVINO.

Its packages, and those of the export, are in no stack. FTCLUSTER_TEST_SITE is a folder with them:
`pip install --no-deps --target DIR fastapi starlette pydantic pydantic-core annotated-types
annotated-doc typing-inspection opentelemetry-api anyio uvicorn h11 click onnxruntime onnx
onnxscript onnx-ir ml-dtypes flatbuffers protobuf openvino`.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.tasks.registry import TASKS
from tests.engine import runs
from tests.engine.jobs import result_of
from tests.engine.runs import Row, make_whole_job, write_data, write_model
from tests.programs import CONTROL, ROOT, free_ports, wait_for

SITE = os.environ.get("FTCLUSTER_TEST_SITE", "")
NEEDED = ("fastapi", "uvicorn", "onnxruntime", "onnxscript", "openvino")
PROGRAM = ROOT / "runner/ftcluster/export/exporters/program.py"
COPY = """
import sys
from pathlib import Path
from ftcluster.operations.models.export_model import copy_rest
for target in sys.argv[2:]:
    copy_rest(Path(sys.argv[1]), Path(target))
"""
CONVERT = """
import sys
import openvino
openvino.save_model(openvino.convert_model(sys.argv[1]), sys.argv[2], compress_to_fp16=False)
"""
TEXTS = [
    "w5 w6 w7", "w90 w8", "w11 w12 w13 w14 w15 w16 w17 w18 w19 w20", "w4", "unheard w9 of",
    " ".join(f"w{n}" for n in range(5, 95)),  # longer than max_length
]  # fmt: skip


def pairs() -> list[Row]:
    return [{"query": f"w{n} w9", "text": text} for n, text in enumerate(TEXTS, start=20)]


def compared_classes(answer: Any, row: Row) -> None:
    assert answer["class"] == row["prediction"]
    assert answer["probability"] == pytest.approx(row["probability"], abs=1e-4)


def compared_numbers(answer: Any, row: Row) -> None:
    assert answer == pytest.approx(row["prediction"], abs=1e-4)


def compared_tags(answer: Any, row: Row) -> None:
    assert answer == row["prediction"]


# task: training rows, rows to predict, the inputs of the request, the comparison
CASES: dict[str, tuple[Any, list[Row], list[Any], Callable[[Any, Row], None]]] = {
    "text-classification": (
        runs.classes, [{"text": text} for text in TEXTS], TEXTS, compared_classes
    ),
    "token-classification": (
        runs.tags, [{"tokens": text.split()} for text in TEXTS[:5]],
        [text.split() for text in TEXTS[:5]], compared_tags,
    ),
    "sentence-similarity": (
        runs.triplets, [{"text": text} for text in TEXTS], TEXTS, compared_numbers
    ),
    "text-ranking": (
        runs.triplets, pairs(), [[row["query"], row["text"]] for row in pairs()], compared_numbers
    ),
}  # fmt: skip


def exported(model: str, task: str, folder: Path) -> list[Path]:
    """Folders for ONNX Runtime and for OpenVINO, with the files that export-model copies."""
    onnx, openvino = folder / "onnx", folder / "openvino"
    for target in (onnx, openvino):
        target.mkdir()
    rows = [{"texts": ["w5 w6"] if task != "text-ranking" else ["w5", "w6"], "label": None}]
    request = {
        "format": "onnx", "source": model, "target": str(onnx), "kind": TASKS[task].exported_as,
        "int8": False, "max_length": 32, "measure": "", "rows": rows,
    }  # fmt: skip
    (folder / "request.json").write_text(json.dumps(request))
    with_site = {**os.environ, "PYTHONPATH": SITE}

    def run(python: str | Path, *words: str | Path, **variables: str) -> None:
        done = subprocess.run(
            [python, *words], env={**with_site, **variables}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    result = folder / "result.json"
    run(sys.executable, PROGRAM, folder / "request.json", result)
    assert "error" not in json.loads(result.read_text()), result.read_text()
    run(sys.executable, "-c", CONVERT, onnx / "model.onnx", openvino / "openvino_model.xml")
    run(CONTROL / "python", "-c", COPY, model, onnx, openvino, PYTHONPATH="")
    return [onnx, openvino]


@contextmanager
def served(model: Path) -> Iterator[str]:
    """The address of the example's server for a model."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", "serve:app", "--port", str(port)]
    environment = {**os.environ, "MODEL": str(model), "PYTHONPATH": f"{SITE}:{ROOT}/examples"}
    log = model / "log"
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: "Uvicorn running" in log.read_text() or server.poll() is not None)
        assert server.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}/predict"
    finally:
        server.kill()  # it has inherited that this process, as a rank, blocks SIGTERM
        server.wait()


def answers(address: str, inputs: list[Any]) -> Any:
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.long
@pytest.mark.parametrize("task", CASES)
@pytest.mark.usefixtures("one_world")
def test_a_served_model_answers_as_predict_does(task: str, tmp_path: Path) -> None:
    for module in NEEDED:
        if not PathFinder.find_spec(module, [SITE]):
            pytest.skip(f"on demand: set FTCLUSTER_TEST_SITE to a folder with {module}")
    rows, unseen, inputs, compare = CASES[task]
    data = write_data(tmp_path / "data", {"train": rows(24, 1), "validation": rows(8, 2)})
    base = write_model(tmp_path / "base", "bert", task)
    job = make_whole_job(tmp_path / "runs/one", task, data, base, max_steps=2)
    model = result_of(job)["model"]
    asked = make_whole_job(
        tmp_path / "runs/two", task, write_data(tmp_path / "unseen", {"test": unseen}), model
    )
    recipe = replace(asked.recipe, precision="fp32")
    predicted = result_of(replace(asked, recipe=recipe, precision="fp32", purpose=PREDICT))
    [file] = Path(predicted["predictions"]).iterdir()
    wanted = [json.loads(line) for line in file.read_text().splitlines()]
    for folder in exported(model, task, tmp_path):
        with served(folder) as address:
            found = answers(address, inputs)
            assert len(found) == len(wanted) == len(inputs)
            for answer, row in zip(found, wanted, strict=True):
                compare(answer, row)
            # an input alone, without padding, has the same answer
            assert str(answers(address, inputs[:1])[0])[:6] == str(found[0])[:6]
