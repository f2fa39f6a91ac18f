"""docs/speed.md has the measurements of bench/results."""

from bench import speed_page


def test_the_tables_are_those_of_the_measurements() -> None:
    page = speed_page.PAGE.read_text(encoding="utf-8")
    found = list(speed_page.comparisons())
    assert speed_page.with_tables(page, found) == page, "run python -m bench.speed_page"
    assert len(found) >= 8
    assert all(one.ours > 0 and any(one.ratios()) for one in found)


def test_tables_are_written_between_their_comments() -> None:
    one = speed_page.Comparison("MRPC", "Trainer", 10.0, 16.0, 32.04, "samples/s", 0.731)
    page = "".join(
        f"{name}\n<!-- table: {name} -->\nold\n<!-- end -->\n" for name in speed_page.tables([])
    )
    written = speed_page.with_tables(page, [one])
    row = "| MRPC | Trainer | 10 | 16 | 32 samples/s | **2.0** | 3.2 | 73% |"
    assert f"{row}\n<!-- end -->\n" in written
    assert "old" not in written
    assert speed_page.with_tables(written, [one]) == written
