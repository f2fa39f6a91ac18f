"""Measurements of different machines are neither merged nor compared."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import figures, machines, speed_page
from bench.machines import Lines, differences, machine_of, resumed
from tests.programs import ROOT

RESULTS = ROOT / "bench/results"
AMX, EPYC, AVX2 = "2026-11-27-engine.json", "2026-11-28-engine.json", "2026-11-28-engine-avx2.json"
RUNS = "2026-11-23-time-to-quality-runs.jsonl"
# older than the record of machines
WITHOUT_MACHINE = {
    "2026-11-21-first-setup.json", "2026-11-22-memory-peaks.json", "2026-11-22-snapshots.json",
}  # fmt: skip


def content(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return document


def measured_on(name: str) -> dict[str, Any]:
    return machine_of(content(name))


def test_all_results_record_their_machine() -> None:
    for path in RESULTS.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        for document in found if isinstance(found, list) else [found]:
            assert machine_of(document).get("cpu") or path.name in WITHOUT_MACHINE, path.name
    for path in RESULTS.glob("*.jsonl"):
        assert Lines(path).machine()["cpu"], path.name


@pytest.mark.parametrize(
    ("one", "other", "facts"),
    [
        (AMX, EPYC, ["cpu", "instructions"]),
        (EPYC, AVX2, ["limits", "precision"]),
        (AMX, "2026-11-27-engine-fp32.json", ["precision"]),
        (AMX, "2026-11-26-quality.json", ["threads"]),
        ("2026-11-23-embed.json", "2026-11-23-embed-seeds.json", ["cores"]),
        ("2026-11-22-engine.json", "2026-11-25-engine.json", ["instructions"]),
        (EPYC, "2026-11-22-engine.json", ["instructions", "threads", "precision", "versions"]),
        (AMX, "2026-11-27-engine-tasks.json", []),
        (AMX, "2026-11-27-embed.json", []),  # the versions of further packages do not matter
    ],
)  # fmt: skip
def test_differences_of_measured_machines(one: str, other: str, facts: list[str]) -> None:
    first, second = measured_on(one), measured_on(other)
    assert differences(first, second) == differences(second, first) == facts


def test_another_version_of_a_compared_package_differs() -> None:
    """The same machine, with the engine of another day's transformers."""
    newer = measured_on(AMX)
    newer["versions"] = newer["versions"] | {"transformers": "5.24.0"}
    assert differences(measured_on("2026-11-27-embed.json"), newer) == ["versions"]


def test_a_section_with_files_of_two_machines_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A case that is measured again on another CPU would be compared with the older ones."""
    monkeypatch.setitem(speed_page.FILES, "engine", (AMX, EPYC))
    monkeypatch.setattr(sys, "argv", ["figures", "--check"])
    with pytest.raises(SystemExit) as refused:
        figures.main()
    [problem, first, second, remedy] = str(refused.value.code).splitlines()
    assert problem.endswith("different: cpu, instructions")
    assert first.startswith(f"  bench/results/{AMX}: Intel(R) Xeon(R) Processor, amx_bf16 ")
    assert second.startswith(f"  bench/results/{EPYC}: AMD EPYC, avx512_bf16 avx512f avx2, 2 cores")
    assert "separate sections" in remedy


@pytest.mark.parametrize(
    ("section", "file", "of_table"),
    [
        ("fast", "2026-11-25-fast.json", speed_page.comparisons),
        ("sft", "2026-11-28-sft.json", speed_page.comparisons),
        ("embed-avx2", "2026-11-28-embed.json", lambda: speed_page.without_amx("avx2")),
        ("engine-fp32", AVX2, speed_page.by_precision),
    ],
)  # fmt: skip
def test_a_table_of_several_machines_is_refused(
    monkeypatch: pytest.MonkeyPatch, section: str, file: str, of_table: Any
) -> None:
    monkeypatch.setitem(speed_page.FILES, section, (file,))
    with pytest.raises(SystemExit, match="different machines"):
        list(of_table())


def test_a_table_names_the_machine_of_each_column() -> None:
    heads = speed_page.speed_ups().splitlines()[0]
    assert "| AMX (Intel Xeon) | AVX512-BF16 (AMD EPYC) | AVX2, fp32 (AMD EPYC) |" in heads


@pytest.mark.parametrize("name", ["2026-11-27-real-scaling.json", "2026-11-26-between-hosts.json"])
def test_results_are_only_continued_on_their_machine(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    shutil.copy(RESULTS / name, path)
    here = measured_on(name) | {"load": 99.0, "date": "2027-01-01"}
    assert resumed(path, here) == content(name)
    with pytest.raises(SystemExit, match=r"this machine: AMD EPYC(.|\n)*new file with --results"):
        resumed(path, here | {"cpu": "AMD EPYC"})
    assert resumed(tmp_path / "new.json", here, "rows") == {"machine": here, "rows": []}


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("cpu", "Intel(R) Xeon(R) Processor"), ("instructions", ["amx_bf16", "avx512_bf16"]),
        ("cores", 4), ("threads", 1), ("precision", "fp32"), ("versions", {"torch": "2.14.0"}),
        ("limits", {"ATEN_CPU_CAPABILITY": "avx2"}),
    ],
)  # fmt: skip
def test_lines_are_only_added_on_their_machine(tmp_path: Path, fact: str, value: object) -> None:
    path = tmp_path / RUNS
    shutil.copy(RESULTS / RUNS, path)
    runs = Lines(path)
    here = runs.machine()
    assert differences(here, measured_on("2026-11-23-time-to-quality.json")) == []
    before = path.read_bytes()
    with pytest.raises(SystemExit, match=f"different: {fact}(.|\n)*new file with --runs"):
        runs.add([{"case": "mrpc"}], here | {fact: value})
    assert path.read_bytes() == before
    runs.add([{"case": "mrpc"}], here)
    assert runs.read()[-1] == {"case": "mrpc", "machine": here}


def test_lines_of_two_machines_are_refused(tmp_path: Path) -> None:
    """Files that somebody joined, and a line of a version that recorded no machine."""
    path = tmp_path / "runs.jsonl"
    lines = (RESULTS / RUNS).read_text(encoding="utf-8").splitlines()[:2]
    other = json.dumps(json.loads(lines[0]) | {"machine": measured_on(AMX)})
    path.write_text("\n".join((*lines, other)) + "\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"runs.jsonl:1: AMD EPYC(.|\n)*runs.jsonl:3: Intel"):
        Lines(path).read()
    path.write_text('{"case": "mrpc"}\n', encoding="utf-8")
    with pytest.raises(SystemExit, match=r"runs.jsonl:1 does not record its machine"):
        Lines(path).read()


@pytest.mark.parametrize(
    ("module", "file", "arguments"),
    [
        ("light_hosts", "2026-11-27-light-hosts.json", "2 --results FILE"),
        ("scale", "2026-11-26-scale.json", "--results FILE"),
        ("scale_commands", "2026-11-26-scale.json", "--results FILE"),
        ("real_scaling", "2026-11-27-real-scaling.json", "measure --results FILE"),
        ("scaling_proof", RUNS, "replay --results FILE"),
        ("curves", RUNS, "--data D --runs FILE"),
        ("quality", RUNS, "--data D --encoder D --runs FILE"),
        ("local_sync", "2026-11-23-local-sync-runs.jsonl", "--data D --encoder D --runs FILE"),
        ("time_to_quality", RUNS, "--data D --encoder D --runs FILE"),
    ],
)  # fmt: skip
def test_programs_measure_nothing_for_a_file_of_another_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, file: str, arguments: str
) -> None:
    """The file has results of an EPYC or a Xeon; this machine has another CPU."""
    path = tmp_path / file
    shutil.copy(RESULTS / file, path)
    before = path.read_bytes()
    program = importlib.import_module(f"bench.{module}")
    here = measured_on(EPYC) | {"cpu": "Another CPU"}
    for name in ("cpu", "machine"):
        if hasattr(program, name):
            monkeypatch.setattr(program, name, lambda *_, **__: here)
    monkeypatch.setattr(machines, "cpu", lambda: here)
    words = [str(path) if word == "FILE" else word for word in arguments.split()]
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit, match="this machine: Another CPU"):
        program.main()
    assert path.read_bytes() == before
