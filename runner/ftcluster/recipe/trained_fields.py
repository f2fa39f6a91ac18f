"""Read and check the recipe fields that a trained model's folder records.

Anybody may have written the file with these fields, because it comes with the model. Only valid
fields of the task are used. A note for the user lists all other entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError
from ftcluster.recipe.schema import Key, keys_of
from ftcluster.text.printable import in_one_line
from ftcluster_common.given_files import GivenFileError
from ftcluster_common.models.trained_model import FILE, read_trained
from ftcluster_common.protocol.run_state import STAMP
from ftcluster_common.tasks.registry import TASKS

MOST_NAMES = 8  # maximum number of names in a note
MOST_LETTERS = 60  # maximum length of a value in a note


@dataclass(frozen=True)
class TrainedFields:
    """The recipe fields that a trained model's folder records.

    Attributes:
        file: path of the file with the fields.
        recipe: name of the recipe that trained the model, which may be unknown here; "" if the task
            is unknown or not recorded.
        task: name of the task that the model was trained for; "" if it is unknown or not recorded.
        options: values of the task's fields, as read from YAML.
        ignored: names of unknown entries, and of fields whose value is not allowed.
        missing: description of the missing file or entry if the folder records no task.
        unknown_task: name of the recorded task if ftcluster does not have the task; otherwise "".
    """

    file: Path
    recipe: str = ""
    task: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    missing: str = FILE
    unknown_task: str = ""

    @property
    def ignored_note(self) -> str:
        """A note about ignored entries; "" if there are none."""
        if not self.ignored:
            return ""
        names = ", ".join(shortened(name) for name in self.ignored[:MOST_NAMES])
        more = len(self.ignored) - MOST_NAMES
        names += f" and {more} more" if more > 0 else ""
        return (
            f"ignored in {self.file}, because {self.task} has no such field or the value is not "
            f"allowed: {names}"
        )


def run_hint(model: Path) -> str:
    """Return a hint if a path names a run or a run's folder, and not a model; otherwise "".

    >>> run_hint(Path("sft-20260131-101500-7f3a"))
    'if it is a run: `ftcluster fetch sft-20260131-101500-7f3a` copies its model here'
    >>> run_hint(Path("distilbert-base-uncased"))
    ''
    """
    inside = model / "model"
    if (inside / FILE).is_file():
        return f"if it is a run's folder, name the model in it: {inside}"
    if STAMP.search(model.name) and not model.exists():
        return f"if it is a run: `ftcluster fetch {model.name}` copies its model here"
    return ""


def trained_fields(folder: Path) -> TrainedFields:
    """Read the fields that a model's folder records. Without valid entries, all fields are empty.

    Raises:
        FtclusterError: a newer version of ftcluster wrote the file.
    """
    try:
        trained, file = read_trained(folder), folder / FILE
    except GivenFileError as error:
        raise FtclusterError(str(error)) from error
    if not trained:
        return TrainedFields(file, missing=f"valid {FILE}" if file.exists() else FILE)
    if trained["task"] not in TASKS:
        name = shortened(trained["task"])
        return TrainedFields(file, missing=f"known task in {FILE}", unknown_task=name)
    task = trained["task"]
    keys = {
        key.name: key
        for key in keys_of(TASKS[task].fields)
        if key.name not in TASKS[task].training_fields
    }
    options, ignored = {}, []
    for name, value in trained["options"].items():
        if value is None or value == []:  # the training used the default
            continue
        if name in keys and _is_allowed(keys[name], value):
            options[name] = value
        else:
            ignored.append(name)
    return TrainedFields(file, trained["recipe"], task, options, tuple(ignored))


def shortened(value: str) -> str:
    """Shorten untrusted text for a note: one line, with control characters escaped."""
    text = in_one_line(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def _is_allowed(key: Key, value: Any) -> bool:
    try:
        key.convert(value)
    except ValueError:
        return False
    return True
