"""Finds wrong commands in the documents and in the files that deploy Palermo: `make lint` runs it.

The command line reads each command without running it. One with placeholders (`palermo failed requeue ID… | --all`)
must have names of commands and options that exist. Variables `PALERMO_…` of the files that deploy must be settings.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import yaml

from palermo.cli import main
from palermo.cli.command_group import Context
from palermo.settings.settings import Settings

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / "README.md",
    *(page for part in ("learn", "guides", "reference") for page in (ROOT / "docs" / part).rglob("*.md")),
]
COMPOSE = ROOT / "docker-compose.yml"
MANIFESTS = sorted((ROOT / "docs/guides/kubernetes").glob("*.yml"))
UNIT = ROOT / "examples/systemd/palermo@.service"

_FENCED = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:PALERMO_\w+=\S+ )*palermo [^`\n]+)`")
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
_FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
#: Marks of a synopsis: what may be left out, what may be chosen, what goes on.
_SYNOPSIS = re.compile(r"[\[\]|…]|\.\.\.|<|\b[A-Z]{2,}\b")


def commands(script: str) -> Iterator[str]:
    """The commands of a shell block that call palermo, without what pipes, redirections and comments add."""
    for line in script.replace("\\\n", "  ").splitlines():
        without_comment = re.sub(r"(^|\s{2,})#.*|(?<=\S) # .*", "", line).strip()
        found = re.search(r"(?:^|[;&(]\s*|sudo |exec |run )((?:[A-Z_]+=\S+ )*palermo\s.*)", without_comment)
        if found:
            yield found[1]


def fault(command: str) -> str:
    """What the command line finds wrong with a command, "" if nothing."""
    if _SYNOPSIS.search(_QUOTED.sub("", command)):
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
    name, given = command.name or "palermo", {"obj": Context()} if parent is None else {}
    with command.make_context(name, list(words), parent=parent, **given) as context:
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
            return "there is no such command"
        found = below
    flags = {flag for each in found.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
    used = _FLAG.findall(_QUOTED.sub("", " ".join(words)))
    return " ".join(flag for flag in used if flag not in {*flags, "-h", "--help"})


def deployed() -> Iterator[tuple[Path, str]]:
    """The files that run a command, and the command."""
    for service in yaml.safe_load(COMPOSE.read_text())["services"].values():
        if "build" in service:
            yield COMPOSE, shlex.join(["palermo", *service["command"]])
        if service["healthcheck"]["test"][1] == "palermo":
            yield COMPOSE, shlex.join(service["healthcheck"]["test"][1:])
    for path in MANIFESTS:
        for each in yaml.safe_load_all(path.read_text()):
            for container in each["spec"]["template"]["spec"]["containers"] if each["kind"] == "Deployment" else ():
                yield path, shlex.join(["palermo", *container["args"]])
                probes = [container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")]
                yield from ((path, shlex.join(probe["exec"]["command"])) for probe in probes if "exec" in probe)
    unit = UNIT.read_text()
    [program] = re.findall(r"^ExecStart=\S*/(palermo .*)$", unit, re.MULTILINE)
    [example] = re.findall(r'^#   WORKER_OPTIONS="(.*)"$', unit, re.MULTILINE)
    yield UNIT, program.replace("$WORKER_OPTIONS", example)


def wrong() -> Iterator[str]:
    """All that is wrong, with its place."""
    for page in PAGES:
        text = page.read_text()
        blocks = [code for language, code in _FENCED.findall(text) if language in ("sh", "")]
        shown = [command for block in blocks for command in commands(block)]
        named = _INLINE.findall(_FENCED.sub("", text))
        found = [*((command, fault(command)) for command in shown), *((each, unknown_names(each)) for each in named)]
        yield from (f"{page.relative_to(ROOT)}: {command}: {why}" for command, why in found if why)
    for path, command in deployed():
        if why := fault(command):
            yield f"{path.relative_to(ROOT)}: {command}: {why}"
    settings = {f"PALERMO_{name.upper()}" for name in Settings.__struct_fields__}
    for path in (COMPOSE, UNIT, *MANIFESTS):
        unknown = set(re.findall(r"\bPALERMO_[A-Z_]+\b", path.read_text())) - settings
        yield from (f"{path.relative_to(ROOT)}: {name} is no setting" for name in sorted(unknown))


if __name__ == "__main__":
    found = list(wrong())
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)
