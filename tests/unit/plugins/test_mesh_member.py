from ansible_collections.ftcluster.cluster.plugins.modules.mesh_member import entry, with_line

KEY = "ssh-ed25519 AAAAhead ftcluster-mesh@head"
LINE = f'restrict,from="10.0.0.11" {KEY}'
USERS = "# mine\nssh-ed25519 AAAAmine me@laptop\n"


def test_the_head_may_come_from_its_address_only() -> None:
    assert entry(KEY, "10.0.0.11") == LINE


def test_all_other_lines_stay_as_they_are() -> None:
    assert with_line(USERS, LINE) == f"{USERS}{LINE}\n"
    assert with_line(with_line(USERS, LINE), LINE) == f"{USERS}{LINE}\n"
    assert with_line(f"{USERS}{LINE}\n", "") == USERS


def test_a_new_head_takes_the_place_of_the_former() -> None:
    former = entry("ssh-ed25519 AAAAold ftcluster-mesh@old", "10.0.0.99")
    assert with_line(f"{former}\n{USERS}", LINE) == f"{USERS}{LINE}\n"


def test_a_last_line_without_its_end_is_not_joined_with_ours() -> None:
    assert with_line(USERS.rstrip("\n"), LINE) == f"{USERS}{LINE}\n"


def test_an_empty_file_stays_empty_without_a_line() -> None:
    assert with_line("", "") == ""
    assert with_line("", LINE) == f"{LINE}\n"
