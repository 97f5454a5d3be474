"""Broker URLs, read and printed; a password is never printed."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palermo.core.address import masked, parse_url
from palermo.errors import UrlInvalid


@pytest.mark.parametrize(
    ("url", "hosts", "user", "password", "vhost"),
    [
        ("amqp://guest:guest@localhost:5672/", (("localhost", 5672),), "guest", "guest", "/"),
        ("amqp://localhost", (("localhost", 5672),), "guest", "guest", "/"),
        ("amqp://", (("localhost", 5672),), "guest", "guest", "/"),
        ("amqps://h", (("h", 5671),), "guest", "guest", "/"),
        (" amqp://h\n", (("h", 5672),), "guest", "guest", "/"),
        ("amqp://u:p%40ss@h1:5673,h2/shop", (("h1", 5673), ("h2", 5672)), "u", "p@ss", "shop"),
        ("amqp://u:p@h/%2F", (("h", 5672),), "u", "p", "/"),
        ("amqp://u@h/a%2Fb", (("h", 5672),), "u", "", "a/b"),
        ("amqp://u:p@[::1]:5,h/v", (("::1", 5), ("h", 5672)), "u", "p", "v"),
    ],
)
def test_amqp_urls_are_read(url: str, hosts: tuple[tuple[str, int], ...], user: str, password: str, vhost: str) -> None:
    address = parse_url(url)

    assert (address.hosts, address.username, address.password, address.vhost) == (hosts, user, password, vhost)


def test_after_a_host_comes_the_next_one_and_that_host_is_the_last() -> None:
    address = parse_url("amqp://u:p@h:1,h:2,h:3/v?heartbeat=5")

    assert address.options == (("heartbeat", "5"),), "kept for the client library"
    for failed, hosts in ((1, "h:2,h:3,h:1"), (2, "h:3,h:1,h:2"), (3, "h:1,h:2,h:3")):
        assert address.after(("h", failed)) == parse_url(f"amqp://u:p@{hosts}/v?heartbeat=5")


@pytest.mark.parametrize(
    ("url", "hosts", "user", "password", "path", "shown"),
    [
        ("sqlite:///jobs.db", (), "", "", "jobs.db", "sqlite:///jobs.db"),
        ("sqlite:////var/jobs.db", (), "", "", "/var/jobs.db", "sqlite:////var/jobs.db"),
        ("sqlite:///:memory:", (), "", "", ":memory:", "sqlite:///:memory:"),
        ("redis://h", (("h", 6379),), "", "", "", "redis://h:6379/"),
        ("rediss://:p%40ss@h:1/2", (("h", 1),), "", "p@ss", "", "rediss://:***@h:1/2"),
        ("redis://u:secret@h/2", (("h", 6379),), "u", "secret", "", "redis://u:***@h:6379/2"),
        ("redis+unix:///run/a%20b.sock?db=1", (), "", "", "/run/a b.sock", "redis+unix:///run/a b.sock"),
        ("redis+unix://u:p%40s@/r.sock", (), "u", "p@s", "/r.sock", "redis+unix://u:***@/r.sock"),
    ],
)
def test_a_url_names_a_file_a_redis_server_or_its_socket(
    url: str, hosts: tuple[tuple[str, int], ...], user: str, password: str, path: str, shown: str
) -> None:
    address = parse_url(url)

    assert (address.hosts, address.username, address.password, address.path) == (hosts, user, password, path)
    assert str(address) == shown


@pytest.mark.parametrize(
    ("url", "hosts", "service", "vhost", "shown"),
    [
        ("redis+sentinel://h/shop", (("h", 26379),), "shop", "/", "redis+sentinel://h:26379/shop/"),
        (
            "rediss+sentinel://u:secret@a:1,b/shop/2?sentinel_password=secret",
            (("a", 1), ("b", 26379)),
            "shop",
            "2",
            "rediss+sentinel://u:***@a:1,b:26379/shop/2",
        ),
    ],
)
def test_a_url_of_sentinels_names_them_and_the_server_that_they_watch(
    url: str, hosts: tuple[tuple[str, int], ...], service: str, vhost: str, shown: str
) -> None:
    address = parse_url(url)

    assert (address.hosts, address.service, address.vhost) == (hosts, service, vhost)
    assert str(address) == shown
    assert "secret" not in repr(address) + masked(url)
    assert "secret" not in f"{parse_url('amqps://h?x=secret')!r}{parse_url('amqps://h?x=secret')}"


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
        shown = str(error)
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
