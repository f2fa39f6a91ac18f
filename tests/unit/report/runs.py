"""Runs with invented events and known times, so that the expected report is known."""

import json
from typing import Any

from ftcluster.launch.events import read_event_line
from ftcluster.report.files import RunFiles
from tests.programs import ROOT

BEGAN = 1_795_398_000.0
BATCH, TOKENS = 64, 40  # samples per step, and tokens per sample
WEIGHTS = 1_000_000
CORES = 4  # cores per rank
STEPS = 40
LOGGED = 10  # steps between two logs
# the parts of a measured step of BERT-base on two hosts
TRACE = json.loads((ROOT / "bench/results/2026-11-27-real-scaling.json").read_text())["trace"]


def run_files(run: str = "mrpc-20261123-013759-2872", **changes: Any) -> RunFiles:
    hosts = changes.get("hosts", 2)
    return RunFiles(run, record(hosts), events(**changes))


def record(hosts: int = 2) -> dict[str, Any]:
    """Return a record: each host has two ranks, and one idle core."""
    names = [f"node{number}" for number in range(1, hosts + 1)]
    numa = [
        {"node": 0, "cores": CORES, "cpus": f"0-{CORES - 1}"},
        {"node": 1, "cores": CORES + 1, "cpus": f"{CORES}-{2 * CORES}"},
    ]
    return {
        "command": ["ftcluster", "train", "mrpc"],
        "kind": "train",
        "stack": {"name": "native", "packages": {"torch": "2.13.0"}},
        "recipe": {"name": "mrpc", "batch_size": BATCH},
        "facts": [
            {
                "name": name, "hostname": f"{name}.example", "cpu_model": "Xeon <Platinum>",
                "cores": 2 * CORES + 1, "memory_bytes": 64 << 30, "numa": numa,
                "price_per_hour": "36 USD",
            }
            for name in names
        ],
        "plan": {
            "hosts": [{"name": name, "placement": [{}, {}]} for name in names],
            "decisions": [
                {"what": "precision", "value": "bf16", "why": "every host has AMX", "hosts": []}
            ],
        },
    }  # fmt: skip


def events(hosts: int = 2, slow: int = -1, restart: bool = False) -> list[dict[str, Any]]:
    """A step takes 100 ms of work, of these 10 of input, and 20 of communication.

    Args:
        slow: the number of a host whose ranks take 50 ms more; the others wait for them.
        restart: whether step 25 fails and the ranks continue after step 20.
    """
    world = 2 * hosts
    work = [0.15 if rank // 2 == slow else 0.1 for rank in range(world)]
    step_seconds = max(work) + 0.02
    found: list[dict[str, Any]] = []
    now = BEGAN
    trained = 0.0

    def write(kind: str, **fields: Any) -> None:
        event = {"event": kind, "time": round(now, 3), **fields}
        found.append(read_event_line(json.dumps(event).encode()))

    def start() -> None:
        nonlocal now
        now += 5
        ranks = [
            {
                "rank": rank, "host": f"node{rank // 2 + 1}.example", "memory_nodes": [rank % 2],
                "cpus": f"{rank % 2 * CORES}-{rank % 2 * CORES + CORES - 1}", "threads": CORES,
            }
            for rank in range(world)
        ]  # fmt: skip
        write("placement", ranks=ranks)
        now += 5
        # twice the speed that the training needs
        rate = 2 * 6e-9 * WEIGHTS * BATCH * TOKENS / world / step_seconds
        write("products", gflops=[rate] * world, weights=WEIGHTS)
        write(
            "start", world_size=world, threads_per_rank=CORES, precision="bf16", ipex=False,
            backend="impi", steps=STEPS, epochs=1.0, train_samples=STEPS * BATCH, parameters=5,
        )  # fmt: skip

    def train(first: int, last: int) -> None:
        nonlocal now, trained
        if world > 1:
            write("timeline", step=first + 4, spans=TRACE)
        for step in range(first, last + 1):
            now, trained = now + step_seconds, trained + step_seconds
            if step % LOGGED:
                continue
            steps = step - first + 1
            write(
                "step", step=step, epoch=step / STEPS, loss=1 / step, grad_norm=1.0,
                learning_rate=1e-4, samples_per_second=step * BATCH / trained,
                train_seconds=trained, remaining_seconds=(STEPS - step) * step_seconds,
            )  # fmt: skip
            write(
                "communication", step=step, steps=steps, train_seconds=steps * step_seconds,
                tokens=steps * 700, useful_tokens=steps * BATCH * TOKENS,
                waited_seconds=[steps * (step_seconds - one) for one in work],
                transfer_seconds=steps * 0.02, input_seconds=[steps * 0.01] * world,
                sent_bytes=steps * 4e6, collectives=steps, latency_seconds=1e-4,
            )  # fmt: skip
            if step % (2 * LOGGED) == 0:
                now += 2
                write("evaluation", step=step, epoch=1.0, metrics={"f1": step / 50}, seconds=2.0)
                now += 1
                write("checkpoint", step=step, folder=f"/c/checkpoint-{step}", seconds=1.0)

    write("phase", doing="starting the ranks")
    start()
    if restart:
        train(1, 25)
        trained = 20 * step_seconds
        now += 3
        write("restart", restart=1, max_restarts=3, message="rank 1 on node1: killed & <gone>")
        start()
        train(21, STEPS)
    else:
        train(1, STEPS)
    now += 1
    write(
        "result", model="/runs/r/model", metrics={"f1": 0.8}, train_seconds=trained,
        samples_per_second=STEPS * BATCH / trained, world_size=world,
    )  # fmt: skip
    now += 1
    write("end", state="done", exit_code=0, seconds=now - BEGAN)
    return found
