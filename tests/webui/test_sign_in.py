"""Signing in and out of the pages: by a password of the file, and by an OpenID provider."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey
from msgspec.structs import replace

from palermo.errors import SettingInvalid
from palermo.settings.settings import Settings
from palermo.webui import Role, create_app
from palermo.webui.security.user_file import password_line
from tests.webui.conftest import Serve
from tests.webui.openid_provider import CLIENT_SECRET, OpenIdProvider
from tests.webui.server import CHEAP, Web

_PAGE = {"Accept": "text/html"}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    _write(path, password="pässwörd", role=Role.ADMIN)
    return path


@pytest.fixture
def web(settings: Settings, serve: Serve, users: Path) -> Web:
    return serve(settings, users=str(users))


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    with OpenIdProvider() as provider:
        yield provider


@pytest.fixture
def with_openid(settings: Settings, serve: Serve, provider: OpenIdProvider) -> Web:
    provider.claims = {"sub": "17", "preferred_username": "ada", "groups": ["staff", "ops"]}
    provider.forged, provider.error, provider.signing_key = {}, "", provider.key
    return serve(settings, **provider.options)


def test_the_form_leads_to_the_requested_page(web: Web, shared_web: Web) -> None:
    without_users = shared_web.http
    assert without_users.get("/sign-in").status_code == 404
    assert "Sign out" not in without_users.get("/queues").text
    led = web.http.get("/queues?text=a%26b", headers=_PAGE)
    assert led.status_code == 303
    form = web.http.get(led.headers["location"])
    assert 'value="/queues?text=a%26b"' in form.text
    assert "Connected to" not in form.text, "nobody is told of the broker before"

    signed_in = _sign_in(web, then="/queues?text=a%26b")

    assert signed_in.status_code == 303
    assert signed_in.headers["location"] == "/queues?text=a%26b"
    page = web.http.get("/queues", headers=_PAGE)
    assert page.status_code == 200
    assert "Sign out ada" in page.text


@pytest.mark.parametrize("path", ["/sign-in/nowhere", "/sign-in-too", "/sign-in/openid", "/static/nowhere.css"])
def test_the_error_pages_of_strangers_name_nothing(web: Web, path: str) -> None:
    web.client.enqueue("shop.payments.Charge", queue="billing", tenant="acme")
    page = web.http.get("/queues", auth=httpx.BasicAuth(b"ada", "pässwörd".encode()))
    assert "queue:billing" in page.text, "the search offers names"

    told = web.http.get(path, headers=_PAGE)

    assert told.status_code == 404
    assert not [name for name in ("billing", "Connected to", "Recurring") if name in told.text]


def test_programs_and_scripts_of_a_page_are_told_401_and_not_led_to_a_form(web: Web) -> None:
    by_script = web.http.get("/queues", headers=_PAGE | {"Sec-Fetch-Mode": "cors"})
    right = httpx.BasicAuth(b"ada", "pässwörd".encode())

    assert web.http.get("/api/queues", headers={"Accept": "application/json"}).status_code == 401
    assert web.http.get("/queues").status_code == 401
    assert by_script.status_code == 401
    assert "www-authenticate" not in by_script.headers, "the browser would ask for a password in a window of its own"
    assert web.http.get("/api/queues", auth=right).status_code == 200
    assert "Sign out" not in web.http.get("/queues", auth=right).text


def test_who_signed_out_is_out_also_with_a_copy_of_the_cookie(web: Web) -> None:
    _sign_in(web)
    cookies = dict(web.http.cookies)

    out = web.form("/queues", "/sign-out")

    assert "Sign in to Palermo" in out.text
    assert web.http.get("/queues", headers=_PAGE).status_code == 303
    with httpx.Client(base_url=web.url, cookies=cookies) as copied:
        assert copied.get("/queues", headers=_PAGE).status_code == 303


def test_a_session_ends_with_its_password_and_its_role_is_that_of_the_file(web: Web, users: Path) -> None:
    _sign_in(web)
    _write(users, password="pässwörd", role=Role.VIEWER)
    assert web.http.get("/queues", headers=_PAGE).status_code == 303, "the line holds another hash"
    _sign_in(web)
    assert "ada, viewer" in web.http.get("/queues", headers=_PAGE).text
    users.write_text(users.read_text().replace(":viewer:", ":operator:"))
    assert "ada, operator" in web.http.get("/queues", headers=_PAGE).text


def test_a_session_has_its_time(settings: Settings, serve: Serve, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(web: Web) -> int:
        return web.http.get("/queues", headers=_PAGE).status_code

    first = serve(settings, users=str(users), secret="0123456789abcdef", session=600)
    _sign_in(first)
    value = _session(first)[1]
    assert status(first) == 200
    for secret, told in (("0123456789abcdef", 200), ("fedcba9876543210", 303)):
        again = serve(settings, users=str(users), secret=secret, session=600)
        again.http.cookies.set(f"palermo_session_{httpx.URL(again.url).port}", value)
        assert status(again) == told

    later = time.time() + 601
    monkeypatch.setattr("palermo.webui.security.sign_in.time.time", lambda: later)

    assert status(first) == 303


def test_a_cookie_that_was_changed_is_no_session(web: Web) -> None:
    _sign_in(web)
    name, value = _session(web)
    web.http.cookies.clear()
    for wrong in (value[:-1] + ("1" if value.endswith("0") else "0"), "x" + value, value.partition(".")[0], "é", ""):
        answer = web.http.get("/queues", headers=_PAGE | {"Cookie": f"{name}={wrong}".encode()})
        assert answer.status_code == 303, wrong


def test_neither_a_wrong_password_nor_another_sites_form_begins_a_session(web: Web) -> None:
    answer = _sign_in(web, password="wrong")
    assert (answer.status_code, "wrong name or password" in answer.text) == (401, True)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        fields = {"name": "ada", "password": "pässwörd"}
        assert web.http.post("/sign-in", data=fields, headers=headers).status_code == 403
    assert web.http.get("/queues", headers=_PAGE).status_code == 303

    for then in ("//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        assert _sign_in(web, then=then).headers["location"] == "/", then


def test_a_user_of_the_provider_gets_their_highest_role(with_openid: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "palermo.audit")
    assert 'then=%2Fqueues">Sign in with 127.0.0.1' in with_openid.http.get("/sign-in?then=/queues").text

    seen = _by_provider(with_openid, then="/queues")

    assert seen.url.path == "/queues"
    assert "ada, operator" in seen.text
    assert any("signed in by=ada role=operator" in message for message in caplog.messages)
    with_openid.form("/queues", "/sign-out")
    told = with_openid.http.get("/queues", headers=_PAGE | {"Sec-Fetch-Mode": "cors"})
    assert told.status_code == 401, "an open page of one who signed out"


def test_programs_are_told_that_openid_alone_gives_them_no_access(with_openid: Web) -> None:
    refused = with_openid.http.get("/api/queues", headers={"Authorization": "Bearer anything"})
    assert (refused.status_code, "www-authenticate" in refused.headers) == (401, False)
    assert "create a users file" in refused.json()["error"]

    _by_provider(with_openid, then="/queues")

    page = with_openid.http.get("/api/docs").text
    assert ("Programs have no access to this API" in page, "token in the link" in page) == (True, False)
    assert with_openid.http.get("/api/openapi.json").json()["components"]["securitySchemes"] == {}


@pytest.mark.parametrize(
    ("cheat", "said"),
    [
        ({"forged": {"aud": "another-app"}}, ""),
        ({"forged": {"iss": "https://evil.example"}}, ""),
        ({"forged": {"nonce": "old"}}, ""),
        ({"forged": {"exp": 1, "iat": 0}}, ""),
        ({"forged": {"sub": None}}, ""),
        ({"signing_key": RSAKey.generate_key(2048, parameters={"kid": "1"})}, ""),
        ({"error": "access_denied"}, "access_denied"),
        ({"claims": {"sub": "17", "preferred_username": "ada", "groups": ["guests"]}}, "groups"),
    ],
    ids=["for another", "by another", "an old one", "over", "of nobody", "another key", "a refusal", "no role"],
)
def test_bad_tokens_are_refused(with_openid: Web, provider: OpenIdProvider, cheat: dict[str, Any], said: str) -> None:
    for name, value in cheat.items():
        setattr(provider, name, value)

    answer = _by_provider(with_openid)

    assert (answer.status_code, said in answer.text) == (403, True)
    assert with_openid.http.get("/queues", headers=_PAGE).status_code == 303


def test_an_answer_that_this_browser_did_not_ask_for_signs_nobody_in(with_openid: Web) -> None:
    sent = with_openid.http.get("/sign-in/openid")
    back = httpx.get(sent.headers["location"]).headers["location"]
    with_openid.http.cookies.clear()

    assert with_openid.http.get(back).status_code == 403


def test_an_absent_provider_is_named_its_secret_not(settings: Settings, serve: Serve, provider: OpenIdProvider) -> None:
    web = serve(settings, **provider.options | {"oidc_issuer": "http://127.0.0.1:9/realm"})

    answer = web.http.get("/sign-in/openid")

    assert (answer.status_code, "http://127.0.0.1:9/realm" in answer.text) == (502, True)
    assert CLIENT_SECRET not in answer.text + repr(replace(settings, web_oidc_client_secret=CLIENT_SECRET))


def test_a_wrong_setting_of_the_provider_is_told_at_the_start(settings: Settings, provider: OpenIdProvider) -> None:
    for name, wrong, said in (
        *(("client_id", "", "web_oidc_client_id"), ("issuer", "login.example.com", "an address, such as https://")),
        *(
            ("roles", (), "web_oidc_roles"),
            ("roles", ("ops",), "VALUE=ROLE"),
            ("roles", ("ops=boss",), "'boss' is not a role"),
        ),
    ):
        with pytest.raises(SettingInvalid, match=said):
            create_app(settings=settings, **provider.options | {f"oidc_{name}": wrong})


def _write(path: Path, *, password: str, role: Role) -> None:
    path.write_text(password_line("ada", role, password, hasher=CHEAP) + "\n")


def _session(web: Web) -> tuple[str, str]:
    """The name of the cookie of the session, and its value."""
    [found] = [(name, value) for name, value in web.http.cookies.items() if name.startswith("palermo_session")]
    return found


def _sign_in(web: Web, *, password: str = "pässwörd", then: str = "") -> httpx.Response:
    fields = {"name": "ada", "password": password, "then": then}
    return web.http.post("/sign-in", data=fields, headers=_PAGE)


def _by_provider(web: Web, then: str = "") -> httpx.Response:
    return web.http.get("/sign-in/openid", params={"then": then}, headers=_PAGE, follow_redirects=True)
