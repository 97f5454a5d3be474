"""A connection's parameters for pika, from the broker URL, and the connection's name."""

import logging
import socket
from collections import Counter
from collections.abc import Iterable
from os import getpid
from urllib.parse import quote, urlencode

import pika

from palermo.brokers.rabbitmq.amqp import tls
from palermo.contract.broker import SessionParameters
from palermo.core.address import Address
from palermo.errors import UrlInvalid

log = logging.getLogger("palermo.rabbitmq")

#: pika's socket options, which have no effect because Palermo opens the socket itself.
_OF_SOCKET = frozenset({"connection_attempts", "retry_delay", "socket_timeout", "stack_timeout", "tcp_options"})

#: Options for which this process has already logged a warning.
_warned: set[str] = set()


def connection_parameters(
    session: SessionParameters, host: str, port: int, purpose: str, heartbeat: int | None
) -> pika.ConnectionParameters:
    """The parameters for pika. It parses the query itself, so that the names in pika's documentation are valid.

    Only the names in tls.py are handled here. Raises UrlInvalid.
    """
    address = session.address
    files, options = _divided(address)
    netloc = f"[{host}]" if ":" in host else quote(host, safe="")
    credentials = f"{quote(address.username, safe='')}:{quote(address.password, safe='')}"
    query = urlencode(options)
    url = f"{address.scheme}://{credentials}@{netloc}:{port}/{quote(address.vhost, safe='')}" + (
        f"?{query}" if query else ""
    )
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, SyntaxError, OSError) as error:
        raise UrlInvalid(
            f"the broker URL has an invalid option: {_without(str(error), address.password)}."
            f" Its options are {', '.join(name for name, _ in address.options)}."
        ) from None
    if session.warns:
        _warn_of_options(options)
    if files:
        parameters.ssl_options = pika.SSLOptions(tls.client_context(files))
    if heartbeat is not None and "heartbeat" not in options:
        parameters.heartbeat = heartbeat
    properties = dict(parameters.client_properties or {})
    properties.setdefault("connection_name", f"palermo {purpose} pid:{getpid()}@{socket.gethostname()}")
    parameters.client_properties = properties
    return parameters


def _divided(address: Address) -> tuple[dict[str, str], dict[str, str]]:
    """Split the query's options: those for tls.py, and those for pika."""
    for name, count in Counter(name for name, _ in address.options).items():
        if count > 1:
            raise UrlInvalid(f"the broker URL has the option {name} {count} times.")
    options = dict(address.options)
    files = {name: options.pop(name) for name in tls.FILES if name in options}
    if files and address.scheme != "amqps":
        raise UrlInvalid(
            f"the broker URL has {', '.join(files)}, but does not use TLS. Write amqps:// instead of amqp://."
        )
    if files and "ssl_options" in options:
        raise UrlInvalid(f"the broker URL has both ssl_options and {', '.join(files)}. Use only one of the two.")
    return files, options


def _warn_of_options(names: Iterable[str]) -> None:
    """Warn once per process about URL options without effect."""
    if new := _OF_SOCKET.intersection(names) - _warned:
        _warned.update(new)
        log.warning(
            "ignoring unsupported options in the broker URL options=%s",
            ",".join(sorted(new)),
        )


def _without(text: str, password: str) -> str:
    return text.replace(password, "***") if password else text
