"""`palermo web` and `palermo web-user`: serve the web pages, and create their users."""

import ipaddress
import os
import stat
import sys
from contextlib import suppress

import click

from palermo.cli.command_group import Context, misuse
from palermo.cli.options import broker_options_of_server
from palermo.errors import SettingInvalid
from palermo.jobs.modules import import_modules

_ROLES = ("viewer", "operator", "admin")


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 picks a free port.  [default: 3000]")
@click.option("--users", metavar="FILE", help="File of users; `palermo web-user` creates its lines.")
@click.option("--no-token", is_flag=True, help="Require no token from this machine; only without users.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Host name to accept; * is a wildcard.")
@click.option("--prefix", metavar="PATH", help="Path prefix that a proxy strips.")
@click.option("--trust-proxy", is_flag=True, default=None, help="Trust X-Forwarded-For, -Host, -Prefix and -Proto.")
@click.option("--read-only", is_flag=True, default=None, help="Refuse all changes.")
@click.option(
    "--log-format",
    type=click.Choice(("text", "json"), case_sensitive=False),
    default="text",
    show_default=True,
    help="Format of a log line.",
)
@broker_options_of_server
@click.pass_obj
def web(
    context: Context,
    /,
    modules: tuple[str, ...],
    host: str | None,
    port: int | None,
    users: str | None,
    no_token: bool,
    hosts: tuple[str, ...],
    prefix: str | None,
    trust_proxy: bool | None,
    read_only: bool | None,
    log_format: str,
) -> None:
    """Serve the web pages until TERM or INT.

    Each MODULE, such as shop.tasks, is imported from the current directory or the Python path. The arguments of jobs
    enqueued on the pages are then checked. Without users, the pages can only be opened from this machine, with the
    token in the printed link, which is valid until the command ends. To serve other machines, create a users file.
    docs/guides/web.md describes proxies, roles and the API.
    """
    settings = context.settings(
        web_host=host,
        web_port=port,
        web_users=users,
        web_token=False if no_token else None,
        web_hosts=hosts or None,
        web_prefix=prefix,
        web_trust_proxy=trust_proxy,
        web_read_only=read_only,
        imports=modules or None,
    )
    import_modules(settings.imports)
    host, port = settings.web_host, settings.web_port
    address = _address(host)
    if not settings.has_sign_in and not (address and address.is_loopback):
        raise SettingInvalid(
            f"other machines can reach the web pages on {host}, so they need authentication. Create a users file with"
            " `palermo web-user NAME >> users` and add --users users, or listen on 127.0.0.1."
        )
    from palermo.webui import create_app
    from palermo.webui.security.local_access import LocalAccess, new_token
    from palermo.webui.server import open_socket, pages_url, serve
    from palermo.worker import logs

    token = new_token() if settings.web_token and not settings.has_sign_in else ""
    named = () if address and address.is_unspecified else (host,)
    auth = None if settings.has_sign_in else LocalAccess(token)
    app = create_app(settings=settings, auth=auth, hosts=(*settings.web_hosts, *named))
    with open_socket(host, port) as at:
        logs.configure(level="info", format=log_format)
        click.echo(pages_url(host, at.getsockname()[1], settings.web_prefix, token), err=True)
        serve(app, host=host, port=port, at=at)


@click.command("web-user")
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), default="operator", show_default=True, help="The user's role.")
@click.option(
    "--token", "by_token", is_flag=True, help="Generate a bearer token for a program, instead of reading a password."
)
def web_user(name: str, role: str, by_token: bool) -> None:
    """Print the line for NAME in a users file, as in `palermo web-user alice --role admin >> users`.

    The command reads the password from the terminal or stdin. With --token, it generates a token and shows it once, on
    stderr; the line contains only its hash.
    """
    from palermo.webui.security.user_file import password_line, token_line
    from palermo.webui.site import Role

    if not name.strip() or set(name) & set(":\n\r#"):
        raise misuse(f"{name!r} cannot be a user name, because it is blank or contains a colon, a # or a line break")
    if by_token:
        token, line = token_line(name, Role.named(role))
        click.echo(f"the token of {name}, shown only now: {token}", err=True)
    else:
        line = password_line(name, Role.named(role), _password())
    _keep_private()
    click.echo(line)


def _keep_private() -> None:
    """If the shell has just created the file that stdout is redirected to, make it private to this user."""
    with suppress(OSError, ValueError):
        found = os.fstat(sys.stdout.fileno())
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            os.fchmod(sys.stdout.fileno(), 0o600)


def _password() -> str:
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < 8:
        raise misuse(f"the password has {len(password)} characters; the minimum is 8")
    return str(password)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address in this text, or None if it is a name."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host.lower() == "localhost" else host)
    except ValueError:
        return None
