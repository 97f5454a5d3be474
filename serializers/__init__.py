"""The serializers and compressions included in Palermo, found by entry point. See contract/serialization.py.

`register` and the other functions below apply to all clients in this process, and to the jobs of a worker that imports
the calling module.
"""

from palermo.contract.serialization import C, Compression, Serializer, Serializers


def register(serializer: Serializer) -> None:
    """Add a serializer under its name and media type, replacing an existing one.

    It must have all members of `Serializer`: `name`, `media_type`, `safe`, `dumps(value)` and `loads(data, classes)`.
    Raises OptionInvalid, which says which member is missing or has the wrong type.
    """
    Serializers.of_process().register(serializer)


def unregister(name: str) -> None:
    """Remove a serializer, by name or media type. Raises MediaTypeUnknown."""
    Serializers.of_process().unregister(name)


def register_compression(compression: Compression) -> None:
    """Add a compression, replacing one with the same name. Raises OptionInvalid like `register`."""
    Serializers.of_process().register_compression(compression)


def register_class(cls: C) -> C:
    """Decorator that allows a dataclass or enum to be restored in every job, not only in jobs that use it as an
    annotation.
    """
    return Serializers.of_process().register_class(cls)
