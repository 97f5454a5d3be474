"""Opens a session with Redis."""

import importlib.util
from typing import TYPE_CHECKING

from palermo.contract.broker import SessionParameters
from palermo.errors import UrlInvalid

if TYPE_CHECKING:
    from palermo.brokers.redis.broker import RedisBroker


async def open_redis(session: SessionParameters) -> "RedisBroker":
    """Open a session with the server at the address.

    Raises UrlInvalid, BrokerUnavailable, BrokerRefused.
    """
    if importlib.util.find_spec("redis") is None:
        raise UrlInvalid(f"{session.address.scheme}:// needs redis-py: pip install 'palermo[redis]'.")
    # Imported here, since redis-py is an extra.
    from palermo.brokers.redis.broker import open_session

    return await open_session(session)
