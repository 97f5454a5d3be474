"""Redis as a broker, for processes of any number of machines. It needs the extra `palermo[redis]`."""

from palermo.brokers.redis.opening import open_redis

__all__ = ["open_redis"]
