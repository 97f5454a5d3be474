"""Sign-in with an OpenID provider, using the authorization code flow with PKCE and authlib.

The state of a sign-in is in a signed cookie that expires after a few minutes.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from palermo.errors import SettingInvalid
from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.security import cookies
from palermo.webui.site import Refused, Role, User, Visit

_COOKIE = "palermo_openid"

#: The claims that may contain the user's name, in order of preference.
_NAMES = ("preferred_username", "email", "sub")


class OpenIdProvider:
    """The provider in the settings web_oidc_*."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        """Raises SettingInvalid if settings are missing or wrong, or authlib isn't installed."""
        try:
            from authlib.integrations.starlette_client import OAuth
        except ModuleNotFoundError as error:
            raise SettingInvalid(
                f"web_oidc_issuer is set, but {error.name} is not installed. Run: pip install 'palermo[oidc]'"
            ) from None
        if not settings.web_oidc_client_id or not settings.web_oidc_roles:
            missing = "web_oidc_roles" if settings.web_oidc_client_id else "web_oidc_client_id"
            raise SettingInvalid(f"web_oidc_issuer is set, but {missing} is not. See docs/guides/web.md.")
        self._secret = secret
        self._claim = settings.web_oidc_claim
        self._roles = _read_roles(settings.web_oidc_roles)
        self._issuer = settings.web_oidc_issuer.rstrip("/")
        self._audience = settings.web_oidc_client_id
        self._app = OAuth().register(
            "palermo",
            client_id=settings.web_oidc_client_id,
            client_secret=settings.web_oidc_client_secret or None,
            server_metadata_url=f"{self._issuer}/.well-known/openid-configuration",
            client_kwargs={
                "scope": " ".join(settings.web_oidc_scopes),
                "code_challenge_method": "S256",
                "timeout": tuning.LONG_WAIT,
                "token_endpoint_auth_method": "client_secret_basic" if settings.web_oidc_client_secret else "none",
            },
        )

    @property
    def issuer(self) -> str:
        return self._issuer

    async def redirect_to_provider(self, request: Request, visit: Visit, back: str, then: str) -> Response:
        """Redirect to the provider, which redirects the browser to `back`.

        `then` is the path that the user requested. Raises Refused (502) if the provider doesn't answer.
        """
        state = request.scope["session"] = {"then": then}
        response: Response = await self._asked(self._app.authorize_redirect(request, back))
        value = cookies.sealed(self._secret, state, "openid")
        cookies.set_cookie(response, visit, _name(request), value, max_age=int(tuning.WINDOW))
        return response

    async def user(self, request: Request) -> tuple[User, str]:
        """Return the user who comes back from the provider, and the path that they requested.

        Raises Refused: 403 if the provider or a check rejects them, or they have no role; 502 if it doesn't answer.
        """
        state = cookies.unsealed(self._secret, request.cookies.get(_name(request), ""), "openid") or {}
        request.scope["session"] = state
        provider = await self._asked(self._app.load_server_metadata())
        options = {
            "iss": {"essential": True, "value": str(provider.get("issuer", self._issuer))},
            "aud": {"essential": True, "value": self._audience},
        }
        token = await self._asked(self._app.authorize_access_token(request, claims_options=options))
        return self._user_of(token.get("userinfo") or {}), str(state.get("then", ""))

    def _user_of(self, claims: Mapping[str, Any]) -> User:
        name = next((str(claims[name]).strip() for name in _NAMES if claims.get(name)), "")[: tuning.TEXT]
        if not name:
            raise Refused(403, f"the provider sent no user name (none of {', '.join(_NAMES)}).")
        given = claims.get(self._claim, [])
        values = {str(value) for value in (given if isinstance(given, list) else [given])}
        roles = [role for value, role in self._roles if value == "*" or value in values]
        if not roles:
            raise Refused(
                403,
                f"{name} has no role here, because web_oidc_roles has none of the values that the provider sent in"
                f" {self._claim!r}.",
            )
        return User(name, max(roles))

    async def _asked(self, answer: Any) -> Any:
        """Await a coroutine of authlib, and convert its errors to readable ones. Raises Refused."""
        import httpx2
        from authlib.common.errors import AuthlibBaseError
        from joserfc.errors import JoseError

        try:
            return await answer
        except (AuthlibBaseError, JoseError) as error:
            raise Refused(403, f"signing in at {self._issuer} failed: {error}. Go to /sign-in to try again.") from None
        except (httpx2.HTTPError, ValueError, RuntimeError, KeyError) as error:
            reason = str(error) or type(error).__name__
            raise Refused(502, f"the OpenID provider at {self._issuer} sent an invalid reply: {reason}.") from None


def _read_roles(pairs: tuple[str, ...]) -> list[tuple[str, Role]]:
    """Return each value of the claim with its role. Raises SettingInvalid."""
    found = []
    for pair in pairs:
        value, equals, role = pair.rpartition("=")
        try:
            if not equals or not value.strip():
                raise ValueError(f"{pair!r} is not VALUE=ROLE")
            found.append((value.strip(), Role.named(role)))
        except ValueError as error:
            raise SettingInvalid(f"web_oidc_roles: {error}. Write, for example, ops=admin, *=viewer.") from None
    return found


def _name(request: Request) -> str:
    return cookies.cookie_of_port(_COOKIE, request.scope)
