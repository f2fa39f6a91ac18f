"""Two packages that cannot import each other format sizes alike."""

from ansible_collections.ftcluster.cluster.plugins.plugin_utils import sizes as plugin_sizes
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common import sizes

NUMBERS = st.integers(0, 10**13)


@given(NUMBERS, NUMBERS)
def test_both_packages_format_sizes_alike(free: int, needed: int) -> None:
    texts = sizes.free_and_needed(free, needed)
    assert texts == plugin_sizes.free_and_needed(free, needed)
    assert (texts[0] == texts[1]) == (free == needed)
