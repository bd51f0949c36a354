"""Compression: zlib where it saves space, and decompression within a limit."""

from __future__ import annotations

import zlib

from poolhand.errors import TooLarge, Undecodable

CHUNK = 64 * 1024
# The fastest level: it saves nearly as much as the slower ones, in a third of the time.
LEVEL = 1


def compress(body: bytes) -> bytes | None:
    """Return the body compressed, None unless that saves a tenth of its size."""
    packed = zlib.compress(body, LEVEL)
    return packed if len(packed) * 10 <= len(body) * 9 else None


def expand(packed: bytes, limit: int, what: str) -> bytes:
    """Undo `compress`, never holding more than `limit` bytes and one chunk of the output."""
    stream = zlib.decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        while not stream.eof:
            part = stream.decompress(packed, CHUNK)
            packed = stream.unconsumed_tail
            size += len(part)
            if size > limit:
                raise TooLarge(
                    f"{what} is more than {limit} bytes when decompressed, which is the limit",
                    size=size,
                    limit=limit,
                )
            if not part and not packed and not stream.eof:
                raise Undecodable(f"{what} is compressed, and its end is missing")
            parts.append(part)
    except zlib.error as error:
        raise Undecodable(f"{what} is damaged: it cannot be decompressed ({error})") from None
    if stream.unused_data:
        raise Undecodable(f"{what} is damaged: bytes follow the end of its compressed body")
    return b"".join(parts)
