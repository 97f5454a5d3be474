"""The files, modules and functions that the documents name exist. `make docs` checks their links."""

import ast
import importlib
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
#: The folders that a path in the documents may start from.
_BROKERS = ROOT / "palermo" / "brokers"
HOMES = (ROOT, ROOT / "palermo", _BROKERS / "rabbitmq", _BROKERS / "redis", _BROKERS / "sqlite")

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
    folders = ("palermo", "serializers", "webui", "tests", "benchmarks", "soak", "examples")
    return frozenset(
        name for folder in folders for _, _, names in os.walk(ROOT / folder) for name in names if name.endswith(".py")
    )


def file_exists(path: str) -> bool:
    """Whether a path, or the name of a file without its folder, is a file of the project."""
    return any((home / path).is_file() for home in HOMES) if "/" in path else path in python_files()


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


def wrong(check: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """What a check finds wrong, by page."""
    return {page.relative_to(ROOT).as_posix(): found for page in PAGES if (found := check(page))}


def test_every_python_file_named_in_the_documents_exists() -> None:
    assert wrong(lambda page: {path for path in _PATH.findall(prose(page)) if not file_exists(path)}) == {}


def test_every_dotted_name_in_the_documents_exists() -> None:
    def missing(page: Path) -> set[str]:
        named = {name for name in _DOTTED.findall(prose(page)) if not _OTHER_NAMES.match(name)}
        return {name for name in named if not name_exists(name)}

    assert wrong(missing) == {}


def test_every_name_in_the_tour_is_defined_where_it_says() -> None:
    text = prose(ROOT / "docs" / "internals" / "tour.md")
    files = {path: next(home / path for home in HOMES if (home / path).is_file()) for path in _PATH.findall(text)}
    known = {path: defined_in(file) for path, file in files.items()}
    named = _NAME_IN_FILE.findall(text)

    assert len(named) > 30
    assert [(name, path) for name, path in named if name not in known[path]] == []
    everywhere = set().union(*known.values())
    assert [".".join(each) for each in _METHOD.findall(text) if ".".join(each) not in everywhere] == []
