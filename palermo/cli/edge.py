"""The outer edge of the command line: what a run was told, and how every error ends it.

    0    done; an empty listing and `--all` on nothing too
    1    it failed
    2    wrong usage
    3    the broker cannot be reached, or refuses us
    4    an id, a queue or a filter that names nothing
    130  interrupted by Ctrl-C

Errors are one readable line on stderr; `--debug` shows the traceback instead.
"""

import gc
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from palermo.cli.text import one_line
from palermo.core.values import dataclass
from palermo.errors import (
    BrokerRefused,
    BrokerUnavailable,
    NotFound,
    PalermoError,
    StoreInvalid,
    UrlInvalid,
    UsageError,
)

if TYPE_CHECKING:
    from palermo.client import Client
    from palermo.config import Settings
    from palermo.inspector import Inspector

FAILED, USAGE, BROKER, NOTHING, INTERRUPTED = 1, 2, 3, 4, 130

_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):\S*(?=@)")


@dataclass(slots=True)
class Run:
    """What the flags that every command takes said."""

    url: str | None = None
    exchange: str | None = None
    debug: bool = False

    def settings(self, **overrides: Any) -> "Settings":
        """The settings of this run: flags above everything else. Raises SettingInvalid."""
        from palermo.config import Settings

        settings = Settings.load(url=self.url, exchange=self.exchange, **overrides)
        if settings.address.path == ":memory:":
            raise UrlInvalid(
                "sqlite:///:memory: ends with the process that opens it, so there is nothing to see from the command"
                " line. Name a file: sqlite:///jobs.db."
            )
        return settings

    def client(self) -> "Client":
        """A client with this run's settings; it connects when first asked something, and closes with the command."""
        from palermo.client import Client

        client = Client(self.settings())
        click.get_current_context().call_on_close(client.close)
        return client

    def inspector(self) -> "Inspector":
        """An inspector over such a client."""
        from palermo.acting import Actor
        from palermo.inspector import Inspector

        return Inspector(self.client(), Actor.here("cli"))


def exit_code(error: BaseException) -> int:
    """The exit code an error ends the command with."""
    match error:
        case UsageError():
            return USAGE
        case BrokerUnavailable() | BrokerRefused() | StoreInvalid():
            return BROKER
        case NotFound():
            return NOTHING
        case click.ClickException():
            return error.exit_code
        case _:
            return FAILED


class Edge(click.Group):
    """A group whose run always ends in an exit code of the table above, and never in a traceback unasked for."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if args is None:
            _own_process()
        run = extra.setdefault("obj", Run())
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            # click returns the code of an Exit, and None from a command that ran through.
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _close_stdout()
            code = FAILED
        except Exception as error:  # the edge of the command line: whatever it is becomes one line
            code = _report(error, debug=run.debug)
        if args is None:
            # The interpreter looks through all objects more than once before it ends, which takes longer than the rest.
            gc.freeze()
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception, *, debug: bool) -> int:
    if debug and not isinstance(error, (click.ClickException, click.Abort)):
        import traceback

        click.echo(masked("".join(traceback.format_exception(error))), err=True, nl=False)
        return exit_code(error)
    match error:
        case click.Abort():
            click.echo("palermo: interrupted", err=True)
            return INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else FAILED
        case click.UsageError():
            text = error.format_message()
            path = error.ctx.command_path if error.ctx else "palermo"
            line = f"{text.rstrip('.')}. See `{path} --help`."
        case click.ClickException():
            line = error.format_message()
        case PalermoError():
            line = f"{type(error).__name__}: {error}"
        case _:
            line = f"{type(error).__name__}: {error} (unexpected; --debug shows the traceback)"
    click.echo("palermo: " + one_line(masked(line)), err=True)
    return exit_code(error)


def masked(text: str) -> str:
    """The text with the passwords in its URLs hidden."""
    return _PASSWORD.sub(r"\1:***", text)


@contextmanager
def imports() -> Iterator[None]:
    """Import much at once without the garbage collector: it would look for rubbish in what has come to stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _own_process() -> None:
    """What only a process of its own may do: hide a password in its title, and write any text to any terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    title = " ".join(sys.argv)
    if masked(title) != title:
        from setproctitle import setproctitle

        setproctitle(masked(title))


def _close_stdout() -> None:
    """Let the interpreter end without a complaint about a reader that went away."""
    with suppress(BrokenPipeError):
        sys.stdout.close()
