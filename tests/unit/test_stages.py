from ftcluster.stages import inventory_options

GIVEN = (
    "--limit", "a,b", "--tags", "stack", "--user", "ops", "--vault-id", "prod@file",
    "--vault-password-file", "pass", "--extra-vars", "x=1", "--check", "--diff",
)  # fmt: skip


def test_the_inventory_gets_what_decides_who_is_in() -> None:
    assert inventory_options(GIVEN) == [
        "--limit", "a,b", "--vault-id", "prod@file", "--vault-password-file", "pass",
    ]  # fmt: skip
    assert inventory_options(("--check",)) == inventory_options(()) == []


def test_one_option_can_be_left_out() -> None:
    assert inventory_options(GIVEN, without="--limit") == [
        "--vault-id", "prod@file", "--vault-password-file", "pass",
    ]  # fmt: skip


def test_an_option_that_is_given_twice_stays_twice() -> None:
    twice = ["--vault-id", "a@f", "--vault-id", "b@g"]
    assert inventory_options(twice) == twice
