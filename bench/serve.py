"""Throughput of examples/serve.py: an exported model over HTTP, on this machine.

    PYTHONPATH=. PYTHON -m bench.serve MODEL [--words N] [--seconds N] [--results FILE]

with a Python that has the example's packages. MODEL is a classifier or an embedder, exported by
`ftcluster export-model`. Four clients send requests of one text, then of 32 texts; each client
sends the next request after the previous response. Texts per second are measured by wall time, and
per core by the server's CPU time, which other work on the machine changes less.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from bench.machines import cpu

ROOT = Path(__file__).parents[1]
CLIENTS, BATCHES = 4, (1, 32)
START_SECONDS = 120.0


def main() -> int:
    """Measure, print and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--words", type=int, default=32, help="of a text")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each size of request")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "serve:app", "--port", str(port), "--log-level", "error"],
        env={
            **os.environ,
            "MODEL": str(options.model.absolute()),
            "PYTHONPATH": f"{ROOT}/examples:{os.environ.get('PYTHONPATH', '')}",
        },
    )
    try:
        address = f"http://127.0.0.1:{port}/predict"
        vocabulary = words_of(options.model)
        wait_until_ready(address, vocabulary)
        found = {
            str(size): measure(address, server.pid, vocabulary, size, options) for size in BATCHES
        }
    finally:
        server.terminate()
        server.wait()
    results = {
        "machine": cpu(), "words": options.words,
        "runtime": runtime(options.model), "clients": CLIENTS, "texts_a_request": found,
    }  # fmt: skip
    print(json.dumps(results, indent=1))
    if options.results:
        options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def words_of(model: Path) -> list[str]:
    """Return the plain words of the model's vocabulary."""
    vocabulary = json.loads((model / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return [word for word in vocabulary if word.isalnum()]


def runtime(model: Path) -> str:
    """Return the name and version of the library that computes."""
    name = "onnxruntime" if (model / "model.onnx").is_file() else "openvino"
    return f"{name} {__import__(name).__version__}"


def ask(address: str, texts: list[str]) -> None:
    """Send a request and read its answer."""
    body = json.dumps({"inputs": texts}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        assert len(json.load(response)) == len(texts)


def wait_until_ready(address: str, vocabulary: list[str]) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return ask(address, vocabulary[:1])
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    address: str, pid: int, vocabulary: list[str], size: int, options: argparse.Namespace
) -> dict[str, float]:
    """Return the throughput of requests with `size` texts."""
    latencies: list[float] = []
    began, cpu = time.monotonic(), cpu_seconds(pid)

    def client(seed: int) -> None:
        draw = random.Random(seed)
        while time.monotonic() - began < options.seconds:
            texts = [" ".join(draw.choices(vocabulary, k=options.words)) for _ in range(size)]
            sent = time.monotonic()
            ask(address, texts)
            latencies.append(time.monotonic() - sent)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    texts, spent = size * len(latencies), cpu_seconds(pid) - cpu
    return {
        "texts": texts,
        "texts_per_second": round(texts / (time.monotonic() - began), 1),
        "texts_per_core_second": round(texts / spent, 1),
        "median_latency_ms": round(1000 * statistics.median(latencies), 1),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
