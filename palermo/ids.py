"""Ids for what has none of its own."""

import os
from collections.abc import Iterator

from palermo import forking

#: Ids that one call for many asks for at a time.
_AT_ONCE = 100


def new_id() -> str:
    """A random UUID (RFC 9562, version 4) as text: 122 bits of the system's own chance.

    As `uuid.uuid4` makes them, at a third of the cost; and nothing is kept that a forked child would hand out again.
    """
    return _as_uuid(os.urandom(16).hex())


def many_ids() -> Iterator[str]:
    """The same without end, for one call that needs many; what a forked child finds of them it does not use."""
    while True:
        generation = forking.generation
        digits = os.urandom(16 * _AT_ONCE).hex()
        for start in range(0, len(digits), 32):
            if forking.generation != generation:
                break
            yield _as_uuid(digits[start : start + 32])


def _as_uuid(digits: str) -> str:
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
