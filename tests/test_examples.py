"""The examples in the documents run as they stand, and the commands in them exist.

A page's examples run in one process, on the embedded broker; those of the pages in ON_RABBITMQ on RabbitMQ too. With
`make endurance` all of them do.
tests/doc_pages.py says how a page hides what its examples need.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from palermo.cli import main
from tests.doc_pages import PAGES, ROOT, Block, blocks
from tests.scale import chosen

pytestmark = pytest.mark.slow


#: The pages whose examples meet what RabbitMQ does otherwise than a file.
ON_RABBITMQ = [
    ROOT / "README.md",
    *(ROOT / "docs" / page for page in ("guides/events.md", "guides/unique.md")),
]

#: Guides whose examples are files of a project, or tests: tests/contrib/test_guides.py and tests/testing run them.
ELSEWHERE = [
    ROOT / "docs/guides" / f"{name}.md" for name in ("django", "fastapi", "flask", "sentry", "sqlalchemy", "testing")
]

#: The languages of blocks that hold commands. A block that names no language may hold some.
_SHELL = ("sh", "")

_INLINE = re.compile(r"`((?:PALERMO_\w+=\S+ )*palermo [^`\n]+)`")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
_FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
#: Marks of a synopsis: what may be left out, what may be chosen, what goes on.
_SYNOPSIS = re.compile(r"[\[\]|…]|\.\.\.|<|\b[A-Z]{2,}\b")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_examples() -> list[Path]:
    pages = [page for page in PAGES if page not in ELSEWHERE]
    return [page for page in pages if any(block.language == "python" or block.is_run for block in blocks(page))]


def run_examples(page: Path, folder: Path, **environment: str) -> tuple[int, int]:
    """Run the examples of a page in an empty folder. Returns how many blocks of Python and of shell ran."""
    # Bytecode is written: without it each process compiles all of Palermo.
    without = ("PALERMO_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(without)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.doc_examples", name(page)],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{name(page)}:\n{done.stdout}\n{done.stderr}"
    python, shell = done.stdout.splitlines()[-1].split()
    return int(python), int(shell)


@pytest.mark.parametrize("page", with_examples(), ids=name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    ran = run_examples(page, tmp_path, PALERMO_URL="sqlite:///jobs.db")

    assert ran[0] == sum(block.language == "python" for block in blocks(page))


@pytest.mark.parametrize(
    "page", chosen(ON_RABBITMQ, *(page for page in with_examples() if page not in ON_RABBITMQ)), ids=name
)
def test_the_examples_of_a_page_run_on_rabbitmq(page: Path, tmp_path: Path, rabbitmq_url: str, exchange: str) -> None:
    run_examples(page, tmp_path, PALERMO_URL=rabbitmq_url, PALERMO_EXCHANGE=exchange)


def test_every_example_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    found = [block for page in PAGES for block in blocks(page)]
    python = sum(block.language == "python" for block in found)
    shell = sum(block.is_run for block in found)
    shown = sum(len(list(commands_of(page))) for page in PAGES)
    named = sum(len(list(commands_in_text(page))) for page in PAGES)

    with capsys.disabled():
        print(
            f"\n{python} examples of Python and {shell} of shell run; {shown + named} commands exist with their options"
        )

    assert python >= 39
    assert shown >= 50


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_that_a_page_shows_exists_with_its_options(page: Path) -> None:
    shown = [(line, command, what_is_wrong(command)) for line, command in commands_of(page)]
    named = [(line, command, unknown_names(command)) for line, command in commands_in_text(page)]
    wrong = [f"line {line}: {command}: {why}" for line, command, why in (*shown, *named) if why]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("palermo worker shop -c 2", ""),
        ("palermo worker shop --concurency 2", "No such option"),
        ("palermo failed requeue ID… | --all [--no-such]", "--no-such"),
        ("palermo failed reqeue --all", "reqeue"),
        ("palermo enqueue", "Missing argument"),
        ("palermo recurring add nightly shop.report --every 5m --missed never", "never"),
    ],
)
def test_the_check_finds_a_wrong_command(command: str, why: str) -> None:
    found = what_is_wrong(command)

    assert why in found if why else found == ""


def commands_of(page: Path) -> Iterator[tuple[int, str]]:
    """The commands `palermo …` in a page's blocks of shell, with their lines."""
    for block in blocks(page):
        if block.language in _SHELL:
            yield from ((block.line + number, command) for number, command in palermo_commands(block))


def commands_in_text(page: Path) -> Iterator[tuple[int, str]]:
    """The commands that a page's text names: these need not be whole."""
    prose = _FENCED.sub(lambda fenced: "\n" * fenced[0].count("\n"), page.read_text())
    for found in _INLINE.finditer(prose):
        yield prose.count("\n", 0, found.start()) + 1, found[1]


def palermo_commands(block: Block) -> Iterator[tuple[int, str]]:
    """The commands of a shell block that call palermo, without what pipes, redirections and comments add."""
    lines = block.code.replace("\\\n", "  ").splitlines()
    for number, line in enumerate(lines):
        without_comment = re.sub(r"(^|\s{2,})#.*|(?<=\S) # .*", "", line).strip()
        found = re.search(r"(?:^|[;&(]\s*|sudo |exec |run )((?:[A-Z_]+=\S+ )*palermo\s.*)", without_comment)
        if found:
            yield number, found[1]


def what_is_wrong(command: str) -> str:
    """What the command line finds wrong with a command; of one with placeholders, the names that do not exist."""
    if _SYNOPSIS.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", command)):
        return unknown_names(command)
    command = re.split(r"\s(?:\||>>?|2>&1|&&|&)(?:\s|$)", command)[0]
    words = [word for word in shlex.split(command) if not _ASSIGNMENT.fullmatch(word)]
    try:
        parse(main, words[1:])
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def parse(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Read a command line without running it. Raises what click raises."""
    from palermo.cli.command_group import Context

    options = {} if parent is not None else {"obj": Context()}
    with command.make_context(command.name or "palermo", list(words), parent=parent, **options) as context:
        rest = [*context._protected_args, *context.args]
        if isinstance(command, click.Group) and rest:
            _, found, left = command.resolve_command(context, rest)
            assert found is not None
            parse(found, left, context)


def unknown_names(command: str) -> str:
    """The commands and options in a command with placeholders that do not exist."""
    words = [word for word in command.split() if not _ASSIGNMENT.fullmatch(word)][1:]
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        below = found.get_command(context, words.pop(0))
        if below is None:
            return f"there is no such command: {command}"
        found = below
    known = {flag for each in found.get_params(context) for flag in (*each.opts, *each.secondary_opts)} | {
        "-h",
        "--help",
    }
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", " ".join(words))
    return " ".join(flag for flag in _FLAG.findall(unquoted) if flag not in known)
