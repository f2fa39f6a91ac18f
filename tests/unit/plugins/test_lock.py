import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import (
    LockError,
    Pin,
    read_lock,
    sizes,
)

LOCK = (
    "# by a tool\n# download 1200 bytes, unpacked 5000 bytes (for Python 3.11)\n"
    "Tool_Kit==1.0 \\\n    --hash=sha256:{a} \\\n    --hash=sha256:{b}\n    # via other\n"
    'old==1.5 ; python_version <= "3.10"\n'
    'new==2!3.0.post1 ; python_version >= "3.11"\n\n'
    "other==2.0+cpu  # the smaller one\n"
).format(a="a" * 64, b="0" * 64)


def test_each_package_with_its_version_and_hashes() -> None:
    assert read_lock(LOCK, "3.11") == {
        "tool-kit": Pin("tool-kit", "1.0", frozenset({"a" * 64, "0" * 64})),
        "new": Pin("new", "2!3.0.post1", frozenset()),
        "other": Pin("other", "2.0+cpu", frozenset()),
    }
    # a Python gets the packages that markers select for it
    assert read_lock(LOCK, "3.10").keys() == {"tool-kit", "old", "other"}
    assert read_lock("", "3.11") == read_lock("# nothing\n\n", "3.11") == {}
    # the head of the lock has the sizes
    assert sizes(LOCK) == (1200, 5000)
    assert sizes("tool==1.0\n") == sizes("") == (0, 0)


@pytest.mark.parametrize(
    ("marker", "counts"),
    [
        ('sys_platform == "linux" and platform_machine == "x86_64"', True),
        ('sys_platform == "win32" or platform_machine == "aarch64"', False),
        ('platform_system == "Linux" and implementation_name == "cpython"', True),
        ('platform_python_implementation == "PyPy"', False),
        ('python_full_version >= "3.11.4"', True),  # the newest patch release is assumed
        ('python_version < "3.9"', False),  # compared as a version, not as text
        ('extra == "test"', False),
    ],
)
def test_markers_are_about_the_host_not_the_control_node(marker: str, counts: bool) -> None:
    assert bool(read_lock(f"tool==1.0 ; {marker}", "3.11")) == counts


@pytest.mark.parametrize(
    "line",
    [
        "other>=2",
        "other",
        "git+https://example.org/x",
        "a[b]==1",
        "==1",
        "other==",
        "other==2.*",
        "other==1,<2",
        "-r more.txt",
        "--index-url=https://example.org",
        "other==1 --hash=sha256:short",
        "other==1 --hash=md5:0123",
    ],
)
def test_a_line_that_is_no_version_is_named(line: str) -> None:
    with pytest.raises(LockError) as caught:
        read_lock(f"tool==1.0\n{line}\n", "3.11")
    assert f"'{line}'" in str(caught.value)


@pytest.mark.parametrize("marker", ["python", "python_version >", 'os_name ~= "posix"'])
def test_a_marker_that_means_nothing_is_named(marker: str) -> None:
    with pytest.raises(LockError, match=r"^'other==1\.0 ; "):
        read_lock(f"other==1.0 ; {marker}\n", "3.11")
