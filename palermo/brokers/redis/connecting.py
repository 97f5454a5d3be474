"""Choose the server to connect to: the first host that accepts us, the Sentinels' primary, or a cluster node."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import redis.asyncio.connection as library
import redis.connection as blocking
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, ReadOnlyError, RedisError

from palermo.brokers.redis.connection import translated
from palermo.core.address import Address
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, UrlInvalid

#: The query parameters of an address, with their parsers. The names are redis-py's.
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "db": int,
    "socket_connect_timeout": float,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": str,
    "ssl_check_hostname": lambda text: text.lower() in ("1", "true", "yes"),
}

#: The parameters that name files.
_FILES = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})

#: Our own parameters: the number of replicas that must have a job, and the Sentinel credentials.
_OWN: dict[str, Callable[[str], Any]] = {"wait_replicas": int, "sentinel_username": str, "sentinel_password": str}


async def connect(address: Address, timeout: float, name: str, key: str) -> tuple[library.AbstractConnection, Address]:
    """Connect to the server that has this key and accepts us; return redis-py's connection and that server's address.

    Raises UrlInvalid, BrokerUnavailable, BrokerRefused.
    """
    options = {**_read_query(address), "client_name": name}
    failed: BrokerError = BrokerUnavailable(f"Redis at {address} has no host.")
    # So that a silent host leaves time for the others.
    timeout /= max(1, len(address.hosts))
    for host in address.hosts or (("", 0),):
        one = replace(address, hosts=(host,)) if address.hosts else address
        try:
            async with asyncio.timeout(timeout):
                if one.service:
                    one = await _named_by_sentinel(one, timeout)
                return await _opened(one, {"socket_connect_timeout": timeout, **options}, key)
        except TimeoutError:
            failed = BrokerUnavailable(f"Redis at {one} did not answer within {timeout:g} s.")
        except (RedisError, OSError) as error:
            failed = translated(str(one), error)
        except BrokerError as error:
            failed = error
    raise failed


def connect_blocking(address: Address, timeout: float, name: str) -> blocking.AbstractConnection:
    """A blocking connection to the server at an address that `connect` has returned.

    Waits up to `timeout` seconds for an answer. Raises RedisError, OSError.
    """
    options = {"socket_connect_timeout": timeout, **_read_query(address), "client_name": name}
    made: blocking.AbstractConnection = _connection(address, {**options, "socket_timeout": timeout}, of=blocking)
    made.connect()  # type: ignore[no-untyped-call]
    return made


def wanted_replicas(address: Address) -> int:
    """The number of replicas that must have a job before its enqueue returns. Raises UrlInvalid."""
    found: int = _read_query(address, of=_OWN).get("wait_replicas", 0)
    return found


def database(address: Address) -> int:
    """The database number in the address. Raises UrlInvalid."""
    found: int = _read_query(address).get("db", 0)
    return found


async def _opened(
    address: Address, options: dict[str, Any], key: str, *, moved: bool = False
) -> tuple[library.AbstractConnection, Address]:
    """Connect to this server, or to the cluster node that has the key."""
    raw: library.AbstractConnection = _connection(address, options)
    try:
        await raw.connect()  # type: ignore[no-untyped-call]
        await raw.send_command("HELLO", 2)
        hello = await raw.read_response(disable_decoding=True)
        _check(dict(zip(hello[::2], hello[1::2], strict=True)), address)
        await raw.send_command("EXISTS", key)
        await raw.read_response()
        return raw, address
    except BaseException as error:
        with contextlib.suppress(RedisError, OSError):
            await raw.disconnect(nowait=True)
        if moved or not isinstance(error, MovedError):
            raise
        node = (error.host or address.hosts[0][0], error.port)
    return await _opened(replace(address, hosts=(node,)), options, key, moved=True)


def _connection(address: Address, options: dict[str, Any], of: ModuleType = library) -> Any:
    """An unopened connection, of redis-py's asyncio or blocking module."""
    common: dict[str, Any] = {
        "username": address.username or None,
        "password": address.password or None,
        "protocol": 2,
        "socket_timeout": None,
        **options,
    }
    if address.path:
        return of.UnixDomainSocketConnection(path=address.path, **common)
    ((host, port),) = address.hosts
    if _has_tls(address):
        return of.SSLConnection(host=host, port=port, **common)
    return of.Connection(host=host, port=port, **common)


def _check(hello: dict[bytes, Any], address: Address) -> None:
    """Check that the server is of a supported kind. Raises BrokerRefused, BrokerUnavailable."""
    if hello[b"mode"] == b"sentinel":
        raise BrokerRefused(
            f"{address} is a Redis Sentinel, which stores no jobs. Write redis+sentinel://host:26379/NAME, with the"
            " NAME that sentinel.conf gives the primary server."
        )
    if hello[b"mode"] != b"cluster" and hello[b"role"] != b"master":
        raise ReadOnlyError("READONLY")


async def _named_by_sentinel(address: Address, timeout: float) -> Address:
    """The address of the primary, from the Sentinel at this address."""
    ((host, port),) = address.hosts
    own = _read_query(address, of=_OWN)
    options: dict[str, Any] = {"username": own.get("sentinel_username"), "password": own.get("sentinel_password")}
    if _has_tls(address):
        options |= {"ssl": True} | {name: one for name, one in _read_query(address).items() if name.startswith("ssl_")}
    sentinel = Redis(
        host=host, port=port, protocol=2, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0), **options
    )
    try:
        known = cast(dict[str, Any], await sentinel.sentinel_masters())
    finally:
        await sentinel.aclose()
    state = known.get(address.service)
    if state is None:
        names = ", ".join(sorted(known)) or "none"
        raise BrokerRefused(f"the Sentinel of {address} monitors no server {address.service!r}, only {names}.")
    if state["is_sdown"] or state["is_odown"]:
        raise BrokerUnavailable(f"{address.service!r} is down, according to the Sentinel of {address}.")
    scheme = address.scheme.partition("+")[0]
    return replace(address, scheme=scheme, hosts=((state["ip"], state["port"]),), service="")


def _has_tls(address: Address) -> bool:
    return address.scheme.startswith("rediss")


def _read_query(address: Address, *, of: dict[str, Callable[[str], Any]] = _OPTIONS) -> dict[str, Any]:
    """Parse the query parameters named in `of`. Raises UrlInvalid, also for an unknown parameter."""
    found: dict[str, Any] = {}
    if address.vhost.strip("/") and of is _OPTIONS:
        found["db"] = _read("db", address.vhost.strip("/"))
    for name, text in address.options:
        known = name in _OPTIONS or name in _OWN
        if not known or (name.startswith("ssl_") and not _has_tls(address)):
            names = ", ".join((*_OPTIONS, *_OWN))
            raise UrlInvalid(f"the Redis URL has an unknown option {name!r}. Known: {names}.")
        if name in _FILES and not os.path.isfile(text):
            raise UrlInvalid(f"option {name}={text!r} in the Redis URL is not an existing file.")
        if name in of:
            found[name] = _read(name, text)
    return found


def _read(name: str, text: str) -> Any:
    try:
        return (_OPTIONS | _OWN)[name](text)
    except ValueError:
        what = "database" if name == "db" else f"option {name}"
        raise UrlInvalid(f"{what} {text!r} in the Redis URL is not a number; write redis://host:6379/0.") from None
