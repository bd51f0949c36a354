"""The envelope: the bytes around a body that say how to read it.

    PH  version  flags  codec  [key id  [expiry]]  body  [signature]

Version and flags are a byte each; codec and key id are text after a byte with its length; the
expiry is milliseconds since 1970 in 8 bytes. A signature covers everything before it. In version 2
it also covers what the envelope is bound to, which is not stored in it: the reader must supply it.
An unsigned envelope is bound to nothing and stays version 1.
"""

from __future__ import annotations

import hmac
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from poolhand.errors import BadSignature, TooLarge, Undecodable, UnknownVersion, UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.validation import FLAG, is_text, not_allowed, shown

SIGNATURE_BYTES = 32
FEWEST_SECRET_BYTES = 16
LONGEST_KEY_ID = 64
LENGTH_BYTES = 4
BOUND = "run, task, pool, tenant, session, user, timeouts, retry, run_in or on_crash"


class KeyRing:
    """Signs with the current key and verifies with any of its keys.

    To rotate, add the new key everywhere, then make it current, then drop the old one when
    nothing signed with it is left. Unsigned data is refused, unless `accept_unsigned`, which is
    for the time in which data from before the ring still exists. Data whose signature does not
    name its job, as older versions wrote it, is refused as well, unless `accept_unbound`.
    """

    __slots__ = ("_accept_unbound", "_accept_unsigned", "_current", "_keys")

    @explain_misuse
    def __init__(
        self,
        secrets: Mapping[str, bytes],
        *,
        current: str,
        accept_unsigned: bool = False,
        accept_unbound: bool = False,
    ) -> None:
        faults = list(_faults(secrets, current))
        faults += FLAG.faults("accept_unsigned", accept_unsigned)
        faults += FLAG.faults("accept_unbound", accept_unbound)
        if faults:
            raise UsageError("KeyRing: " + "; ".join(faults))
        # Store keyed hashes instead of the secrets, so that the secrets cannot be shown.
        self._keys = {name: hmac.new(key, digestmod="sha256") for name, key in secrets.items()}
        self._current = current
        self._accept_unsigned = accept_unsigned
        self._accept_unbound = accept_unbound

    @property
    def current(self) -> str:
        """The id of the key that signs."""
        return self._current

    @property
    def accept_unsigned(self) -> bool:
        """Whether unsigned data is accepted."""
        return self._accept_unsigned

    @property
    def accept_unbound(self) -> bool:
        """Whether data is accepted whose signature does not name what it belongs to."""
        return self._accept_unbound

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of all keys, the current one first."""
        return self._current, *(name for name in self._keys if name != self._current)

    def sign(self, data: bytes, bound: bytes | None = b"") -> bytes:
        """Return the signature of `data` and its binding under the current key."""
        return self._signature(self._current, data, bound)

    def former_signature(self, key_id: str, data: bytes) -> bytes:
        """Return the version 1 signature of `data` under one of the keys."""
        return self._signature(key_id, data, None)

    def verify(
        self, key_id: str, data: bytes, signature: bytes, bound: bytes | None, what: str
    ) -> None:
        """Raise BadSignature unless that key signed exactly this data with this binding."""
        if key_id not in self._keys:
            raise BadSignature(
                f"{what} is signed with the key {key_id!a}, which is not in the key ring "
                f"({self._names()}); add that key, or do not trust the data",
                missing_key=key_id,
            )
        if not hmac.compare_digest(self._signature(key_id, data, bound), signature):
            also = f", or the {BOUND} that it is bound to," if bound else ""
            raise BadSignature(
                f"{what}{also} was altered after it was signed with the key {key_id!a}, "
                "or signed with another secret under that id; do not trust it"
            )

    def __repr__(self) -> str:
        return f"KeyRing({self._names()}, current={self._current!r})"

    def _signature(self, key_id: str, data: bytes, bound: bytes | None) -> bytes:
        keyed = self._keys[key_id].copy()
        if bound is not None:
            # The length comes first, so that bytes cannot move between the binding and the data.
            keyed.update(len(bound).to_bytes(LENGTH_BYTES, "big"))
            keyed.update(bound)
        keyed.update(data)
        return keyed.digest()

    def _names(self) -> str:
        return ", ".join(map(repr, self._keys))


def _faults(secrets: Any, current: Any) -> Iterator[str]:
    # Error messages never show a secret, not even one of the wrong type.
    if not isinstance(secrets, Mapping) or not secrets:
        yield "secrets must be a dict from key ids to secrets, with at least one"
        return
    for name, key in secrets.items():
        if not is_text(name) or not name.isascii() or len(name) > LONGEST_KEY_ID:
            yield (
                f"key id {shown(name)} is not allowed; give 1 to {LONGEST_KEY_ID} ASCII characters"
            )
        if not isinstance(key, bytes):
            yield f"the secret of {name!r} is a {type(key).__name__}; give bytes"
        elif len(key) < FEWEST_SECRET_BYTES:
            yield (
                f"the secret of {name!r} has {len(key)} bytes; give at least "
                f"{FEWEST_SECRET_BYTES}, such as secrets.token_bytes(32)"
            )
    if current not in secrets:
        yield not_allowed("current", current, f"one of {', '.join(map(repr, secrets))}")


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
        tail = short_text(envelope.key_id) + tail
    version = VERSION if envelope.is_bound else UNBOUND
    return MAGIC + bytes((version, flags)) + short_text(envelope.codec) + tail


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


def short_text(text: str) -> bytes:
    """Return a text of up to 255 bytes, after its length."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def _text(data: bytes, start: int) -> tuple[str, int]:
    end = start + 1 + data[start]
    if end > len(data):
        raise IndexError
    return data[start + 1 : end].decode(), end


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
