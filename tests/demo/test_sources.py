"""The files that the demo parses."""

from pathlib import Path

import pytest

from palermo.demo.steps import DAMAGED, damaged_files, interleave, stdlib_files, stdlib_root


def test_the_standard_library_is_found_without_installed_packages() -> None:
    files = stdlib_files()

    assert {stdlib_root() / "ast.py", stdlib_root() / "json" / "decoder.py"} <= set(files)
    assert not [path for path in files if {"site-packages", "dist-packages"} & set(path.parts)]
    assert (stdlib_files(5), stdlib_files(0)) == (files[:5], [])


@pytest.mark.parametrize(("few", "many"), [(3, 100), (10, 3), (3, 0), (0, 3), (2, 9)])
def test_few_files_are_spread_among_many(few: int, many: int) -> None:
    rare = [Path(f"rare{number}") for number in range(few)]
    common = [Path(f"common{number}") for number in range(many)]

    mixed = interleave(rare, common)

    assert [path for path in mixed if path in common] == common
    assert [path for path in mixed if path in rare] == rare
    assert len(mixed) == few + many
    if (few, many) == (2, 9):
        assert [mixed.index(path) for path in rare] == [3, 7]


def test_the_damaged_files_reached_this_machine_as_damaged_as_they_were() -> None:
    data = {path.name.removesuffix(".py.txt"): path.read_bytes() for path in damaged_files()}

    assert b"\xe8" in data["bad_encoding"]
    assert data["null_bytes"].endswith(bytes(64))
    assert b"\n\t\t" in data["mixed_tabs"]
    assert not data["truncated"].endswith(b"\n")
    assert b"\r" not in b"".join(data.values())
    attributes = (Path(__file__).parents[2] / ".gitattributes").read_text().splitlines()
    assert "palermo/demo/damaged/* -text" in attributes
    # None of them is to be taken for a module.
    assert not list(DAMAGED.glob("*.py"))
