"""Golden files of output for users: tests/golden/SURFACE/NAME.txt, one per command and page.

Other tests check values, ids and states, but not wording. `PALERMO_GOLDEN=1` rewrites the files after a change of
wording; the diff shows what users will see.
"""

import os
import re
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"

#: Read at import, because tests of settings remove such variables.
_WRITING = bool(os.environ.get("PALERMO_GOLDEN"))

#: Patterns for values that change between runs, and their placeholders in the files.
_VOLATILE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d| UTC)?"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|seconds|minutes)( ago)?\b"), "<duration>"),
    (re.compile(r"/tmp/\S*/"), "<folder>/"),
    (re.compile(r"\bpid:?\s?\d+"), "pid <pid>"),
)


def assert_golden(surface: str, name: str, text: str) -> None:
    """Compare with the golden file, ignoring ids, times, folders and pids. With PALERMO_GOLDEN=1, write the file."""
    for pattern, sign in _VOLATILE:
        text = pattern.sub(sign, text)
    text = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    path = GOLDEN / surface / f"{name}.txt"
    if _WRITING:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} does not exist: `PALERMO_GOLDEN=1` writes it"
    assert text == path.read_text(), f"the wording of {surface} {name} changed: `PALERMO_GOLDEN=1` writes {path} again"
