"""Finds names in the documents that do not exist, and names of the code that a page should list: `make lint` runs it.

The files, modules and functions that the documents name must exist, and every state, record and key that a page claims
to list must be there. `make docs` checks the links.
"""

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from palermo.client.status import State
from palermo.core.journal_records import JournalLevel, RecordKind, is_recorded
from palermo.core.lifecycle import JobState
from palermo.errors import ResultError

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
BROKERS = ROOT / "palermo" / "brokers"
#: The folders that a path in the documents may start from.
HOMES = (ROOT, ROOT / "palermo", BROKERS / "rabbitmq", BROKERS / "redis", BROKERS / "sqlite")
CODE = ("palermo", "serializers", "webui", "tests", "benchmarks", "soak", "examples", "docs")

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: Blocks that set examples up and check them, which no reader sees.
_HIDDEN = re.compile(r"^<!-- .*?-->$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"(?<![\w/.*…])[\w-]+(?:/[\w-]+)*\.py\b")
_NAME_IN_FILE = re.compile(r"`([A-Za-z_][\w.]*)`\s+\(([\w/]+\.py)\)")
_METHOD = re.compile(r"`([A-Z]\w*)\.(\w+)`")
_DOTTED = re.compile(r"(?<![\w./~@-])palermo(?:\.\w+)+(?!\w*[/-])")

#: Dotted names that are no Python names: a file, entry points, attributes of spans and tags, loggers, numbers of
#: `/stats.txt`.
_OTHER_NAMES = re.compile(
    r"palermo\.(toml|compressions|attempt|outcome|crashed|failure"
    r"|audit|outbox|queue|pending|in_progress|processed|failed|workers|working)$"
)


def prose(page: Path) -> str:
    """The page without its blocks of code, which show files of users."""
    return _HIDDEN.sub("", _FENCED.sub("", page.read_text()))


@cache
def python_files() -> frozenset[str]:
    """The names of all Python files of the project, without their folders."""
    files = (name for folder in CODE for _, _, names in os.walk(ROOT / folder) for name in names)
    return frozenset(name for name in files if name.endswith(".py"))


def file_exists(path: str) -> bool:
    """Whether a path, or the name of a file without its folder, is a file of the project."""
    return any((home / path).is_file() for home in HOMES) if "/" in path else path in python_files()


def name_exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    first, *rest = dotted.split(".")
    found: object = importlib.import_module(first)
    for index, part in enumerate(rest, 1):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = importlib.import_module(".".join([first, *rest[:index]]))
        except ModuleNotFoundError:
            return False
    return True


def defined_in(path: Path) -> set[str]:
    """The names that a module defines, and those of its classes as `Class.name`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        found |= set(_names(node))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for each in node.body for name in _names(each)}
    return found


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def missing_on_pages() -> Iterator[str]:
    """The names on all pages that do not exist."""
    for page in PAGES:
        text = prose(page)
        dotted = {name for name in _DOTTED.findall(text) if not _OTHER_NAMES.match(name) and not name_exists(name)}
        paths = {path for path in _PATH.findall(text) if not file_exists(path)}
        yield from (f"{page.relative_to(ROOT)}: there is no {name}" for name in sorted(dotted | paths))


def missing_in_the_tour() -> Iterator[str]:
    """The names of the tour that are not defined in the files that it names."""
    page = DOCS / "internals/tour.md"
    text, drawing = prose(page), page.read_text().partition("## The folders")[2]
    inits = (Path(folder) for folder, _, names in os.walk(ROOT / "palermo", followlinks=True) if "__init__.py" in names)
    packages = {path.relative_to(ROOT / "palermo").as_posix() for path in inits} - {".", "brokers"}
    drawn = set(re.findall(r"^([\w/]+)/ {2,}", drawing, re.MULTILINE))
    yield from (f"tour.md: the folder {name} is drawn or there, not both" for name in drawn ^ packages)
    files = {path: home / path for home in HOMES for path in _PATH.findall(text) if (home / path).is_file()}
    known = {path: defined_in(file) for path, file in files.items()}
    named_in = _NAME_IN_FILE.findall(text)
    yield from (f"tour.md: {name} is not in {path}" for name, path in named_in if name not in known.get(path, ()))
    methods = {".".join(each) for each in _METHOD.findall(text)}
    yield from (f"tour.md: there is no {name}" for name in sorted(methods - set().union(*known.values())))


def not_listed() -> Iterator[str]:
    """What pages that list all of something do not list."""

    def compare(page: str, names: Iterable[str], written: str) -> Iterator[str]:
        text = (DOCS / page).read_text()
        wanted = {written.format(name) for name in names}
        assert wanted, page
        yield from (f"docs/{page}: there is no {each!r}" for each in sorted(wanted) if each not in text)

    yield from compare("reference/lifecycle.md", JobState, "* **{}**")
    yield from compare("learn/results.md", State, "\n| {} |")
    yield from compare("learn/results.md", (each.__name__ for each in ResultError.__subclasses__()), "\n| `{}`")
    yield from compare("guides/history.md", (level.value for level in JournalLevel), "\n| `{}` |")
    failures = [kind.value for kind in RecordKind if is_recorded(kind, JournalLevel.FAILURES)]
    yield from compare("internals/journal.md", failures, "\n| `{}` | failures |")
    yield from compare("internals/journal.md", {kind.value for kind in RecordKind} - {*failures}, "\n| `{}` | all |")
    internal = named(r'internal\([\w.]+, f?"([a-z.-]+)', "rabbitmq", "py")
    yield from compare("internals/on-the-broker.md", internal, "`~{}")
    yield from compare("internals/on-the-broker.md", named(r"create table (\w+)", "sqlite", "sql"), "`{}`")
    keys = named(r"""key\(f?['"]([a-z-]+)[:'"{]""", "redis", "py", "lua") - {"nothing"}
    yield from compare("internals/redis.md", keys, "`{}")


def named(pattern: str, broker: str, *kinds: str) -> set[str]:
    """What a pattern finds in the files of a broker."""
    paths = [path for kind in kinds for path in (BROKERS / broker).rglob(f"*.{kind}")]
    return {name for path in paths for name in re.findall(pattern, path.read_text())}


if __name__ == "__main__":
    wrong = [*missing_on_pages(), *missing_in_the_tour(), *not_listed()]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)
