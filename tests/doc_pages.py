"""The blocks of code in the documents: Python, shell, YAML, and the hidden blocks that set examples up.

A hidden block is an HTML comment, which no reader sees. It begins a line, and its first word says what it is:

    <!-- setup           Python that the examples below need and that a reader has already
    import palermo
    -->

    <!-- check           Python that runs the jobs which the examples above enqueued, and looks at what came of it
    work()
    -->

    <!-- run -->         The shell block below is run, and not only read.
    <!-- only shown -->  The block below does not run: it is for another library, or needs what the tests do not have.

A block of Python whose first line is a comment with the name of a file, such as `# shop.py`, is that file. With
`# shop.py, continued` it is added to the end of that file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: The documents whose examples must run.
PAGES = sorted(
    [
        ROOT / "README.md",
        *(page for part in ("learn", "guides", "reference") for page in (ROOT / "docs" / part).rglob("*.md")),
    ],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```[ ]*$"
    r"|^<!-- (?P<hidden>setup|check)\n(?P<hidden_code>.*?)^-->$"
    r"|^ *<!-- (?P<mark>run|only shown) -->$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w/]+\.py)(, continued)?\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code in a document."""

    #: The language that the block names; "setup" or "check" if it is hidden, "" if it is only shown.
    language: str
    code: str
    #: The number of the block's first line in the document.
    line: int
    #: Whether a shell block is run.
    is_run: bool = False

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is a file."""
        found = _FILE.match(self.code) if self.language == "python" else None
        return found[1] if found else None

    @property
    def continues(self) -> bool:
        """Whether the block is added to the file that it names."""
        found = _FILE.match(self.code)
        return bool(found and found[2])


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a document in their order."""
    text = page.read_text()
    mark = ""
    for found in _BLOCK.finditer(text):
        if found["mark"]:
            mark = found["mark"]
            continue
        group = "hidden_code" if found["hidden"] else "code"
        line = text.count("\n", 0, found.start(group)) + 1
        indent = len(found["indent"] or "")
        code = "".join(each[indent:] if each.strip() else each for each in found[group].splitlines(keepends=True))
        language = "" if mark == "only shown" else found["hidden"] or found["language"]
        yield Block(language, code, line, is_run=mark == "run")
        mark = ""
