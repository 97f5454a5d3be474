"""Broker URLs, read and printed; a password is never printed."""

import traceback

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palermo.core.address import masked, parse_url
from palermo.errors import UrlInvalid

GUEST = {"username": "guest", "password": "guest", "vhost": "/"}


@pytest.mark.parametrize(
    ("url", "hosts", "more", "shown"),
    [
        ("amqp://guest:guest@localhost:5672/", (("localhost", 5672),), GUEST, "amqp://guest:***@localhost:5672/"),
        ("amqp://localhost", (("localhost", 5672),), GUEST, "amqp://guest:***@localhost:5672/"),
        ("amqp://", (("localhost", 5672),), GUEST, "amqp://guest:***@localhost:5672/"),
        ("amqps://h?x=secret", (("h", 5671),), GUEST, "amqps://guest:***@h:5671/"),
        (" amqp://h\n", (("h", 5672),), GUEST, "amqp://guest:***@h:5672/"),
        (
            "amqp://u:p%40ss@h1:5673,h2/shop",
            (("h1", 5673), ("h2", 5672)),
            {"username": "u", "password": "p@ss", "vhost": "shop"},
            "amqp://u:***@h1:5673,h2:5672/shop",
        ),
        ("amqp://u:p@h/%2F", (("h", 5672),), {"password": "p", "vhost": "/"}, "amqp://u:***@h:5672/"),
        ("amqp://u@h/a%2Fb", (("h", 5672),), {"password": "", "vhost": "a/b"}, "amqp://u:***@h:5672/a/b"),
        ("amqp://u:p@[::1]:5,h/v", (("::1", 5), ("h", 5672)), {"vhost": "v"}, "amqp://u:***@[::1]:5,h:5672/v"),
        ("sqlite:///jobs.db", (), {"path": "jobs.db"}, "sqlite:///jobs.db"),
        ("sqlite:////var/jobs.db", (), {"path": "/var/jobs.db"}, "sqlite:////var/jobs.db"),
        ("sqlite:///:memory:", (), {"path": ":memory:"}, "sqlite:///:memory:"),
        ("redis://h", (("h", 6379),), {"username": "", "password": ""}, "redis://h:6379/"),
        ("rediss://:p%40ss@h:1/2", (("h", 1),), {"username": "", "password": "p@ss"}, "rediss://:***@h:1/2"),
        ("redis://u:secret@h/2", (("h", 6379),), {"username": "u", "password": "secret"}, "redis://u:***@h:6379/2"),
        ("redis+unix:///run/a%20b.sock?db=1", (), {"path": "/run/a b.sock"}, "redis+unix:///run/a b.sock"),
        ("redis+unix://u:p%40s@/r.sock", (), {"password": "p@s", "path": "/r.sock"}, "redis+unix://u:***@/r.sock"),
        (
            "redis+sentinel://h/shop",
            (("h", 26379),),
            {"service": "shop", "vhost": "/"},
            "redis+sentinel://h:26379/shop/",
        ),
        (
            "rediss+sentinel://u:secret@a:1,b/shop/2?sentinel_password=secret",
            (("a", 1), ("b", 26379)),
            {"service": "shop", "vhost": "2"},
            "rediss+sentinel://u:***@a:1,b:26379/shop/2",
        ),
    ],
)
def test_a_url_is_read_and_shown_without_its_password(
    url: str, hosts: tuple[tuple[str, int], ...], more: dict[str, str], shown: str
) -> None:
    address = parse_url(url)

    assert address.hosts == hosts
    assert {name: getattr(address, name) for name in more} == more
    assert str(address) == shown
    assert "secret" not in repr(address)


def test_after_a_host_comes_the_next_one_and_that_host_is_the_last() -> None:
    address = parse_url("amqp://u:p@h:1,h:2,h:3/v?heartbeat=5")

    assert address.options == (("heartbeat", "5"),), "kept for the client library"
    for failed, hosts in ((1, "h:2,h:3,h:1"), (2, "h:3,h:1,h:2"), (3, "h:1,h:2,h:3")):
        assert address.after(("h", failed)) == parse_url(f"amqp://u:p@{hosts}/v?heartbeat=5")


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost", "sqlite://jobs.db", "sqlite:///", "redis+unix://redis.sock"),
        *("redis+sentinel://u:secret@h", "redis+sentinel://u:secret@h/shop/0/1"),
        *("amqp://u:secret@h:port/", "amqp://u:secret@h:70000/", "amqp://u:secret@h/a/b", "amqp://u:sec?ret@h/a"),
        *("amqp://u:12?secret@h/a", "amqp://u:secret/1@h/a", "amqp://u:secret"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UrlInvalid) as caught:
        parse_url(url)

    assert "sec" not in str(caught.value)


_ODD = st.text(alphabet="ab1?#/@:%[]\\,&=. ", max_size=6)


@given(scheme=st.sampled_from(["amqp", "amqps", "redis"]), user=_ODD, before=_ODD, after=_ODD)
@example(scheme="amqp", user="u", before="12?", after="")
@example(scheme="amqp", user="u", before="12/", after="")
def test_whatever_is_printed_of_a_url_shows_no_password(scheme: str, user: str, before: str, after: str) -> None:
    url = f"{scheme}://{user}:{before}HUNTER2{after}@host:5672/v?heartbeat=5"
    try:
        address = parse_url(url)
    except UrlInvalid as error:
        shown = "".join(traceback.format_exception(error))
    else:
        shown = f"{address} {address!r}"
    if "@" not in user:  # what stands before an @ of the user's is the password then
        assert "HUNTER2" not in shown
    if ":" not in user + before and "@" not in user:
        assert "HUNTER2" not in masked(url.replace(" ", "_"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at amqp://me:secret@host/ now", "at amqp://me:***@host/ now"),
        ("amqp://:secret@host", "amqp://:***@host"),
        ("redis+sentinel://:a@h/s?sentinel_password=secret", "redis+sentinel://:***@h/s?sentinel_password=***"),
        ("amqps://me:sec@ret@h1,h2/v", "amqps://me:***@h1,h2/v"),
        ("sqlite:///a:b.db", "sqlite:///a:b.db"),
        ("amqp://me:sec/ret@host/v", "amqp://me:***@host/v"),
        ("amqp://m/e:secret@host", "amqp://m/e:***@host"),
        ("amqp://me:secret", "amqp://me:***"),
        ("'amqp://host:5672', amqp://[::1]:5672/v", "'amqp://host:5672', amqp://[::1]:5672/v"),
    ],
)
def test_passwords_in_a_text_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
