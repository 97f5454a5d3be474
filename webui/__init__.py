"""The web pages and their API: an ASGI application that `palermo web` serves, or that another application mounts."""

from palermo.errors import UsageError

try:
    import palermo.webui.security.request  # noqa: F401 - every route may use its convertor
    from palermo.webui.app import create_app
    from palermo.webui.site import ANYONE, Authenticate, Role, User
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "palermo":
        raise
    raise UsageError(f"the web pages need {error.name}, which is not installed: pip install 'palermo[web]'.") from error

__all__ = ["ANYONE", "Authenticate", "Role", "User", "create_app"]
