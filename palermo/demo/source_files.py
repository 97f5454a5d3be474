"""The files that the demo parses: the running interpreter's standard library, and damaged ones that are shipped."""

import os
import random
import sysconfig
from pathlib import Path

#: Their names end in .txt so that no tool that compiles, checks or collects Python files stumbles over them.
DAMAGED = Path(__file__).with_name("damaged")

#: Latin-1 text that does not name its encoding: it can be parsed when the job is told the encoding.
BAD_ENCODING = DAMAGED / "bad_encoding.py.txt"

#: Python 2 code: only a rewrite would make it parse.
PYTHON_2 = DAMAGED / "python_2.py.txt"

#: Other people's packages, which live below the standard library.
_NOT_STANDARD = {"site-packages", "dist-packages"}


def stdlib_root() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files(limit: int | None = None) -> list[Path]:
    """The standard library's Python files, its own tests among them where they are installed.

    Their order looks random and is the same every time: neighbours in a folder are alike, and
    the shown progress would be uneven. `limit` keeps the first of them.
    """
    found: list[Path] = []
    for folder, below, names in os.walk(stdlib_root()):
        below[:] = sorted(set(below) - _NOT_STANDARD)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    random.Random(1).shuffle(found)
    return found[:limit]


def damaged_files() -> list[Path]:
    """The files that are shipped broken."""
    return sorted(DAMAGED.glob("*.py.txt"))


def interleave(few: list[Path], many: list[Path]) -> list[Path]:
    """One list of both, the few at even distances among the many, all in their order."""
    step = len(many) // (len(few) + 1)
    mixed = list(many)
    for nth, path in enumerate(few, start=1):
        mixed.insert(nth * step + nth - 1, path)
    return mixed
