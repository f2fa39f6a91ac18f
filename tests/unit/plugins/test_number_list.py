import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import (
    number_list,
    ranges,
)


def test_the_numbers_of_a_list() -> None:
    assert number_list(" 0-3,8,9148-9150\n") == {0, 1, 2, 3, 8, 9148, 9149, 9150}
    assert number_list("\n") == set()


@pytest.mark.parametrize("text", ["", "3", "0-3", "0-3,8,10-11", "0,2,4"])
def test_numbers_as_the_kernel_writes_them(text: str) -> None:
    assert ",".join(ranges(number_list(text))) == text
