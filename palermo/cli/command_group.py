"""The group of all commands, with the common flags and the exit code of every error.

    0    done, including an empty listing and `--all` without a match
    1    failed
    2    wrong usage
    3    the broker can't be reached or refuses the connection
    4    an id, a queue or a filter that matches nothing
    130  interrupted by Ctrl-C

An error is one readable line on stderr. If the user's code raised it, its frames are printed above. `--debug` shows the
whole traceback instead.
"""

import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from palermo.core.address import masked
from palermo.core.text import one_line, safe
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
    from palermo.client.client import Client
    from palermo.inspector.inspector import Inspector
    from palermo.settings.settings import Settings

FAILED, USAGE, BROKER, NOT_FOUND, INTERRUPTED = 1, 2, 3, 4, 130

#: click 8.2 and later raise this for a group without a command, with the help as its text. click 8.1 prints the help
#: itself.
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


@dataclass
class Context:
    """The values of the common flags, and a client that uses them."""

    url: str | None = None
    #: Parts of a URL, as an alternative to `url`.
    host: str | None = None
    port: int | None = None
    user: str | None = None
    vhost: str | None = None
    password_file: str | None = None
    exchange: str | None = None
    debug: bool = False
    #: Whether to print only JSON on stdout.
    as_json: bool = False
    #: Output that may already describe the broker's problem, so that it isn't printed twice.
    shown: str = ""
    _client: "Client | None" = None

    @cached_property
    def broker_url(self) -> str | None:
        """The URL given by the flags, as a whole or in parts; None if the settings decide.

        Missing parts come from the settings' URL, or are defaults if that URL is for another kind of broker. The URL is
        computed once because a password file may be a pipe. Raises click.UsageError and SettingInvalid.
        """
        parts = (self.host, self.port, self.user, self.vhost, self.password_file)
        if all(part is None for part in parts):
            return self.url
        if self.url is not None:
            raise misuse(
                "--url names the whole broker and cannot be combined with flags for a part of it"
                " (host, port, --user, --vhost, --password-file)"
            )
        from palermo.core.address import DEFAULT_URL, AddressParts, parse_url, written
        from palermo.settings.settings import Settings

        address = Settings.load().address
        password = None if self.password_file is None else _password_in(self.password_file)
        given = AddressParts(host=self.host, port=self.port, username=self.user, password=password, vhost=self.vhost)
        whole = given.of(address if address.hosts else parse_url(DEFAULT_URL))
        if not address.hosts:
            note(f"using the broker {whole} of the flags instead of {address} of the settings.")
        return written(whole)

    def settings(self, **overrides: Any) -> "Settings":
        """The settings, overridden by the flags. Raises SettingInvalid."""
        from palermo.settings.settings import Settings

        settings = Settings.load(url=self.broker_url, exchange=self.exchange, **overrides)
        if settings.address.path == ":memory:":
            raise UrlInvalid(
                "sqlite:///:memory: exists only in the process that opens it, so commands cannot see its jobs."
                " Name a file: sqlite:///jobs.db."
            )
        return settings

    def client(self, *, creates: bool = False) -> "Client":
        """The command's client, which connects on first use and closes with the command.

        `creates` allows it to create a missing SQLite file. Only commands that store something set it.
        """
        if self._client is None:
            from palermo.client.client import Client

            self._client = Client(self.settings(), creates=creates)
            click.get_current_context().call_on_close(self._close)
        return self._client

    def inspector(self, *, creates: bool = False) -> "Inspector":
        """An inspector that uses the command's client."""
        from palermo.client.actor import Actor
        from palermo.inspector.inspector import Inspector

        return Inspector(self.client(creates=creates), Actor.here("cli"))

    def _close(self) -> None:
        """Close the client, and print the broker's problem unless the command's output or error has mentioned it."""
        client, error = self.client(), sys.exception()
        trouble = None if isinstance(error, BrokerRefused) else client.trouble
        if trouble is not None and trouble.cause not in f"{error}{self.shown}":
            note(trouble.text)
        client.close()


def _password_in(path: str) -> str:
    """Return the first line of a file. Raises click.UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            password = file.readline().rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise misuse(f"the password file {path} cannot be read: {why}") from error
    if not password:
        raise misuse(f"the password file {path} is empty; its first line must be the password")
    return password


def note(text: str) -> None:
    """Print a remark on stderr."""
    click.echo(one_line(text), err=True)


def misuse(text: str) -> click.UsageError:
    """Return the error for incorrect usage of the running command."""
    return click.UsageError(text, click.get_current_context())


def exit_code(error: BaseException) -> int:
    match error:
        case UsageError():
            return USAGE
        case BrokerUnavailable() | BrokerRefused() | StoreInvalid():
            return BROKER
        case NotFound():
            return NOT_FOUND
        case click.ClickException():
            return error.exit_code
        case _:
            return FAILED


class CommandGroup(click.Group):
    """A command group that always exits with a code from the table above."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if args is None:
            _set_up_process()
        context = extra.setdefault("obj", Context())
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            # click returns the code of an Exit, or None if the command completed.
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _close_stdout()
            code = FAILED
        except (Exception, KeyboardInterrupt) as error:  # every error of a command becomes one line
            code = _report(error, debug=context.debug)
        if args is None:
            _die_of_interrupts()
            # Otherwise the interpreter scans all objects several times as it exits, which takes longer than the rest of
            # the exit.
            gc.freeze()
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception | KeyboardInterrupt, *, debug: bool) -> int:
    if isinstance(error, KeyboardInterrupt):
        click.echo("palermo: interrupted", err=True)
        return INTERRUPTED
    if debug and not isinstance(error, (click.ClickException, click.Abort)):
        import traceback

        click.echo(masked("".join(traceback.format_exception(error))), err=True, nl=False)
        return exit_code(error)
    match error:
        case click.Abort():
            click.echo("palermo: interrupted", err=True)
            return INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else FAILED
        case click.UsageError() if isinstance(error, _NO_COMMAND):
            click.echo(error.format_message(), err=True)
            return USAGE
        case click.UsageError():
            text = error.format_message()
            path = error.ctx.command_path if error.ctx else "palermo"
            # Some of click's messages end with a question: "(Did you mean one of: '--debug', '--queue'?)."
            end = "" if text.rstrip(".").endswith("?") else "."
            line = f"{text.rstrip('.')}{end} See `{path} --help`."
        case click.ClickException():
            line = error.format_message()
        case PalermoError():
            line = f"{type(error).__name__}: {error}"
        case _:
            line = f"{type(error).__name__}: {error} (unexpected; --debug shows the traceback)"
    for note in getattr(error, "__notes__", ()):
        click.echo(safe(masked(note), lines=True), err=True)
    click.echo("palermo: " + one_line(masked(line)), err=True)
    return exit_code(error)


@contextmanager
def imports() -> Iterator[None]:
    """Disable the garbage collector during large imports, because the new objects are permanent."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _set_up_process() -> None:
    """Hide passwords in the process title, and escape text that the terminal can't display.

    A closed standard stream is opened on /dev/null. Otherwise uvloop could get its file descriptor for one of its own
    files, and uvloop aborts the process when it closes such a descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Mask each word separately, with its spaces replaced, because a password may contain spaces.
    shown = [masked(word.replace(" ", "_")) if "://" in word else word for word in sys.argv]
    if shown != sys.argv:
        from setproctitle import setproctitle

        setproctitle(" ".join(shown))


@contextmanager
def on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    """Call `handler` on Ctrl-C instead of raising KeyboardInterrupt."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _die_of_interrupts() -> None:
    """Let Ctrl-C kill the process from now on, because KeyboardInterrupt would print a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _close_stdout() -> None:
    """Prevent the interpreter's error message about a closed pipe."""
    with suppress(BrokenPipeError):
        sys.stdout.close()
