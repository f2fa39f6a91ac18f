from ansible_collections.ftcluster.cluster.plugins.plugin_utils.progress import (
    EVERY_SECONDS,
    Reporter,
    read_progress,
)


def test_one_activity_is_reported_every_few_seconds_and_a_new_one_at_once() -> None:
    now, lines = [0.0], list[str]()
    reporter = Reporter("n1", lines.append, lambda: now[0])
    for second in range(12):
        now[0] = second
        reporter.report_bytes("downloading", second * 1e6, 450e6)
    reporter.report_bytes("sending", 0, 450e6)
    reporter.report("waiting")
    assert EVERY_SECONDS == 5
    assert [read_progress(line) for line in lines] == [
        ("n1", "downloading: 0 MB of 450 MB"), ("n1", "downloading: 5 MB of 450 MB"),
        ("n1", "downloading: 10 MB of 450 MB"), ("n1", "sending: 0 MB of 450 MB"),
        ("n1", "waiting"),
    ]  # fmt: skip


def test_other_lines_are_no_progress() -> None:
    for line in ("", "progress", "progress | n1", "x | n1 | y", "progress | n1 | a\nprogress | n2"):
        assert read_progress(line) is None
