"""The fields of a task that a trained model's folder remembers, checked as a recipe's are.

The file comes with the model, so others may have written it. Only fields of the task are taken,
with values of their types; anything else in it is listed, so that the user hears of it.
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
from ftcluster_common.tasks.registry import TASKS

MOST_NAMES = 8  # that a note lists
MOST_LETTERS = 60  # of a value in a note


@dataclass(frozen=True)
class TrainedFields:
    """The fields of a training that a trained model's folder names.

    Attributes:
        file: where it is written.
        recipe: the recipe's name, which may be unknown here; "" without a file.
        task: a known task; "" if the folder names none.
        options: values of the task's fields, in the form of YAML.
        ignored: names of all other entries, and of fields whose value is not allowed.
        missing: what the folder lacks, if it names no task.
        unknown_task: the task that the folder names, if ftcluster has none with this name.
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
        """A note about entries that are not used; "" if there are none."""
        if not self.ignored:
            return ""
        names = ", ".join(shortened(name) for name in self.ignored[:MOST_NAMES])
        more = len(self.ignored) - MOST_NAMES
        names += f" and {more} more" if more > 0 else ""
        return f"ignored in {self.file}, as no field of {self.task} or not of its type: {names}"


def trained_fields(folder: Path) -> TrainedFields:
    """Read what a model's folder says of its training; all empty if it says nothing valid.

    Raises:
        FtclusterError: a newer ftcluster has written it.
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
        if value is None or value == []:  # the default
            continue
        if name in keys and _is_allowed(keys[name], value):
            options[name] = value
        else:
            ignored.append(name)
    return TrainedFields(file, trained["recipe"], task, options, tuple(ignored))


def shortened(value: str) -> str:
    """Return a text of others for a line of a note: without control characters, and not long."""
    text = in_one_line(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def _is_allowed(key: Key, value: Any) -> bool:
    try:
        key.convert(value)
    except ValueError:
        return False
    return True
