"""The web pages and their API: an ASGI application, mounted in another or served by `palermo web`."""

import palermo.webui.paths  # noqa: F401 - every route may use its convertor
from palermo.webui.app import create_app
from palermo.webui.people import ANYONE, Authenticate, Role, User

__all__ = ["ANYONE", "Authenticate", "Role", "User", "create_app"]
