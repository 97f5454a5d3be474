"""Ids for what has none of its own."""

import os


def new_id() -> str:
    """A random UUID (RFC 9562, version 4) as text: 122 bits of the system's own chance.

    As `uuid.uuid4` makes them, at a third of the cost; and nothing is kept that a forked child would hand out again.
    """
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
