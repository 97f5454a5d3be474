"""The serializers and compressions that come with Palermo, found by entry point. See contract/serialization.py.

`register` and the others below change what this process knows, for all its clients, and for the jobs of a worker that
imports the module which calls them.
"""

from palermo.contract.serialization import C, Compression, Serializer, Serializers


def register(serializer: Serializer) -> None:
    """Add a serializer under its name and its media type; it replaces the one that had them.

    It needs all that `Serializer` names: `name`, `media_type`, `safe`, `dumps(value)` and `loads(data, classes)`.
    Raises OptionInvalid that says what is missing or of a wrong type.
    """
    Serializers.of_process().register(serializer)


def unregister(name: str) -> None:
    """Take a serializer away, by name or media type. Raises MediaTypeUnknown."""
    Serializers.of_process().unregister(name)


def register_compression(compression: Compression) -> None:
    """Add a compression; it replaces one of the same name. Raises OptionInvalid, as `register` does."""
    Serializers.of_process().register_compression(compression)


def register_class(cls: C) -> C:
    """Let a dataclass or enum be restored in every job, besides those that its annotations name. A decorator."""
    return Serializers.of_process().register_class(cls)
