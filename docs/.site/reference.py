"""Writes what the documents take from the code: `make reference`.

docs/reference/commands.md holds every command and option, as the command line knows them; docs/reference/api.md holds
what programs import, with its docstrings. In the pages of TABLES one table is made. With `--check`, as `make lint` runs
it, nothing is written: a page that differs is named, and the exit code is 1.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from public_api import PARTS

import palermo
from palermo import errors
from palermo.cli import COMMANDS, main
from palermo.client.decorator import FunctionJob
from palermo.contract.rows import Listing
from palermo.core.lifecycle import TRANSITIONS
from palermo.jobs import options
from palermo.jobs.hooks import HOOKS
from palermo.metrics.catalogue import WEB, WORKER, Metric
from palermo.settings.settings import Settings
from palermo.settings.table import SETTINGS
from palermo.views.filter import AuditFilter, JobFilter
from palermo.worker.parent.orders import ORDERS
from palermo.worker.signals import RESQUE_SIGNALS, SIGNALS

DOCS = Path(__file__).parent.parent

MADE = "<!-- Generated from the code by `make reference`. Do not edit. -->"

#: Options that nearly every command takes. They are explained once.
_COMMON = ("--url", "--exchange", "--debug", "--json", "--help")

#: Classes whose fields matter to programs, and whose methods do not.
_VALUES = (JobFilter, AuditFilter, Listing)

#: Fields and methods that only Palermo itself uses, of all classes or of one.
_NOT_FOR_PROGRAMS = (
    *("Client.run", "Jobs.waiting"),
    *("definition", "watch", "watch_async", "write_record", "unique_job"),
    *("unpickled_job", "snapshot", "of", "of_run", "add", "returned", "is_in", "enqueue_as"),
    *("enqueue_message", "begin_watch", "page", "queue_of", "count_matching", "row"),
)

#: The orders that Palermo itself gives to workers.
_OWN_ORDERS = ("cancel", "lines", "memory", "outcome")

#: Classes that programs get, and never make.
_GOT = (palermo.Step, palermo.Inspector)

#: What the docstring of a method begins with that does the same as another one.
_ASYNC = re.compile(r"`\w+` for asyncio programs\b")

#: In how many commands an option stands that is explained once.
_OFTEN = 3


def commands_page() -> str:
    """The page of all commands."""
    context = click.Context(main, info_name="palermo", **main.context_settings)
    every = [found for name in COMMANDS for found in _with_below(name, main, context)]
    counts = Counter(record for each in every for record in dict.fromkeys(_own_records(*each)))
    often = {record: counts[record] for record in counts if counts[record] >= _OFTEN}
    out = [
        MADE,
        "",
        "# Commands",
        "",
        "`palermo COMMAND --help` shows the same text. Nearly all commands have these options:",
        "",
        "| option | meaning |",
        "| --- | --- |",
    ]
    common = {record[0]: record[1] for record in _records(main, context)}
    out += [f"| {_code(flag)} | {_cell(text)} |" for flag, text in common.items() if "--version" not in flag]
    out += ["| `--json` | Print only JSON on stdout. |", ""]
    out += [
        "A TIME is a number of seconds, or a number with a unit: `90`, `30s`, `5m`, `2h`, `1h30m`, `7d`. A WHEN is a",
        "time, such as `2026-12-01T09:00Z`. In an option for a past time, such as `--since`, `2h` means two hours ago.",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        "| 0 | done; also for an empty listing |",
        "| 1 | the command failed |",
        "| 2 | wrong usage |",
        "| 3 | the broker cannot be reached, or refuses the user |",
        "| 4 | no such id or queue, or a filter that matches nothing |",
        "| 130 | interrupted by Ctrl-C |",
        "",
        "For the exit codes of workers, see [deploying](../guides/deploying.md).",
        "",
        "Several commands have some of these options; the section of a command lists them after *Also*:",
        "",
        "| option | meaning |",
        "| --- | --- |",
        *(f"| {_code(flag)} | {_cell(text)} |" for flag, text in often),
    ]
    for command, below in every:
        out += _command(command, below, often)
    return "\n".join(out) + "\n"


def _with_below(name: str, group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """A command of this group, and all commands below it."""
    command = group.get_command(context, name)
    assert command is not None
    inner = click.Context(command, info_name=name, parent=context)
    yield command, inner
    if isinstance(command, click.Group):
        for below in command.list_commands(inner):
            yield from _with_below(below, command, inner)


def _own_records(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    return [record for record in _records(command, context) if not any(each in record[0] for each in _COMMON)]


def _command(command: click.Command, context: click.Context, often: Mapping[tuple[str, str], int]) -> Iterator[str]:
    yield from ("", f"{'#' * len(context.command_path.split())} {context.command_path}", "")
    yield from _help(command.help or "")
    pieces = command.collect_usage_pieces(context)
    if pieces != ["[OPTIONS]"]:
        yield from ("", "```text", f"{context.command_path} {' '.join(pieces)}".rstrip(), "```")
    records = _own_records(command, context)
    helps = {option.help for option in options.OPTIONS.values()}
    of_jobs = [flag for flag, text in records if text in helps]
    own = [record for record in records if record not in often and record[1] not in helps]
    if own:
        yield from ("", "| option | meaning |", "| --- | --- |")
        yield from (f"| {_code(flag)} | {_cell(text)} |" for flag, text in own)
    if shared := [flag.split()[0].rstrip(",") for flag, text in records if (flag, text) in often]:
        yield ""
        yield from textwrap.wrap(f"Also {', '.join(f'`{flag}`' for flag in shared)}.", 120, break_on_hyphens=False)
    if of_jobs:
        text = f"The [options of a job](api.md#options-of-a-job): {', '.join(f'`{flag}`' for flag in of_jobs)}."
        yield from ("", *textwrap.wrap(text, 120, break_on_hyphens=False))


def _records(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The options of a command, and what each does, as its help has them."""
    for each in command.get_params(context):
        if isinstance(each, click.Option) and (record := each.get_help_record(context)) is not None:
            yield record


def _help(text: str) -> Iterator[str]:
    """The help of a command as Markdown: what is set as it is there stands in a block."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith("\b"):
            yield from ("```text", *paragraph.splitlines()[1:], "```")
        else:
            yield from textwrap.wrap(_placeholders(" ".join(paragraph.split())), 120, break_on_hyphens=False)


def _placeholders(text: str) -> str:
    """Text in which nothing is taken for Markdown, but for its code."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", r"\*") for number, part in enumerate(parts)
    )


def _code(text: str) -> str:
    return "`" + text.replace("|", r"\|") + "`"


def _cell(text: str) -> str:
    return _placeholders(" ".join(text.split())).replace("|", r"\|")


def api_page() -> str:
    """The page of what programs import."""
    out = [
        MADE,
        "",
        "# The Python API",
        "",
        "Everything that `import palermo` offers, and the classes that it returns. Other names may change.",
        "Times are seconds, as floats, unless stated otherwise. A `Duration` is seconds, or a timedelta.",
        "",
        "In asyncio programs, use `enqueue_async`, `publish_async`, `status_async`, `result_async`, `wait_async`,",
        "`signal_async` and `cancel_async`: they do the same without blocking the event loop.",
    ]
    for title, text, entries in PARTS:
        out += ["", f"## {title}", "", text]
        for name, found in entries:
            out += _entry(name, found)
        if title == "Declare":
            out += _options()
    out += ["", "## Errors", "", "[Errors](errors.md) lists them, with their causes and remedies."]
    return "\n".join(out) + "\n"


#: Where an option is allowed, in the table of options.
_PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("job", options.JOB_OPTIONS),
    ("options", options.STEP_OPTIONS),
    ("subscribe", options.SUBSCRIBE_OPTIONS),
    ("publish", options.PUBLISH_OPTIONS),
)


def _options() -> Iterator[str]:
    """The table of all options of a job."""
    tree = ast.parse(inspect.getsource(options))
    types = {
        node.target.id: ast.unparse(_unquoted(node.annotation.slice.elts[0]) or node.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Subscript)
        and isinstance(node.annotation.slice, ast.Tuple)
        and ast.unparse(node.annotation.value) == "Annotated"
    }
    yield from ("", "### Options of a job", "")
    yield "An option that is None is decided by the job's declaration, or by the settings. Those that declare jobs with"
    yield f"`batch` do not take {', '.join(f'`{name}`' for name in options.ONE_BY_ONE)} and `keep_result`. An option is"
    yield "allowed in `@palermo.job`, `.options()`, `@palermo.subscribe` or `publish`. `@palermo.workflow` takes the"
    yield "options of `@palermo.job`, except `batch`, and also `deadline`."
    yield from ("", "| option | type | allowed in | meaning |", "| --- | --- | --- | --- |")
    for name, option in options.OPTIONS.items():
        places = ", ".join(place for place, known in _PLACES if name in known) or "workflow"
        yield f"| `{name}` | {_code(types[name])} | {places} | {_cell(option.help)} |"


def _errors(root: type[BaseException], seen: set[type] | None = None) -> Iterator[type[BaseException]]:
    seen = set() if seen is None else seen
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__ and each not in seen:
            seen.add(each)
            yield each
            yield from _errors(each, seen)


def _entry(name: str, found: Any) -> Iterator[str]:
    yield from ("", f"### {name}", "")
    if not inspect.isclass(found):
        yield from ("```text", _signature(name, found), "```", "")
        yield from _docstring(found)
        return
    yield from _docstring(found)
    if (
        "__init__" in vars(found)
        and not is_dataclass(found)
        and not issubclass(found, Struct)
        and found is not FunctionJob
        and found not in _GOT
    ):
        yield from ("", "```text", _signature(name, found.__init__, is_method=True), "```")
    fields = [field for field in _fields(found) if field[0] not in _NOT_FOR_PROGRAMS]
    if fields:
        yield from ("", "| field | type | meaning |", "| --- | --- | --- |")
        yield from _rows(fields)
    for method, function in _methods(found) if found not in _VALUES else ():
        if isinstance(function, property):
            yield from ("", f"**`{method}`**", "")
            yield from _docstring(function)
        else:
            yield from ("", "```text", _signature(method, function, is_method=True), "```", "")
            yield from _docstring(function)


def _rows(fields: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """The rows of a table of fields. Neighbours of one type that have no text share a row."""
    for (kind, text, _), group in groupby(fields, lambda field: (field[1], field[2], field[2] and field[0])):
        yield f"| {', '.join(f'`{name}`' for name, *_ in group)} | {_code(kind)} | {_cell(text)} |"


def _docstring(found: Any) -> Iterator[str]:
    for number, paragraph in enumerate((inspect.getdoc(found) or "").split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith("    "):
            yield from ("```text", *textwrap.dedent(paragraph).splitlines(), "```")
        elif paragraph:
            yield from textwrap.wrap(" ".join(paragraph.split()), 120, break_on_hyphens=False)


def _signature(name: str, function: Any, *, is_method: bool = False) -> str:
    """How a function is called, as its source says. Long ones have a line for each parameter."""
    if isinstance(function, classmethod | staticmethod):
        function = function.__func__
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    parameters = tree.args
    if is_method:
        (parameters.posonlyargs or parameters.args).pop(0)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = _unquoted(node.annotation)
    result = f" -> {ast.unparse(_unquoted(tree.returns) or ast.Name('None'))}" if tree.returns else ""
    prefix = "await " if isinstance(tree, ast.AsyncFunctionDef) else ""
    written = re.sub(r"(?<=\w|\])=", " = ", ast.unparse(parameters))
    short = f"{prefix}{name}({written}){result}"
    if len(short) <= 110:
        return short
    return f"{prefix}{name}(\n" + "".join(f"    {each},\n" for each in _parts(written)) + f"){result}"


def _parts(parameters: str) -> list[str]:
    """The parameters one by one: a comma inside brackets divides none."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _fields(found: type) -> Iterator[tuple[str, str, str]]:
    """The public fields of a class: name, type, and what it holds: the comments `#:` above it, or its `About`."""
    try:
        lines = textwrap.dedent(inspect.getsource(found)).splitlines()
    except (OSError, TypeError):  # a class that says that it is of another module than the one it is written in
        return
    tree = ast.parse("\n".join(lines)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            above: list[str] = []
            number = node.lineno - 2
            while lines[number].strip().startswith("#:"):
                above.insert(0, lines[number].strip().removeprefix("#:").strip())
                number -= 1
            match _unquoted(node.annotation):
                case ast.Subscript(
                    value=ast.Name(id="Annotated"),
                    slice=ast.Tuple(elts=[kind, ast.Call(args=[ast.Constant(value=str(text))])]),
                ):
                    yield node.target.id, ast.unparse(kind), text
                case kind:
                    yield node.target.id, ast.unparse(kind or node.annotation), " ".join(above)


def _methods(found: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that have a docstring, its bases' ones too, in their order."""
    seen: dict[str, Any] = {}
    known: set[int] = set()
    for base in reversed([each for each in found.__mro__ if each.__module__.startswith("palermo")]):
        seen.update(vars(base))
    for name, each in seen.items():
        function = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        text = inspect.getdoc(function)
        if (
            name.startswith("_")
            or name in _NOT_FOR_PROGRAMS
            or f"{found.__name__}.{name}" in _NOT_FOR_PROGRAMS
            or not text
            or text.startswith("See ")
            or _ASYNC.match(text)
            or id(function) in known
        ):
            continue
        known.add(id(function))
        if isinstance(each, property) or (inspect.isfunction(function) and function.__module__.startswith("palermo")):
            yield name, each


def _table(head: str, rows: Iterator[tuple[str, ...]]) -> list[str]:
    columns = head.count("|") + 1
    return [f"| {head} |", "|" + " --- |" * columns, *(f"| {' | '.join(row)} |" for row in rows)]


def settings_table() -> list[str]:
    """All settings, with their defaults."""

    def rows() -> Iterator[tuple[str, ...]]:
        defaults = Settings()
        for name, setting in SETTINGS.items():
            default = getattr(defaults, name)
            written = ",".join(default) if isinstance(default, tuple) else "" if default in (None, {}) else str(default)
            text = re.sub(r"docs/(\w+)/([\w-]+\.md)", r"[\2](../\1/\2)", _cell(setting.help))
            yield f"`{name}`", f"`PALERMO_{name.upper()}`", f"`{written}`" if written else "none", text

    return _table("setting | variable | default | meaning", rows())


def hooks_table() -> list[str]:
    """All hooks, with the process in which each runs."""
    long = "the job's arguments (a global hook gets the JobDefinition first)"
    rows = (
        (f"`{row.name}`", row.process, row.arguments.replace(long, "arguments"), row.on_false, row.on_raise)
        for row in HOOKS
    )
    return _table("hook | process | called with | returning False | raising", rows)


def transitions_table() -> list[str]:
    """What may happen to a job."""
    rows = ((what, str(origin or ""), str(to)) for what, origin, to in TRANSITIONS)
    return _table("what happens | from | to", rows)


def signals_table() -> list[str]:
    """The signals of a worker."""

    def rows() -> Iterator[tuple[str, ...]]:
        yield from ((row.name, row.meaning) for row in SIGNALS)
        yield from ((f"{row.name} with `--resque-signals`", row.meaning) for row in RESQUE_SIGNALS)

    return _table("signal | what the worker does", rows())


def orders_table() -> list[str]:
    """What `palermo control` can ask of a worker."""
    rows = ((row.action, row.meaning) for row in ORDERS if row.action not in _OWN_ORDERS)
    return _table("action | what the worker does", rows)


def metrics_table(metrics: Iterable[Metric]) -> list[str]:
    """The metrics of one kind of process."""
    rows = (
        (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.help) for each in metrics
    )
    return _table("metric | kind | labels | meaning", rows)


#: The generated tables: the page, the table's name in the marks around it, and the function that makes it.
TABLES: tuple[tuple[str, str, Callable[[], list[str]]], ...] = (
    ("reference/settings.md", "settings", settings_table),
    ("reference/lifecycle.md", "transitions", transitions_table),
    ("reference/signals.md", "signals", signals_table),
    ("guides/hooks.md", "hooks", hooks_table),
    ("guides/operating.md", "actions", orders_table),
    ("guides/monitoring.md", "web metrics", partial(metrics_table, WEB)),
    ("guides/monitoring.md", "worker metrics", partial(metrics_table, WORKER)),
)


def made_pages() -> Iterator[tuple[Path, str]]:
    """Each page and what it should hold."""
    yield DOCS / "reference/commands.md", commands_page()
    yield DOCS / "reference/api.md", api_page()
    pages = {page: (DOCS / page).read_text() for page, _, _ in TABLES}
    for page, name, table in TABLES:
        text = pages[page]
        begin, end = f"<!-- {name}: made by `make reference` -->\n", f"<!-- end of {name} -->"
        rows = "\n".join(table())
        pages[page] = f"{text[: text.index(begin)]}{begin}{rows}\n{text[text.index(end) :]}"
    yield from ((DOCS / page, text) for page, text in pages.items())


def missing_names() -> Iterator[str]:
    """What a page leaves out: public names, unless they are described elsewhere, and errors."""
    described = {name for _, _, entries in PARTS for name, _ in entries} | {
        *("palermo.PalermoError", "palermo.Settings", "palermo.publish_async")
    }
    for name in sorted({f"palermo.{name}" for name in palermo.__all__} - described):
        yield f"{name} is not in PARTS of docs/.site/public_api.py"
    errors_page = (DOCS / "reference/errors.md").read_text()
    for each in _errors(errors.PalermoError):
        if f"`{each.__name__}`" not in errors_page:
            yield f"{each.__name__} is not in docs/reference/errors.md"


def write_or_check() -> int:
    """Write the pages, or with `--check` compare them. Returns the exit code."""
    wrong = [*missing_names()]
    for path, text in made_pages():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            wrong.append(f"{path.relative_to(DOCS.parent)} is not what the code says: run `make reference`")
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(write_or_check())
