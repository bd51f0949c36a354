"""The envelope: the bytes around a body that say how to read it.

    PH  version  flags  codec  [key id  [expiry]]  body  [signature]

Version and flags are a byte each; codec and key id are text after a byte with its length; the
expiry is milliseconds since 1970 in 8 bytes. A signature covers everything before it. In version 2
it also covers what the envelope is bound to, which is not stored in it: the reader must supply it.
An unsigned envelope is bound to nothing and stays version 1.
"""

from __future__ import annotations

from msgspec import Struct

from poolhand.errors import Undecodable, UnknownVersion
from poolhand.wire.signing import SIGNATURE_BYTES

MAGIC = b"PH"
UNBOUND, VERSION = 1, 2
COMPRESSED, SIGNED, EXPIRES = 1, 2, 4
FLAGS = COMPRESSED | SIGNED | EXPIRES
EXPIRY_BYTES = 8
# The head and the signature together are never longer than this.
MOST_AROUND = 1024


class Envelope(Struct, frozen=True):
    """The fields of an envelope; `expires_ms` and `is_bound` require a key id."""

    codec: str
    body: bytes
    compressed: bool = False
    key_id: str | None = None
    expires_ms: int | None = None
    is_bound: bool = False


def pack(envelope: Envelope) -> bytes:
    """Return all bytes of an envelope except the signature."""
    flags = COMPRESSED if envelope.compressed else 0
    tail = envelope.body
    if envelope.key_id is not None:
        flags |= SIGNED
        if envelope.expires_ms is not None:
            flags |= EXPIRES
            tail = envelope.expires_ms.to_bytes(EXPIRY_BYTES, "big") + tail
        tail = _short(envelope.key_id) + tail
    version = VERSION if envelope.is_bound else UNBOUND
    return MAGIC + bytes((version, flags)) + _short(envelope.codec) + tail


def unpack(data: bytes, what: str) -> Envelope:
    """Read an envelope without verifying its signature."""
    if data[:2] != MAGIC or len(data) < 4:
        raise Undecodable(f"{what} is not a poolhand envelope: {len(data)} bytes of something else")
    version, flags = data[2], data[3]
    if version > VERSION:
        raise UnknownVersion(
            f"{what} was written by a newer poolhand: its envelope has version {version}, "
            f"and this one reads up to {VERSION}; upgrade this program"
        )
    odd = flags & ~FLAGS or (flags & EXPIRES and not flags & SIGNED)
    if odd or version == 0 or (version == VERSION and not flags & SIGNED):
        raise Undecodable(f"{what} is damaged: version {version}, flags {flags:#04x}")
    try:
        return _fields(data, flags)
    except (IndexError, UnicodeDecodeError):
        raise Undecodable(
            f"{what} is damaged: the head of its envelope is cut or garbled"
        ) from None


def _fields(data: bytes, flags: int) -> Envelope:
    codec, start = _text(data, 4)
    if not flags & SIGNED:
        return Envelope(codec, data[start:], bool(flags & COMPRESSED))
    key_id, start = _text(data, start)
    expires_ms = None
    if flags & EXPIRES:
        expires_ms = int.from_bytes(data[start : start + EXPIRY_BYTES], "big")
        start += EXPIRY_BYTES
    end = len(data) - SIGNATURE_BYTES
    if end < start:
        raise IndexError
    is_bound, compressed = data[2] == VERSION, bool(flags & COMPRESSED)
    return Envelope(codec, data[start:end], compressed, key_id, expires_ms, is_bound)


def _short(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def _text(data: bytes, start: int) -> tuple[str, int]:
    end = start + 1 + data[start]
    if end > len(data):
        raise IndexError
    return data[start + 1 : end].decode(), end
