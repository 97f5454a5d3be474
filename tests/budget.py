"""The size of Palermo in numbers: `python -m tests.budget` prints them, and fails if one is above the recorded one.

* Statements by room, where a room is a folder of `palermo/`, or `webui` or `serializers`. Blank lines, comments and
  docstrings cost nothing.
* Files that state an option of a job, a header or a setting: as a string, a parameter or a field of a class. A file
  that only reads `job.timeout` does not state it. The median over all of them.
* Names that begin with `~` on RabbitMQ: docs/internals/on-the-broker.md lists them.
* Attributes of the ten classes that have most: all that `self.x = …` sets, and the fields of a struct that is not
  frozen.

`--record` writes the present numbers to tests/budget.json; a commit that raises one says why. `--root` measures another
tree, by the options, headers and settings of this one.
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, get_type_hints

from palermo.core.message import KNOWN_HEADERS
from palermo.jobs import options
from palermo.settings.table import SettingArguments

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_suffix(".json")

#: Options that are words of everyday code too, so that a search for them finds anything.
_EVERYDAY = {"id", "queue", "name", "at", "delay", "job", "args", "kwargs", "limit", "every", "priority", "headers"}

#: How code names a queue, a stream or an exchange of Palermo's own.
_ON_RABBITMQ = re.compile(r'internal\([\w.]+, f?"([a-z.-]+)')


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """The room and the path of each file of the product."""
    for top in ("palermo", "webui", "serializers"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).parts
            yield (parts[1] if top == "palermo" and len(parts) > 2 else top), path


def statements(tree: ast.AST) -> int:
    """The statements of a module, without its docstrings."""
    count = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return count - sum(isinstance(node, documented) and ast.get_docstring(node) is not None for node in ast.walk(tree))


def stated(tree: ast.AST) -> set[str]:
    """The names that a module states: its strings, its parameters, and the fields of its classes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.arg(arg=name):
                found.add(name)
            case ast.ClassDef(body=body):
                found |= _fields(body)
    return found


def _fields(body: list[ast.stmt]) -> set[str]:
    """The names that a class body annotates."""
    return {one.target.id for one in body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}


def attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The name of each class whose objects change, and the number of its attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not _frozen(node):
            set_by_self = {
                one.attr
                for one in ast.walk(node)
                if isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and isinstance(one.value, ast.Name)
                and one.value.id == "self"
            }
            yield node.name, len(_fields(node.body) | set_by_self)


def _frozen(node: ast.ClassDef) -> bool:
    said = [
        *node.keywords,
        *(one for call in node.decorator_list if isinstance(call, ast.Call) for one in call.keywords),
    ]
    is_typed_dict = any(isinstance(base, ast.Name) and base.id in ("TypedDict", "NamedTuple") for base in node.bases)
    return is_typed_dict or any(one.arg == "frozen" for one in said)


def option_names() -> set[str]:
    """The options of jobs."""
    tables = [table for table in vars(options).values() if isinstance(table, type) and issubclass(table, dict)]
    return {name for table in tables for name in get_type_hints(table, vars(options) | _TYPES)} - _EVERYDAY


_TYPES = {"ErrorTypes": Any}


def measure(root: Path) -> dict[str, Any]:
    """All numbers of a tree."""
    rooms: Counter[str] = Counter()
    classes: list[tuple[str, int]] = []
    files = []
    for room, path in sources(root):
        tree = ast.parse(path.read_text())
        rooms[room] += statements(tree)
        classes += attributes(tree)
        files.append(stated(tree))
    brokers = (root / "palermo/brokers/rabbitmq").rglob("*.py")
    on_rabbitmq = {name for path in brokers for name in _ON_RABBITMQ.findall(path.read_text())}
    settings = set(get_type_hints(SettingArguments)) - _EVERYDAY
    found: dict[str, Any] = {"statements": dict(sorted(rooms.items())), "all statements": rooms.total()}
    found["names on RabbitMQ"] = len(on_rabbitmq)
    for what, names in (("option", option_names()), ("header", set(KNOWN_HEADERS) - _EVERYDAY), ("setting", settings)):
        counts = {name: sum(name in file for file in files) for name in names}
        found[f"files per {what}, median"] = median(counts.values())
    found["attributes of the ten largest classes"] = [
        [name, count] for name, count in sorted(classes, key=lambda one: (-one[1], one[0]))[:10]
    ]
    return found


def flat(numbers: dict[str, Any]) -> dict[str, float]:
    """The numbers by name, as they are compared."""
    rooms = {f"statements in {room}": count for room, count in numbers["statements"].items()}
    largest = {f"attributes of class no. {n}": one[1] for n, one in enumerate(numbers[_CLASSES], 1)}
    return rooms | largest | {name: value for name, value in numbers.items() if isinstance(value, int | float)}


_CLASSES = "attributes of the ten largest classes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="record the present numbers")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to measure")
    given = parser.parse_args()
    numbers = measure(given.root)
    if given.record:
        RECORD.write_text(json.dumps(numbers, indent=1) + "\n")
    recorded = flat(json.loads(RECORD.read_text())) if RECORD.exists() else {}
    raised = []
    for name, value in flat(numbers).items():
        before = recorded.get(name, 0)
        if value > before:
            raised.append(name)
        print(f"{name:42} {value:8,}{'' if value == before else f'   recorded: {before:,}'}")
    for name, count in numbers[_CLASSES]:
        print(f"  {name:40} {count:8}")
    if raised and given.root == ROOT:
        sys.exit(f"\nabove the recorded number: {', '.join(raised)}. See tests/budget.py.")


if __name__ == "__main__":
    main()
