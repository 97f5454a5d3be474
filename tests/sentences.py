"""Finds the worst sentences in what people read; `python -m tests.sentences PATH …` prints them.

Three rules, from which no file is exempt. A docstring, a comment or a page names the one who acts, without the word
that _VAGUE finds. The head of a module says what it is and does not begin with a question word. Its first sentence has
at most 25 words.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: The folders with code, and the pages.
CODE = ("palermo", "serializers", "webui", "benchmarks", "tests", "examples")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md")

MOST_WORDS = 25

_QUESTION = re.compile(r"(What|Who|Whom|Whose|Where|How|Which|Whoever|Whatever)\b")
_VAGUE = re.compile(r"\bwhoever\b", re.IGNORECASE)
_END = re.compile(r"[.:](\s|$)")


def wrongs(path: Path, text: str) -> Iterator[str]:
    """What is wrong with the sentences of one file, each with its line."""
    if path.suffix != ".py":
        yield from _vague(text)
        return
    module = ast.parse(text)
    yield from _head(ast.get_docstring(module) or "")
    if not _VAGUE.search(text):
        return  # nearly every file: to walk through all of them took 20 seconds
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].lineno if node.body else 1
            yield from _vague(ast.get_docstring(node) or "", after=first - 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _vague(token.string, after=token.start[0] - 1)


def all_files() -> list[Path]:
    """The files whose sentences are looked at."""
    code = [found for folder in CODE for found in (ROOT / folder).resolve().rglob("*.py")]
    return sorted({*code, *(found for page in PAGES for found in ROOT.glob(page))})


def _head(docstring: str) -> Iterator[str]:
    if begins := _QUESTION.match(docstring):
        yield f"1: the head begins with {begins[0]!r}"
    first = _END.split(docstring, maxsplit=1)[0]
    if (words := len(first.split())) > MOST_WORDS:
        yield f"1: the first sentence has {words} words, {MOST_WORDS} are enough"


def _vague(text: str, after: int = 0) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if _VAGUE.search(line):
            yield f"{after + number}: who is {line.strip()!r} about"


def main(names: list[str]) -> int:
    """Print what is wrong with the sentences of these files and folders; the exit code."""
    given = [Path(name).resolve() for name in names]
    chosen = [path for path in all_files() if not given or any(path.is_relative_to(one) for one in given)]
    found = [f"{path.relative_to(ROOT)}:{wrong}" for path in chosen for wrong in wrongs(path, path.read_text())]
    print(*found, f"{len(found)} in {len(chosen)} files", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
