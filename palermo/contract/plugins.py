"""Palermo's plug-ins: built-in ones, and installed ones, found by their entry points.

Searching entry points is the slowest part of a worker's start, so it happens only for names that are not built in.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple


class Plugin(NamedTuple):
    """One plug-in."""

    name: str
    #: `package.module:attribute`.
    value: str

    def load(self) -> Any:
        """Load the object that it names. Raises ImportError or AttributeError."""
        module, _, attribute = self.value.partition(":")
        return getattr(import_module(module), attribute)


#: The built-in plug-ins, by group and name. pyproject.toml lists the same.
_OWN = {
    "palermo.brokers": {
        "amqp": "palermo.brokers.rabbitmq:open_rabbitmq",
        "amqps": "palermo.brokers.rabbitmq:open_rabbitmq",
        "redis": "palermo.brokers.redis:open_redis",
        "redis+sentinel": "palermo.brokers.redis:open_redis",
        "redis+unix": "palermo.brokers.redis:open_redis",
        "rediss": "palermo.brokers.redis:open_redis",
        "rediss+sentinel": "palermo.brokers.redis:open_redis",
        "sqlite": "palermo.brokers.sqlite:open_sqlite",
    },
    "palermo.serializers": {
        "json": "palermo.serializers.json:JsonSerializer",
        "msgpack": "palermo.serializers.msgpack:MsgpackSerializer",
        "pickle": "palermo.serializers.pickle:PickleSerializer",
    },
    "palermo.compressions": {
        "gzip": "palermo.serializers.compression:Gzip",
        "zstd": "palermo.serializers.compression:Zstd",
    },
}


def own(group: str) -> dict[str, Plugin]:
    """The built-in plug-ins of a group, such as `palermo.brokers`, by name."""
    return {name: Plugin(name, value) for name, value in _OWN.get(group, {}).items()}


@cache
def installed(group: str) -> Mapping[str, Plugin]:
    """All plug-ins of a group by name, without those that were installed after the first call."""
    from importlib.metadata import entry_points

    return {
        entry.name: Plugin(entry.name, entry.value.partition("[")[0].strip()) for entry in entry_points(group=group)
    } | own(group)
