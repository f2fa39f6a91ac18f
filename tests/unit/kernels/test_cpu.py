from pathlib import Path

import pytest

from ftcluster_kernels.cpu import cpuinfo_field

XEON = "model name\t: Xeon: Gold\nflags\t\t: fpu avx2\n\nmodel name\t: another\n"


def test_a_field_is_the_first_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: XEON)
    assert cpuinfo_field("model name") == "Xeon: Gold"
    assert cpuinfo_field("flags").split() == ["fpu", "avx2"]
    assert cpuinfo_field("bugs") == ""


def test_a_system_without_cpuinfo_has_no_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert cpuinfo_field("flags") == ""
