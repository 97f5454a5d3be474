"""The rooms of the house and who may import whom (docs/design.md): read from the source, so that it cannot drift.

cli  demo  webui  testing  __main__          outermost: people
worker.*  client  inspector  jobs  …         runtime: carries values
broker  serialization                        contracts
brokers.*  serializers.*                     adapters: see contracts and core, not each other
core.*  errors                               standard library only, and little of that
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[1]

_MAX_LINES = 400

_OUTERMOST = ("palermo.cli", "palermo.demo", "palermo.webui", "palermo.testing", "palermo.__main__")
_CONTRACTS = (
    *("palermo.broker", "palermo.crew", "palermo.timetable", "palermo.entries", "palermo.recurring"),
    *("palermo.journal", "palermo.events", "palermo.uniqueness", "palermo.admission", "palermo.tenants"),
    *("palermo.serialization", "palermo.classes", "palermo.findings", "palermo.plugins", "palermo.posting"),
)
_CORE = ("palermo.core", "palermo.errors")

#: What core may use: nothing that reads a clock, a source of chance, a file, a socket or the environment.
_PURE = {
    *("base64", "bisect", "collections", "dataclasses", "datetime", "decimal", "enum", "fnmatch", "functools"),
    *("hashlib", "heapq", "itertools", "json", "math", "operator", "re", "string", "struct", "textwrap"),
    *("traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid", "zoneinfo"),
}

#: And what of those would still bring the present or chance in.
_IMPURE = {"now", "utcnow", "today", "uuid1", "uuid4", "getenv", "environ", "open"}

#: The one home of each thing that is dangerous, or that somebody may want to exchange.
_HOMES: dict[str, tuple[str, ...]] = {
    "pika": ("palermo.brokers.rabbitmq",),
    # Besides the broker: the indexes of failed jobs and of the journal, temporary databases no other process sees.
    "sqlite3": ("palermo.brokers.sqlite", "palermo.history", "palermo.webui.failed"),
    "msgpack": ("palermo.serializers.msgpack",),
    # Besides the serializer: what the worker's own parent writes to its children, and nobody else can.
    "pickle": ("palermo.serializers.pickle", "palermo.worker.pipe", "palermo.worker.template"),
    "zstandard": ("palermo.serializers.compression",),
    "click": ("palermo.cli", "palermo.demo"),
    "rich": ("palermo.cli", "palermo.demo"),
    "fastapi": ("palermo.webui",),
    "starlette": ("palermo.webui",),
    "pydantic": ("palermo.webui",),
    "argon2": ("palermo.webui",),
    "prometheus_client": ("palermo.metrics",),
    "opentelemetry": ("palermo.tracing",),
    "uvicorn": ("palermo.webui", "palermo.cli.web"),
    "jinja2": ("palermo.webui",),
    "setproctitle": ("palermo.worker.process", "palermo.cli.edge"),
    "signal": ("palermo.worker.signals", "palermo.worker.interrupts", "palermo.worker.template"),
    "os.environ": ("palermo.config",),
    "os.getenv": ("palermo.config",),
    "os.fork": ("palermo.worker.template", "palermo.worker.pools"),
}


@dataclass(frozen=True)
class Module:
    """A source file, by the name it is imported under."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return _parse(self.path)

    def imports(self) -> Iterator[str]:
        """The dotted names of all it imports, wherever in the file and whatever for."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(module=module, names=names, level=0) if module is not None:
                    # `from palermo.core import topology` imports palermo.core.topology, not a name of palermo.core.
                    dotted = [f"{module}.{alias.name}" for alias in names]
                    yield from (name if name in _names() else module for name in dotted)


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def modules() -> tuple[Module, ...]:
    """All of the package's modules; links are followed, so that the adapters have their installed names."""
    found = []
    for folder, inside, files in os.walk(_REPOSITORY / "palermo", followlinks=True):
        inside[:] = [name for name in inside if name not in ("__pycache__", "damaged")]
        for path in (Path(folder) / file for file in files if file.endswith(".py")):
            parts = path.relative_to(_REPOSITORY).with_suffix("").parts
            found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return tuple(sorted(found, key=lambda module: module.name))


@cache
def _names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def adapter_of(name: str) -> str:
    """The adapter a module belongs to, "" if it is none: each broker is one, all serializers together are one."""
    if within(name, ("palermo.serializers",)):
        return "palermo.serializers"
    if within(name, ("palermo.brokers",)):
        return ".".join(name.split(".")[:3])
    return ""


def room(name: str) -> str:
    """The room a module is in. What is in none of the others is runtime."""
    if adapter_of(name):
        return "adapters"
    rooms = {"outermost": _OUTERMOST, "contracts": _CONTRACTS, "core": _CORE}
    return next((room for room, places in rooms.items() if within(name, places)), "runtime")


#: Which rooms a module may import from, besides its own.
_MAY_SEE = {
    "outermost": {"runtime", "contracts", "core"},
    "runtime": {"contracts", "core"},
    "contracts": {"core"},
    "adapters": {"contracts", "core"},
    "core": set[str](),
}


def may_import(importer: str, imported: str) -> bool:
    inside, outside = room(importer), room(imported)
    if inside == outside == "adapters":
        return adapter_of(importer) == adapter_of(imported)
    return inside == outside or outside in _MAY_SEE[inside]


def each_module() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)


@each_module()
def test_nothing_points_up_and_adapters_know_nobody(module: Module) -> None:
    ours = [name for name in module.imports() if within(name, ("palermo",))]

    assert [name for name in ours if not may_import(module.name, name)] == []


@pytest.mark.parametrize(
    "module", [each for each in modules() if room(each.name) == "core"], ids=lambda module: module.name
)
def test_core_uses_only_what_is_pure(module: Module) -> None:
    foreign = {name for name in module.imports() if not within(name, ("palermo",))}
    used = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    called = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}

    assert {name for name in foreign if name not in _PURE and name.partition(".")[0] not in _PURE} == set()
    # A parameter may be called `now`: it is how the present comes in.
    assert (used | called - {"now"}) & _IMPURE == set()


@each_module()
def test_everything_dangerous_stays_in_its_home(module: Module) -> None:
    used = set(module.imports())
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=attribute):
                used.add(f"os.{attribute}")
            case ast.ImportFrom(module="os", names=names):
                used |= {f"os.{alias.name}" for alias in names}

    strayed = {
        thing
        for thing, homes in _HOMES.items()
        if any(within(name, (thing,)) for name in used) and not within(module.name, homes)
    }

    assert strayed == set()


@each_module()
def test_imports_are_absolute(module: Module) -> None:
    relative = [node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.level]

    assert relative == []


@pytest.mark.parametrize(
    "path",
    sorted(
        path.relative_to(_REPOSITORY)
        for top in ("palermo", "serializers", "webui", "tests", "benchmarks", "examples")
        for path in (_REPOSITORY / top).rglob("*.py")
        if "damaged" not in path.parts
    ),
    ids=str,
)
def test_a_file_is_short_enough_to_be_read_at_once(path: Path) -> None:
    assert len((_REPOSITORY / path).read_text().splitlines()) <= _MAX_LINES


def test_declaring_jobs_costs_no_client_library() -> None:
    heavy = ("pika", "sqlite3", "click", "rich", "fastapi", "asyncio", "msgpack", "opentelemetry")
    slow = ("logging", "concurrent.futures", "traceback", "hashlib", "uuid", "palermo.core.message", "palermo.client")
    program = f"import sys, palermo; print([name for name in {heavy + slow} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
