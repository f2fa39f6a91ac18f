import time
from dataclasses import asdict, replace

from ftcluster.operations.runs.runs import table, uses
from ftcluster_common.protocol.run_state import RunState, run_state_of

RUN = RunState("mrpc-1", "running", "mrpc", ("n1", "n2"), 2, 3, 9, 0.0, 61.0, "", "", "ops on b")


def test_a_line_says_where_a_run_is_and_whose_it_is() -> None:
    heads, one, other = table([RUN, RunState("a-2", "running", "a", (), 0, 0, 0, 0.0, 1.0, "")])
    assert heads.split() == ["run", "state", "step", "hosts", "started", "time", "by"]
    assert one.split()[:4] == ["mrpc-1", "running", "3/9", "n1-n2"]
    assert one.endswith("ops on b")
    assert other.split()[:4] == ["a-2", "preparing", "-", "-"]


def test_a_terminal_of_eighty_columns_has_a_line_a_run() -> None:
    run = "quickstart-20260131-101500-7f3a"
    runs = [
        replace(RUN, run=run, hosts=tuple(f"node{n}" for n in range(1, count)), step=1000,
                steps=2000, seconds=7000.0, started_by="somebody on a-control-node")
        for count in (3, 30)
    ]  # fmt: skip
    assert max(map(len, table(runs))) > 80
    lines = table(runs, 80)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["run", "state", "step", "hosts", "time"]
    assert table([RUN], 80)[0].split()[-1] == "by"


def test_tags_have_a_column_where_a_run_has_some() -> None:
    heads, one, other = table([replace(RUN, tags="team=nlp ticket=42"), RUN])
    assert heads.split()[-1] == "tags"
    assert one.endswith("team=nlp ticket=42")
    assert other.endswith("-")
    wide = replace(RUN, tags="x=" + 80 * "y")
    assert max(map(len, table([wide], 80))) <= 80


def test_a_run_of_an_older_node_package() -> None:
    known = asdict(RUN)
    del known["started_by"], known["checkpoint"]
    assert run_state_of(known) == replace(RUN, started_by="")


def test_a_run_that_waits_or_was_interrupted_says_so() -> None:
    waits = replace(RUN, doing="waiting for n2 (0:45 of 2:00)")
    gone = replace(RUN, run="mrpc-0", state="failed", doing="interrupted")
    _, first, second, hint = table([waits, gone])
    assert "mrpc-1  waiting for n2 (0:45 of 2:00)  3/9" in first
    assert "mrpc-0  interrupted                    3/9" in second
    assert hint.endswith("ftcluster attach RUN")


def test_the_newest_failed_runs_say_why_they_ended() -> None:
    cause = "n2 (10.0.0.2): its host key has changed since the last setup"
    failed = [replace(RUN, run=f"mrpc-{n}", state="failed", why=cause) for n in range(5)]
    *_, last = table([RUN, failed[0]])
    assert last == f"mrpc-0 failed: {cause}"
    assert len(table(failed)) == 1 + 5 + 3


def test_ps_says_who_uses_which_hosts() -> None:
    now = time.time()
    a = replace(RUN, hosts=("n2", "n3"), started=now, ends=now + 1)
    b = replace(RUN, run="b-1", hosts=("n1",), started=now, started_by="", ends=now - 1)
    doing = "waiting (place 2 in the queue): n1: run b-1 is using it; run x waits for it"
    waits = replace(RUN, run="c-1", hosts=("n4",), doing=doing)
    done = replace(RUN, run="d-1", state="done", hosts=("n5",))
    first, second, free, queued = uses([a, b, waits, done], ("n1", "n2", "n3", "n4", "n5"))
    clock = time.strftime("%H:%M", time.localtime(now))
    assert first.startswith(f"n2-n3: used by ops on b, mrpc-1, since {clock}, until about ")
    # its expected end has passed, so the end is unknown
    assert second == f"n1: used by b-1, since {clock}"
    assert free == "free: n4-n5"
    assert queued == "c-1 waits for n1: run b-1 is using it; run x waits for it"
    assert "waiting (place 2 in the queue)  3/9" in table([waits])[1]
    assert uses([a, b], ("n1", "n2", "n3"))[-1] == "free: none"
    assert uses([done], ("n1", "n2")) == uses([b], ("n1",)) == []
