"""Golden files of the output for people: tests/golden/SURFACE/NAME.txt, one for each command and each page.

Other tests look for values, ids and states, and leave the wording to these files. `PALERMO_GOLDEN=1` writes them again
after a sentence has changed; the difference in git is what readers will see.
"""

import os
import re
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"

#: Read here, since tests of settings take such variables away.
_WRITING = bool(os.environ.get("PALERMO_GOLDEN"))

#: What differs from one run to the next, and what stands for it in the files.
_VOLATILE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d| UTC)?"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|seconds|minutes)( ago)?\b"), "<duration>"),
    (re.compile(r"/tmp/\S*/"), "<folder>/"),
    (re.compile(r"\bpid:?\s?\d+"), "pid <pid>"),
)


def assert_golden(surface: str, name: str, text: str) -> None:
    """Compare with the golden file, but for ids, times, folders and pids; under PALERMO_GOLDEN=1, write it."""
    for pattern, sign in _VOLATILE:
        text = pattern.sub(sign, text)
    text = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    path = GOLDEN / surface / f"{name}.txt"
    if _WRITING:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} does not exist: `PALERMO_GOLDEN=1` writes it"
    assert text == path.read_text(), f"the wording of {surface} {name} changed: `PALERMO_GOLDEN=1` writes {path} again"
