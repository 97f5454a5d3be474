"""The web pages and their API: an ASGI application, served by `palermo web` or mounted in another application."""

from palermo.contract.extras import extra

with extra("web", "the web pages"):
    import palermo.webui.security.request  # noqa: F401 - every route may use its convertor
    from palermo.webui.app import create_app
    from palermo.webui.site import ANYONE, Authenticate, Role, User

__all__ = ["ANYONE", "Authenticate", "Role", "User", "create_app"]
