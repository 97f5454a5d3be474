"""The rooms of the house and who may import whom (docs/internals/architecture.md), read from the source.

cli  demo  webui  testing  contrib  __main__ outermost: people and frameworks
worker.*  client.*  inspector.*  …           runtime: carries values
jobs.*  settings.*                           declarations: a program's jobs and settings
contract.*                                   contracts
brokers.*  serializers.*                     adapters: see contracts and core, not each other but brokers.features
core.*  errors                               standard library only, and little of that
"""

import ast
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[1]

_MAX_LINES = 600

_OUTERMOST = (
    *("palermo.cli", "palermo.demo", "palermo.webui", "palermo.testing", "palermo.__main__"),
    "palermo.contrib",
)
#: And an engine that adapters and the runtime share.
_CONTRACTS = ("palermo.contract", "palermo.temp_index")
_DECLARATIONS = ("palermo.jobs", "palermo.settings")
_CORE = ("palermo.core", "palermo.errors")

#: What core may use: nothing that reads a clock, a source of chance, a file, a socket or the environment.
_PURE = {
    *("base64", "bisect", "collections", "dataclasses", "datetime", "decimal", "difflib", "enum", "fnmatch"),
    *("functools", "hashlib", "heapq", "itertools", "json", "math", "msgspec", "operator", "re", "string", "struct"),
    *("textwrap", "traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid", "zoneinfo"),
}

#: And what of those would still bring the present or chance in.
_IMPURE = {"now", "utcnow", "today", "uuid1", "uuid4", "getenv", "environ", "open"}

#: The one home of each thing that is dangerous, or that somebody may want to exchange.
_HOMES: dict[str, tuple[str, ...]] = {
    "pika": ("palermo.brokers.rabbitmq.amqp",),
    # Besides the broker: the engine of the indexes, temporary databases that no other process sees.
    "sqlite3": ("palermo.brokers.sqlite", "palermo.temp_index"),
    # Besides the serializer: Redis's scripts read it.
    "msgpack": ("palermo.serializers.msgpack", "palermo.brokers.redis"),
    "hiredis": ("palermo.brokers.redis",),
    "redis": ("palermo.brokers.redis",),
    # Besides the serializer: what the worker's own parent writes to its children, and nobody else can.
    "pickle": ("palermo.serializers.pickle", "palermo.worker.ipc", "palermo.worker.child.template"),
    "zstandard": ("palermo.serializers.compression",),
    # Besides the commands: the frameworks that have Palermo's among their own.
    "click": ("palermo.cli", "palermo.demo", "palermo.contrib.django.command_line", "palermo.contrib.flask"),
    "rich": ("palermo.cli", "palermo.demo"),
    "fastapi": ("palermo.webui", "palermo.contrib"),
    "starlette": ("palermo.webui", "palermo.contrib"),
    # A program with one framework imports no other.
    "django": ("palermo.contrib.django",),
    "django_tasks": ("palermo.contrib.django.backend",),
    "asgiref": ("palermo.contrib.django.database", "palermo.contrib.django.outbox"),
    "flask": ("palermo.contrib.flask", "palermo.contrib.flask_autoload"),
    "sqlalchemy": ("palermo.contrib.sqlalchemy",),
    "sentry_sdk": ("palermo.contrib.sentry",),
    # Besides the pages: the jobs whose annotations name models. Nothing imports it that a program has not imported.
    "pydantic": ("palermo.webui", "palermo.jobs.models"),
    "pydantic_core": ("palermo.jobs.models",),
    "argon2": ("palermo.webui",),
    "prometheus_client": ("palermo.metrics",),
    "opentelemetry": ("palermo.tracing",),
    "uvicorn": ("palermo.webui", "palermo.cli.web"),
    "jinja2": ("palermo.webui",),
    "setproctitle": ("palermo.worker.process", "palermo.cli.command_group"),
    "signal": (
        *("palermo.worker.signals", "palermo.worker.child.interrupts", "palermo.worker.child.template"),
        *("palermo.worker.child.process_state", "palermo.blocked_signals", "palermo.cli.command_group"),
    ),
    "os.environ": ("palermo.settings",),
    "os.getenv": ("palermo.settings",),
    "os.fork": ("palermo.worker.child.template", "palermo.worker.parent.run"),
    # Besides the clock: what watches other processes and machines, stamps lines of a log, or shows how old things are.
    "time.time": (
        *("palermo.contract.clock", "palermo.testing.movable_clock", "palermo.worker.logs", "palermo.webui"),
        *("palermo.brokers.redis.diagnosis", "palermo.brokers.rabbitmq.diagnosis"),
        *("palermo.brokers.rabbitmq.cluster.worker_control", "palermo.brokers.sqlite.workers"),
        *("palermo.brokers.sqlite.job_claimer", "palermo.brokers.sqlite.file.store", "palermo.brokers.sqlite.channels"),
    ),
}


@dataclass(frozen=True)
class Module:
    """A source file, by the name it is imported under."""

    name: str
    path: Path

    @property
    def imports(self) -> set[str]:
        """The dotted names of all it imports, wherever in the file and whatever for."""
        return self.facts[0]

    @cached_property
    def facts(self) -> tuple[set[str], set[str], set[str]]:
        """Its imports, attributes (those of os and time as "time.time"), and other names."""
        imports, attributes, others = set[str](), set[str](), set[str]()
        for node in ast.walk(ast.parse(self.path.read_text())):
            match node:
                case ast.Import(names=names):
                    imports |= {alias.name for alias in names}
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    # `from palermo.core import topology` imports palermo.core.topology, not a name of palermo.core.
                    dotted = {f"{module}.{alias.name}" for alias in names}
                    imports |= {name if name in _names() or module in ("os", "time") else module for name in dotted}
                case ast.Attribute(value=ast.Name(id="os" | "time" as owner), attr=attribute):
                    attributes |= {attribute, f"{owner}.{attribute}"}
                case ast.Attribute(attr=attribute):
                    attributes.add(attribute)
                case ast.Name(id=name):
                    others.add(name)
        return imports, attributes, others


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
    rooms = {"outermost": _OUTERMOST, "declarations": _DECLARATIONS, "contracts": _CONTRACTS, "core": _CORE}
    return next((room for room, places in rooms.items() if within(name, places)), "runtime")


#: Which rooms a module may import from, besides its own.
_MAY_SEE = {
    "outermost": {"runtime", "declarations", "contracts", "core"},
    "runtime": {"declarations", "contracts", "core"},
    "declarations": {"contracts", "core"},
    "contracts": {"core"},
    "adapters": {"contracts", "core"},
    "core": set[str](),
}


def may_import(importer: str, imported: str) -> bool:
    inside, outside = room(importer), room(imported)
    if inside == outside == "adapters":
        return adapter_of(imported) in (adapter_of(importer), "palermo.brokers.features")
    return inside == outside or outside in _MAY_SEE[inside]


def violations(check: Callable[[Module], set[str]]) -> dict[str, set[str]]:
    """What a check finds wrong, by module."""
    return {module.name: wrong for module in modules() if (wrong := check(module))}


def test_nothing_points_up_and_adapters_know_nobody() -> None:
    def upward(module: Module) -> set[str]:
        ours = {name for name in module.imports if within(name, ("palermo",))}
        return {name for name in ours if not may_import(module.name, name)}

    assert len(modules()) > 100
    assert violations(upward) == {}


def test_core_uses_only_what_is_pure() -> None:
    assert any(room(module.name) == "core" for module in modules())
    assert violations(lambda module: impure(module) if room(module.name) == "core" else set()) == {}


def impure(module: Module) -> set[str]:
    imports, attributes, others = module.facts
    foreign = {name for name in imports if not within(name, ("palermo",))}
    impure_imports = {name for name in foreign if name not in _PURE and name.partition(".")[0] not in _PURE}
    # A parameter may be called `now`: it is how the present comes in.
    return impure_imports | (attributes | others - {"now"}) & _IMPURE


def test_everything_dangerous_stays_in_its_home() -> None:
    assert violations(strayed) == {}


def strayed(module: Module) -> set[str]:
    imports, attributes, _ = module.facts
    used = imports | {name for name in attributes if "." in name}
    return {
        thing
        for thing, homes in _HOMES.items()
        if any(within(name, (thing,)) for name in used) and not within(module.name, homes)
    }


def _circle(edges: dict[str, set[str]]) -> list[str]:
    """Some that import each other, directly or through others; empty if there are none."""
    left = {name: set(imported) for name, imported in edges.items()}
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("depth", [None, 9], ids=["folders", "modules"])
@pytest.mark.parametrize(("top", "folders"), [("palermo", 2), ("palermo.brokers", 4), ("palermo.webui", 3)])
def test_folders_and_modules_import_each_other_in_one_direction(top: str, folders: int, depth: int | None) -> None:
    """Imports for type checking, and those inside functions, count as all others."""
    depth = depth or folders
    edges: dict[str, set[str]] = {}
    for module in modules():
        if within(module.name, (top,)):
            place = ".".join(module.name.split(".")[:depth])
            imported = {".".join(name.split(".")[:depth]) for name in module.imports if name in _names()}
            edges[place] = edges.get(place, set()) | imported - {place}

    assert _circle(edges) == []
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_a_file_is_short_enough_to_be_read_at_once() -> None:
    tops = ("palermo", "serializers", "webui", "tests", "benchmarks", "soak", "examples")
    paths = {path for top in tops for path in (_REPOSITORY / top).rglob("*.py") if "damaged" not in path.parts}
    lines = {str(path.relative_to(_REPOSITORY)): len(path.read_text().splitlines()) for path in paths}

    assert len(lines) > 400
    assert {name: count for name, count in lines.items() if count > _MAX_LINES} == {}
