"""Opens one AMQP connection on the running loop: name lookup, socket, TLS and the AMQP handshake."""

import asyncio
import re
import ssl
from collections.abc import Callable

import pika

from palermo.brokers.rabbitmq.amqp import tls
from palermo.brokers.rabbitmq.amqp.transport import AsyncioConnection
from palermo.errors import BrokerRefused


async def connect(
    parameters: pika.ConnectionParameters, *, timeout: float, on_close: Callable[[Exception], None]
) -> AsyncioConnection:
    """An open connection to the one host that `parameters` names.

    `on_close` is called once, with the reason, when the open connection ends.
    Raises TimeoutError, OSError or a pika exception, and BrokerRefused with a version of pika that Palermo was not
    tested with, or if the host takes TLS alone and `parameters` have none.
    """
    if not is_tested(pika.__version__):
        raise BrokerRefused(
            f"pika {pika.__version__} is installed, and Palermo works with 1.3.2 to 1.4:"
            " `pip install 'pika>=1.3.2,<1.5'` installs one of them."
        )
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[AsyncioConnection] = loop.create_future()

    def on_error(_: object, error: Exception) -> None:
        if opened.done():
            return
        # With TLS 1.3 the server looks at our certificate when the connection counts as made already.
        if made.tls_error is not None:
            opened.set_exception(made.tls_error)
        elif made.wants_tls:
            opened.set_exception(tls.only_tls(f"{parameters.host}:{parameters.port}"))
        else:
            opened.set_exception(error if isinstance(error, Exception) else OSError(str(error)))

    def on_open(connected: AsyncioConnection) -> None:
        if not opened.done():
            opened.set_result(connected)

    made = AsyncioConnection(
        parameters, loop, on_open=on_open, on_error=on_error, on_close=lambda _, error: on_close(error)
    )
    context: ssl.SSLContext | None = None
    server_hostname: str | None = None
    if parameters.ssl_options is not None:
        context = parameters.ssl_options.context
        server_hostname = parameters.ssl_options.server_hostname or parameters.host
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(
                lambda: made, parameters.host, parameters.port, ssl=context, server_hostname=server_hostname
            )
            return await opened
    except BaseException:
        made.abort()
        # The connection's own error arrives after ours, which the caller gets already.
        opened.cancel()
        raise


def is_tested(version: str) -> bool:
    """Whether Palermo was tested with this version of pika: from 1.3.2 to the last 1.4, as pyproject.toml says."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return found is not None and (1, 3, 2) <= tuple(map(int, found.groups())) < (1, 5, 0)
