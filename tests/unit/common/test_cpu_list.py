import pytest

from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("5", (5,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0-38:2", tuple(range(0, 40, 2))),
        ("0,2-4,9,11", (0, 2, 3, 4, 9, 11)),
    ],
)
def test_lists_of_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert format_cpus(cpus) == text


@pytest.mark.parametrize("text", ["0-9999999999", "9999999999", "x", "0-3:0", "1-2-3"])
def test_what_no_kernel_says_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is too large|invalid literal|be zero"):
        parse_cpus(text)
