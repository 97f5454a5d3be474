"""The signed wrapper: proof that a holder of the key wrote a body for this job and this id.

The body is one line of ASCII and then the unchanged inner body:

    v1 <HMAC-SHA-256 in hexadecimal> <inner media type>\n<inner body>

The HMAC covers "palermo-signed-v1", the job's name, the id, the inner media type and the inner body, each as UTF-8
after its length in bytes as 8 bytes, big-endian. So no part can be mistaken for another, and the signature is invalid
for another job or id. It does not cover the queue, which may change, and does not prevent replays.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from palermo.errors import DecodeError, SettingInvalid, SignatureInvalid

VERSION: Final = b"v1"
_DOMAIN: Final = b"palermo-signed-v1"
_LINE: Final = 256

#: Minimum length of a key in bytes; shorter keys could be guessed.
SHORTEST_KEY: Final = 16


class Signed:
    """Wraps and unwraps bodies. The first key signs; all keys verify.

    To change keys, first add the new one in second place everywhere, then make it the first, and then remove the old
    one.
    """

    def __init__(self, keys: Sequence[str | bytes] = ()) -> None:
        """Raises SettingInvalid for a key of fewer than 16 bytes."""
        self._keys = [key.encode() if isinstance(key, str) else key for key in keys]
        for number, key in enumerate(self._keys, start=1):
            if len(key) < SHORTEST_KEY:
                raise SettingInvalid(
                    f"signing key {number} has {len(key)} bytes; the minimum is {SHORTEST_KEY}. Create one with: "
                    "python -c 'import secrets; print(secrets.token_hex(32))'"
                )

    def wrap(self, body: bytes, *, content_type: str, job: str, id: str) -> bytes:
        """Return the signed body. Raises SignatureInvalid without a key."""
        if not self._keys:
            raise SignatureInvalid("no signing key is set. Set signing_keys.")
        code = _code(self._keys[0], content_type, body, job, id)
        return b" ".join((VERSION, code, content_type.encode())) + b"\n" + body

    def unwrap(self, body: bytes, *, job: str, id: str) -> tuple[str, bytes]:
        """Return the inner media type and body. Raises SignatureInvalid if no key matches, and DecodeError."""
        code, content_type, inner = _parts(body)
        # Try all keys, so that the time doesn't reveal which one fits.
        fits = [hmac.compare_digest(_code(key, content_type, inner, job, id), code) for key in self._keys]
        if not any(fits):
            raise SignatureInvalid(
                f"the signature of message {id} does not match. It was changed, signed for another job or id, "
                f"or signed with a key that is not among the {len(self._keys)} in signing_keys. Check signing_keys."
            )
        return content_type, inner

    def unwrap_unverified(self, body: bytes) -> tuple[str, bytes]:
        """Return the inner media type and body without verification. Raises DecodeError."""
        _, content_type, inner = _parts(body)
        return content_type, inner


def _parts(body: bytes) -> tuple[bytes, str, bytes]:
    end = body.find(b"\n", 0, _LINE)
    words = body[: max(end, 0)].split(b" ")
    if len(words) != 3 or words[0] != VERSION or not all(words) or not words[2].isascii():
        raise DecodeError(f"the body is not in the signed format of docs/internals/wire.md: it begins {body[:40]!r}.")
    return words[1].lower(), words[2].decode("ascii"), body[end + 1 :]


def _code(key: bytes, content_type: str, body: bytes, job: str, id: str) -> bytes:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in (_DOMAIN, _bytes(job), _bytes(id), _bytes(content_type), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest().encode()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # "replace" could map two names to one
