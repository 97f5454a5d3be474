"""The Python of the documents as files that a type checker reads, each line where it stands in its document."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.doc_pages import ROOT, Block, blocks


@dataclass(frozen=True, slots=True)
class Example:
    """A file that the examples of one document make."""

    page: Path
    #: The file's path in the folder of the page: its own name, or `page.py` for what the blocks without a name make.
    file: str
    text: str
    #: The lines that a reader sees; the others are hidden set-up and checks.
    shown: frozenset[int]


def examples(page: Path) -> Iterator[Example]:
    """The files of a page. Blocks without a name are one module, in their order, as tests/doc_examples.py runs them."""
    files: dict[str, list[Block]] = {}
    for block in blocks(page):
        if block.language in ("python", "setup", "check"):
            files.setdefault(block.file or "page.py", []).append(block)
    for name, parts in files.items():
        lines: dict[int, str] = {}
        for block in parts:
            lines |= dict(enumerate(block.code.splitlines(), block.line))
        shown = (
            line
            for block in parts
            if block.language == "python"
            for line in range(block.line, block.line + block.code.count("\n"))
        )
        text = "\n".join(lines.get(number, "") for number in range(1, max(lines) + 1)) + "\n"
        yield Example(page, name, text, frozenset(shown))


def folder_name(page: Path) -> str:
    """The name of the folder of a page: `guides_unique`."""
    return "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_").removeprefix("docs_")
