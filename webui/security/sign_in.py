"""Signing in to the pages: by the users of a file, by an OpenID provider, or by both.

A browser signs in once and then has a session. Programs send a password or a bearer token of the file with
each request.
"""

from starlette.requests import Request

from palermo.settings.settings import Settings
from palermo.webui.security.auth import FileAuthentication, client_of
from palermo.webui.security.openid import OpenIdProvider
from palermo.webui.security.sessions import Sessions
from palermo.webui.site import User


class SignIn:
    """Finds the user of a request; an `Authenticate`."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        """Raises SettingInvalid."""
        self._users = FileAuthentication(settings.web_users) if settings.web_users else None
        self.provider = OpenIdProvider(settings, secret) if settings.web_oidc_issuer else None
        self.sessions = Sessions(secret, settings.web_session)

    @property
    def has_passwords(self) -> bool:
        """Whether users of a file can sign in."""
        return self._users is not None

    async def __call__(self, request: Request) -> User | None:
        """The user; None without a session or a secret, or with a wrong one. Raises Refused (429) after many such."""
        if "authorization" in request.headers:
            return await self._users(request) if self._users is not None else None
        session = self.sessions.find(request)
        if session is None:
            return None
        return self._known(session.user.name, session.stamp) if session.stamp else session.user

    async def by_password(self, request: Request, name: str, password: str) -> tuple[User, str] | None:
        """The user with this password, and the stamp for their session. Raises Refused (429)."""
        if self._users is None:
            return None
        user = await self._users.by_password(name, password, client_of(request))
        known = self._users.with_password(name)
        return (user, self.sessions.stamp(known[1])) if user is not None and known is not None else None

    def _known(self, name: str, stamp: str) -> User | None:
        """The user of the file, whose role may have changed; None if the password has, or they are not there."""
        found = self._users.with_password(name) if self._users is not None else None
        return found[0] if found is not None and self.sessions.stamp(found[1]) == stamp else None
