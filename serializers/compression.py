"""Compressions for content_encoding. A decompression bomb raises an error instead of filling the memory."""

import zlib
from io import BytesIO
from typing import Any, Final, NoReturn

from palermo.errors import BodyTooLarge, DecodeError, MediaTypeUnknown

#: Bytes read per step. The zstd decoder may turn 4 bytes into 128 kB, so it gets _ZSTD_CHUNK bytes per step, and fewer
#: near a small limit: a bomb exceeds the limit by at most 32 MB.
_CHUNK: Final = 65_536
_ZSTD_CHUNK: Final = 1_024

#: Maximum window size of a zstd frame in bytes; a power of two.
_ZSTD_WINDOW: Final = 2**26


class Gzip:
    """RFC 1952, with any number of members. Writes no time stamp, so equal bytes give equal output."""

    name = "gzip"

    def compress(self, data: bytes) -> bytes:
        import gzip

        return gzip.compress(data, compresslevel=6, mtime=0)

    def decompress(self, data: bytes, limit: int) -> bytes:
        import gzip

        parts: list[bytes] = []
        size = 0
        try:
            with gzip.GzipFile(fileobj=BytesIO(data)) as file:
                while part := file.read1(_CHUNK):
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        _too_large("gzip", len(data), limit)
        except (OSError, EOFError, zlib.error) as error:
            raise DecodeError(f"the body is not gzip: {error}") from error
        return b"".join(parts)


class Zstd:
    """RFC 8878, one frame. Needs the package zstandard, which isn't a dependency of Palermo."""

    name = "zstd"

    def compress(self, data: bytes) -> bytes:
        packed: bytes = _zstandard().ZstdCompressor(level=3).compress(data)
        return packed

    def decompress(self, data: bytes, limit: int) -> bytes:
        library = _zstandard()
        frame = library.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        parts: list[bytes] = []
        size = 0
        chunk = max(4, min(_ZSTD_CHUNK, limit // 16_384))
        try:
            for start in range(0, len(data), chunk):
                part = frame.decompress(data[start : start + chunk])
                parts.append(part)
                size += len(part)
                if size > limit:
                    _too_large("zstd", len(data), limit)
        except library.ZstdError as error:
            raise DecodeError(f"the body is not zstd: {error}") from error
        if not frame.eof or frame.unused_data:
            raise DecodeError("the body is not one zstd frame, because it is truncated or followed by other data.")
        return b"".join(parts)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MediaTypeUnknown(
            "compression 'zstd' needs the package zstandard, which is not installed: pip install 'palermo[zstd]'."
        ) from error
    return zstandard


def _too_large(name: str, size: int, limit: int) -> NoReturn:
    raise BodyTooLarge(
        f"the body of {size:,} bytes has more than {limit:,} bytes after {name} decompression. "
        "Store the data elsewhere and pass a reference to it."
    )
