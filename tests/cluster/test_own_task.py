"""The task in examples/word_count.py with the installed command, as on docs/own-task.md."""

import json
from pathlib import Path

from tests.cluster.conftest import Machine
from tests.cluster.rows import Row, write_rows

STEPS = ("--ranks-per-host", "2", "batch_size=8", "precision=fp32", "max_steps=8",
         "learning_rate=1e-3", "eval_steps=4", "eval_strategy=steps", "save_strategy=steps",
         "save_steps=4")  # fmt: skip


def text(number: int) -> Row:
    return {"text": " ".join(["Anna", "has", "a", "red", "ball"][: 1 + number % 5])}


def test_a_task_of_ones_own_from_its_file_to_predictions(machine: Machine, tmp_path: Path) -> None:
    home = machine.home
    shown = home.run("examples", "word_count", "--to", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    file = tmp_path / "word_count.py"
    file.chmod(0o644)
    task = ("--task", str(file), "--model")
    data = ("--data", str(write_rows(tmp_path / "texts", text, train=40, validation=10)))

    described = home.run("data", *task, str(machine.model), *data, "--json")
    assert described.returncode == 0, described.stderr
    assert len(json.loads(described.stdout)["samples"]) > 0
    planned = home.run("plan", *task, str(machine.model), *data, "--ranks-per-host", "2")
    assert "2 ranks" in planned.stdout, planned.stderr

    done = home.run(
        "train", *task, str(machine.model), *data, *STEPS, "--tag", "team=nlp", "--json"
    )
    assert done.returncode == 0, done.stderr
    trained = json.loads(done.stdout)
    assert trained["world_size"] == 2
    assert trained["metrics"].keys() == {"loss", "exact"}
    run_dir = home.prefix / "runs" / trained["run"]
    assert (run_dir / file.name).read_text() == file.read_text()
    assert (run_dir / file.name).stat().st_mode & 0o777 == 0o600

    measured = home.run("evaluate", *task, trained["model"], *data, "--json")
    assert measured.returncode == 0, measured.stderr
    loss = json.loads(measured.stdout)["metrics"]["loss"]
    assert abs(loss - trained["metrics"]["loss"]) < 1e-3
    output = tmp_path / "predictions.jsonl"
    unseen = ("--data", str(write_rows(tmp_path / "unseen", text, test=6)))
    predicted = home.run("predict", *task, trained["model"], *unseen, "--output", str(output))
    assert predicted.returncode == 0, predicted.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["text"] for row in rows] == [text(number)["text"] for number in range(6)]
    assert all(isinstance(row["prediction"], float) for row in rows)

    without = home.run("evaluate", "--model", trained["model"], *data)
    assert without.returncode == 2
    assert "--task FILE.py" in without.stderr
    file.unlink()  # a run has its own copy of the file
    resumed = home.run("train", "--resume", trained["run"], "--json")
    assert resumed.returncode == 0, resumed.stderr
    again = json.loads(resumed.stdout)
    assert again["metrics"].keys() == {"loss", "exact"}
    # with the options of the launch, although this machine is a single node
    assert again["world_size"] == 2
    launch = json.loads((home.prefix / "runs" / again["run"] / "launch.json").read_text())
    assert launch["env"]["FTCLUSTER_TAGS"] == "team=nlp"
    assert "--ranks-per-host 2 --tag team=nlp" in resumed.stderr
    assert home.left_running() == []
