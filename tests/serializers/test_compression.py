"""Compressions: bombs, damage, and what other programs write."""

import gzip
import sys
import zlib

import pytest
import zstandard
from msgspec.structs import replace

from palermo.contract.serialization import MAX_DECOMPRESSED, Accept, Serializers
from palermo.core.message import MAX_BODY, Message
from palermo.errors import BodyTooLarge, DecodeError, MediaTypeUnknown
from palermo.serializers.compression import Gzip, Zstd

BOTH = pytest.mark.parametrize("compression", [Gzip(), Zstd()], ids=["gzip", "zstd"])
REGISTRY = Serializers.default()


@pytest.mark.slow
@BOTH
def test_a_bomb_is_refused(compression: Gzip | Zstd) -> None:
    bomb = compression.compress(bytes(MAX_DECOMPRESSED + 1))
    message = Message(id="1", queue="jobs", job="x", body=bomb, content_encoding=compression.name)

    assert len(bomb) < 100_000
    with pytest.raises(BodyTooLarge, match="more than 64,000,000 bytes after"):
        REGISTRY.decode(message, accept=Accept.default())
    with pytest.raises(BodyTooLarge):
        REGISTRY.decode_for_display(message)


@BOTH
def test_a_body_of_just_the_limit_passes(compression: Gzip | Zstd) -> None:
    data = bytes(100_000)

    assert compression.decompress(compression.compress(data), 100_000) == data
    with pytest.raises(BodyTooLarge):
        compression.decompress(compression.compress(data), 99_999)


@BOTH
def test_damage_is_a_decode_error(compression: Gzip | Zstd) -> None:
    good = compression.compress(b"some text " * 1_000)

    for bad in (b"not compressed at all", good[:-1], good[:5], good + b"tail", good[:10] + b"\xff" * len(good[10:])):
        with pytest.raises(DecodeError):
            compression.decompress(bad, 1_000_000)


def test_what_other_programs_compress_is_read() -> None:
    writer = zstandard.ZstdCompressor().compressobj()
    frame_without_its_size = writer.compress(b"streamed") + writer.flush()

    assert Zstd().decompress(frame_without_its_size, 100) == b"streamed"
    assert Gzip().decompress(gzip.compress(b"one ", mtime=0) + gzip.compress(b"two"), 100) == b"one two"
    with pytest.raises(DecodeError):  # deflate is another format
        Gzip().decompress(zlib.compress(b"x"), 100)
    assert Gzip().compress(b"x" * 100) == Gzip().compress(b"x" * 100)


def test_zstd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(MediaTypeUnknown, match=r"pip install 'palermo\[zstd\]'"):
        REGISTRY.encode([1], {}, job="x", id="1", compression="zstd")
    with pytest.raises(MediaTypeUnknown, match=r"pip install 'palermo\[zstd\]'"):
        Zstd().decompress(b"x", 100)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        *((encoding, b"[1]") for encoding in ("utf-8", "UTF-8", "binary", "identity", "")),
        *((encoding, gzip.compress(b"[1]", mtime=0)) for encoding in ("GZIP", "x-gzip", " gzip ")),
    ],
)
def test_encodings_are_understood_as_other_clients_write_them(encoding: str, body: bytes) -> None:
    message = Message(id="1", queue="jobs", job="x", body=body, content_encoding=encoding)

    assert REGISTRY.decode(message, accept=Accept.default()) == [1]
    with pytest.raises(MediaTypeUnknown, match=r"no compression 'br' is registered \(there are: gzip, zstd\)"):
        REGISTRY.decode(replace(message, content_encoding="br"), accept=Accept.default())


def test_a_body_above_a_limit_is_refused_when_enqueuing() -> None:
    fits, too_large = "x" * (MAX_BODY - 4), "x" * (MAX_BODY - 3)  # and 4 bytes of ["…"]

    assert len(REGISTRY.encode([fits], {}, job="x", id="1").body) == MAX_BODY
    with pytest.raises(BodyTooLarge, match="16,777,217 bytes as json; the maximum is 16,777,216"):
        REGISTRY.encode([too_large], {}, job="x", id="1")
    with pytest.raises(BodyTooLarge, match="before compression"):  # which no worker would decompress
        REGISTRY.encode(["x" * MAX_DECOMPRESSED], {}, job="x", id="1", compression="gzip")
