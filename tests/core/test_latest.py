"""Dicts that keep their latest entries."""

from palermo.core.latest import remember


def test_the_latest_of_many_entries_are_kept() -> None:
    kept: dict[str, int] = {}

    for number, key in enumerate("abacd"):
        remember(kept, key, number, most=3)

    assert list(kept.items()) == [("a", 2), ("c", 3), ("d", 4)]
