"""Text files with invalid rows are refused here; tests/engine/test_bad_rows.py has other files."""

from pathlib import Path

import pytest

from ftcluster.errors import InputError
from ftcluster.recipe.dataset_checks import check_data
from ftcluster.recipe.recipe import load_recipe
from tests.bad_rows import BAD, TEXTS, check_said, write

CASES = [
    (ending, name)
    for ending in TEXTS
    for name, one in BAD.items()
    if one.flat or ending.startswith(".json")
]


@pytest.mark.parametrize(("ending", "name"), CASES)
@pytest.mark.parametrize("number", [3, 0])
def test_each_bad_row_has_its_file_and_number(
    tmp_path: Path, ending: str, name: str, number: int
) -> None:
    one = BAD[name]
    path, where = write(tmp_path, ending, one.rows(number))
    with pytest.raises(InputError) as caught:
        check_data(path, load_recipe(one.recipe, [f"data={path}"]))
    check_said(str(caught.value), where, one.said)
