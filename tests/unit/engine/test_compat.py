import pytest

from ftcluster_train.engine.compat import dtype_keyword


@pytest.mark.parametrize(
    ("version", "keyword"),
    [
        ("4.51.3", "torch_dtype"),
        ("4.55.4", "torch_dtype"),
        ("4.56.0", "dtype"),
        ("4.57.6", "dtype"),
        ("5.23.0", "dtype"),
        ("5.24.0.dev0", "dtype"),
    ],
)
def test_each_transformers_is_asked_for_fp32_in_its_own_words(version: str, keyword: str) -> None:
    assert dtype_keyword(version) == keyword
