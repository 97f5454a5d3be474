"""The Redis broker, for processes on any number of machines. Requires the extra `palermo[redis]`."""

from palermo.brokers.redis.opening import open_redis

__all__ = ["open_redis"]
