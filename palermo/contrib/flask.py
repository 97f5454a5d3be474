"""Palermo in Flask: jobs run in the application's context, and `flask palermo` provides all commands.

    jobs = Palermo(app)                                  # or Palermo() and init_app(app), with app.config["PALERMO"]
    jobs.mount_pages(app, "/ops/jobs", auth=who)

docs/guides/flask.md contains a complete program.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

import click

from palermo import hook
from palermo.cli import main
from palermo.client.client import Client, chosen_settings, use
from palermo.contract.extras import extra
from palermo.contrib.worker_command import become_worker, worker_arguments
from palermo.jobs.definition import JobDefinition
from palermo.settings.settings import Settings, declare_settings

with extra("flask", "palermo.contrib.flask"):
    from fastapi import FastAPI
    from flask import Flask, Response, request
    from flask.cli import ScriptInfo
    from flask.typing import ResponseReturnValue

    from palermo.contrib.asgi_bridge import Bridge, http_scope, raw_path_of
    from palermo.webui import User, create_app

SOURCE = 'app.config["PALERMO"]'

#: The module that creates the application in a worker.
AUTOLOAD = "palermo.contrib.flask_autoload"

#: The key in the ASGI scope for the user.
_USER = "palermo.contrib.user"

#: The settings of the client created by the newest application, under this module's name.
_made: dict[str, Settings] = {}

#: Returns the request's user, None for 401, or a Flask view's return value such as a redirect.
Authenticate = Callable[[], User | ResponseReturnValue | None]


class Palermo:
    """The Flask extension. One object may serve several applications."""

    def __init__(self, app: Flask | None = None) -> None:
        """With an application, `init_app` is called."""
        self._bridges: list[Bridge] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read app.config["PALERMO"], run jobs in the application's context, and add `flask palermo`.

        Jobs run in the context of the application that was initialized last. Raises SettingInvalid.
        """
        declare_settings(SOURCE, app.config.get("PALERMO", {}))
        chosen = chosen_settings()
        # Workers, and programs that called palermo.connect, have already chosen a broker.
        if chosen is None or chosen is _made.get(__name__):
            _made[__name__] = use(Client(Settings.load())).settings

        def around_process_flask(definition: JobDefinition, /, *args: Any, **kwargs: Any) -> Iterator[None]:
            with app.app_context():
                yield

        hook(around_process_flask)
        app.extensions["palermo"] = self
        app.cli.add_command(_command)

    def mount_pages(self, app: Flask, path: str, *, auth: Authenticate, **options: Any) -> Callable[..., Any]:
        """Serve the web pages under this path, and return their view.

        `auth` is called in the context of each request, and returns a `User`, None for 401, or a view's return value
        such as a redirect to a login page. `options` are those of `palermo.webui.create_app`; set your hosts,
        `hosts=["shop.example.com"]`. Exempt this view from extensions that check form tokens, because the pages check
        their own.
        """
        root = "/" + path.strip("/")

        def make_pages(client: Client) -> FastAPI:
            secret = client.settings.web_secret or _derived(app.secret_key)
            given = {"secret": secret or None, **options}
            return create_app(client, auth=lambda request: request.scope[_USER], **given)

        bridge = Bridge(make_pages)
        self._bridges.append(bridge)

        def palermo_pages(path: str) -> ResponseReturnValue:
            user = auth()
            if user is None:
                return Response("Sign in first.", 401, content_type="text/plain; charset=utf-8")
            if not isinstance(user, User):
                return user
            scope = http_scope(
                method=request.method,
                root=request.script_root + root,
                path=request.script_root + request.path,
                raw_path=raw_path_of(request.environ),
                query=request.query_string,
                headers=request.headers.items(),
                scheme=request.scheme,
                client=request.remote_addr or "",
            )
            scope[_USER] = user
            answer = bridge.call(scope, request.get_data())
            return Response(answer.body, answer.status, answer.headers)

        methods = ["GET", "HEAD", "POST", "DELETE"]
        app.add_url_rule(f"{root}/", view_func=palermo_pages, defaults={"path": ""}, methods=methods)
        app.add_url_rule(f"{root}/<path:path>", view_func=palermo_pages, methods=methods)
        return palermo_pages

    def close_pages(self) -> None:
        """Stop the pages' threads at the end of a test. The next request restarts them."""
        for bridge in self._bridges:
            bridge.close()


def _derived(key: str | bytes | None) -> str:
    """Derive a secret for the pages, the same in all processes if the application has a secret key."""
    if not key:
        return ""
    return hmac.new(
        key if isinstance(key, bytes) else key.encode(), b"palermo.contrib.flask", hashlib.sha256
    ).hexdigest()


@click.command(
    "palermo",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a command of `palermo` with this application's settings: worker, queues, failed, …",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _command(context: click.Context, arguments: tuple[str, ...]) -> None:
    # Flask has created the application to find this command, so its settings are declared.
    given = worker_arguments(arguments)
    if given is not None:
        settings = Settings.load()
        info = context.find_object(ScriptInfo)
        variables = {"FLASK_APP": info.app_import_path} if info is not None and info.app_import_path else {}
        become_worker(settings, (AUTOLOAD, *settings.imports), given, variables=variables)
    main.main(list(arguments), prog_name=context.command_path)
