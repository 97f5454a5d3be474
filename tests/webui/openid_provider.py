"""An OpenID provider on a port of its own, which signs in whom it is told to, and can be told to cheat."""

import base64
import hashlib
import secrets
import threading
import time
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.helpers import eventually

CLIENT_ID, CLIENT_SECRET = "palermo-pages", "a secret of the provider's"


class OpenIdProvider:
    """The provider. `claims` are those of the user who is signed in there."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        #: Claims of the token that replace the right ones, to cheat.
        self.forged: dict[str, Any] = {}
        #: The error that the provider sends the browser back with, instead of a code.
        self.error = ""
        self.key = self.signing_key = RSAKey.generate_key(2048, parameters={"kid": "1"})
        self._codes: dict[str, dict[str, str]] = {}
        routes = [
            Route("/.well-known/openid-configuration", self._metadata),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/keys", self._keys),
        ]
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_config=None))
        self._thread = threading.Thread(target=self._server.run, name="OpenID provider")

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self._server.started)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def options(self) -> dict[str, Any]:
        """Those of create_app for pages that this provider signs in to."""
        known = {"oidc_issuer": self.url, "oidc_client_id": CLIENT_ID, "oidc_client_secret": CLIENT_SECRET}
        return {**known, "oidc_roles": ("staff=viewer", "ops=operator", "root=admin")}

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["client_id"] == CLIENT_ID
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        if self.error:
            answer = {"error": self.error, "state": asked["state"]}
        else:
            code = secrets.token_urlsafe()
            self._codes[code] = asked
            answer = {"code": code, "state": asked["state"]}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}", 303)

    async def _token(self, request: Request) -> Response:
        sent = dict(parse_qsl((await request.body()).decode()))
        asked = self._codes.pop(sent.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(sent.get("code_verifier", "").encode()).digest())
        if (
            asked is None
            or request.headers.get("authorization") != f"Basic {basic}"
            or challenge.decode().rstrip("=") != asked["code_challenge"]
            or sent["redirect_uri"] != asked["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        token = jwt.encode({"alg": "RS256", "kid": "1"}, claims | self.claims | self.forged, self.signing_key)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "expires_in": 300, "id_token": token})

    async def _keys(self, request: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})
