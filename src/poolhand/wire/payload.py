"""Payloads: encode any value as self-describing bytes, and decode it, as an app sets it (`Wire`).

A mistake of the caller raises UsageError; a fault in the bytes raises WireError.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NoReturn

from msgspec import Struct

from poolhand.errors import BadSignature, PoolhandError, TooLarge, Undecodable, UsageError
from poolhand.rules.validation import AMOUNT, Seconds, not_allowed, to_seconds
from poolhand.wire.codec import JSON, MSGPACK, PICKLE, AllowPickle, Codec, Reader, locate
from poolhand.wire.envelope import (
    MOST_AROUND,
    SIGNATURE_BYTES,
    Envelope,
    KeyRing,
    compress,
    expand,
    pack,
    unpack,
)
from poolhand.wire.limits import LIMITS, Limits

CODECS = {codec.name: codec for codec in (JSON, MSGPACK, PICKLE)}
LONGEST_REASON = 500
_PLAIN_JSON = pack(Envelope("json", b""))


def encode(
    value: Any,
    *,
    codec: str = "json",
    limits: Limits = LIMITS,
    ring: KeyRing | None = None,
    pickle: AllowPickle | None = None,
    bound: bytes | None = b"",
    expires_in: Seconds | None = None,
    at: datetime | None = None,
    what: str = "the value",
) -> bytes:
    """Return the value in an envelope, signed if there is a ring; errors call it `what`.

    The signature is valid only with the same `bound`, for `expires_in` seconds from `at`. With
    `bound` None the envelope has version 1, whose signature is valid with any binding.
    """
    if codec == "json" and ring is None and expires_in is None:
        # The fast path of nearly every payload: default codec, unsigned.
        body = _written(value, JSON, limits, what)
        if len(body) <= limits.compress_above:
            return _PLAIN_JSON + body
    chosen = _chosen(codec, ring, pickle)
    expires_ms = _expiry(to_seconds(expires_in), at, ring)
    body = _written(value, chosen, limits, what)
    packed = compress(body) if len(body) > limits.compress_above else None
    key_id = ring.current if ring is not None else None
    is_bound = ring is not None and bound is not None
    data = pack(Envelope(codec, packed or body, packed is not None, key_id, expires_ms, is_bound))
    return data if ring is None else data + ring.sign(data, bound)


def decode(
    data: bytes,
    type: Any = Any,
    *,
    limits: Limits = LIMITS,
    ring: KeyRing | None = None,
    pickle: AllowPickle | None = None,
    bound: bytes | None = b"",
    at: datetime | None = None,
    what: str = "the value",
) -> Any:
    """Return the value in an envelope as that type; raise a WireError if it cannot be read.

    `bound` is what the signature must be bound to; None expects version 1. `at` is the current
    time, which the expiry of an envelope is compared with.
    """
    if len(data) > limits.payload + MOST_AROUND:
        raise _too_large(what, len(data), limits)
    if ring is None and data.startswith(_PLAIN_JSON):
        return _read(data[len(_PLAIN_JSON) :], JSON, JSON.reader(type), type, limits, what)
    envelope = unpack(data, what)
    # Nothing in the envelope is used before its signature has been verified.
    _verify(envelope, data, ring, bound, what)
    _refuse_expired(envelope, at, what)
    codec = _named(envelope, pickle, what)
    reader = codec.reader(type)
    body = envelope.body
    if envelope.compressed:
        body = expand(body, limits.payload, what)
    return _read(body, codec, reader, type, limits, what)


def _read(body: bytes, codec: Codec, reader: Reader, type: Any, limits: Limits, what: str) -> Any:
    _measure(body, codec, limits, what)
    try:
        return reader(body)
    except Exception as error:
        reason = str(error)[:LONGEST_REASON]
        raise Undecodable(f"{what} cannot be read as {_name(type)}: {reason}") from error


def _chosen(name: Any, ring: KeyRing | None, pickle: AllowPickle | None) -> Codec:
    codec = CODECS.get(name) if isinstance(name, str) else None
    if codec is None:
        raise UsageError(not_allowed("codec", name, f"one of {', '.join(map(repr, CODECS))}"))
    if codec is PICKLE and (ring is None or not isinstance(pickle, AllowPickle)):
        raise UsageError("codec='pickle' needs pickle=AllowPickle() and a key ring to sign with")
    return codec


def _expiry(seconds: float | None, at: datetime | None, ring: KeyRing | None) -> int | None:
    if seconds is None:
        return None
    AMOUNT.require("expires_in", seconds)
    if ring is None or at is None:
        raise UsageError(f"expires_in={seconds!r} needs a key ring, and at= with the time now")
    try:
        return _milliseconds(at + timedelta(seconds=seconds))
    except OverflowError:
        raise UsageError(f"expires_in={seconds!r} is beyond the calendar") from None


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise UsageError(not_allowed("at", moment, "a datetime with a time zone"))
    return int(moment.timestamp() * 1000)


def _written(value: Any, codec: Codec, limits: Limits, what: str) -> bytes:
    try:
        body = codec.write(value)
    except RecursionError:
        raise TooLarge(
            f"{what} contains itself or nests too deep; the limit is {limits.depth} levels",
            limit=limits.depth,
        ) from None
    except Exception as error:
        _refuse(value, codec, error, what)
    _measure(body, codec, limits, what)
    return body


def _refuse(value: Any, codec: Codec, error: Exception, what: str) -> NoReturn:
    place, cause = locate(value, codec.write, error)
    reason = str(cause)[:LONGEST_REASON]
    if isinstance(cause, UnicodeEncodeError):
        reason = (
            "it holds half of a surrogate pair, which is no text; use str.encode with 'replace'"
        )
    elif isinstance(cause, OverflowError):
        reason = "the int has more than 64 bits; use codec='json', or give a str"
    elif "for integer string conversion" in reason:
        reason = "the int has more than 4300 digits; give a str"
    raise UsageError(f"{what} cannot be written as {codec.name}, at {place}: {reason}") from error


def _measure(body: bytes, codec: Codec, limits: Limits, what: str) -> None:
    if len(body) > limits.payload:
        raise _too_large(what, len(body), limits)
    # A body this short cannot nest deeper, which skips the check for nearly every payload.
    if len(body) > limits.depth and codec.is_deeper(body, limits.depth):
        raise TooLarge(
            f"{what} nests deeper than {limits.depth} levels, which is the limit; flatten it",
            limit=limits.depth,
        )


def _too_large(what: str, size: int, limits: Limits) -> TooLarge:
    return TooLarge(
        f"{what} is {size} bytes large; the limit is {limits.payload}: "
        "store the data elsewhere and pass a reference, or raise Limits(payload=…)",
        size=size,
        limit=limits.payload,
    )


def _verify(
    envelope: Envelope, data: bytes, ring: KeyRing | None, bound: bytes | None, what: str
) -> None:
    if envelope.key_id is None:
        if ring is not None and not ring.accept_unsigned:
            raise BadSignature(f"{what} is not signed, and the key ring refuses unsigned data")
        return
    if ring is None:
        raise BadSignature(
            f"{what} is signed with the key {envelope.key_id!a}, and there is no key ring here "
            "to verify it with; configure the ring that its writer has",
            missing_key=envelope.key_id,
        )
    if not envelope.is_bound:
        if bound is not None and not ring.accept_unbound:
            raise BadSignature(
                f"{what} has a signature that does not say what it belongs to: an older poolhand "
                "wrote it (envelope version 1); to read it, make the ring with "
                "KeyRing(…, accept_unbound=True) until no such data is left"
            )
        bound = None
    elif bound is None:
        bound = b""
    ring.verify(envelope.key_id, data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:], bound, what)


def _refuse_expired(envelope: Envelope, at: datetime | None, what: str) -> None:
    if envelope.expires_ms is None:
        return
    if at is None:
        raise BadSignature(
            f"{what} has a signature that expires, and at=, the current time, is missing"
        )
    late = _milliseconds(at) - envelope.expires_ms
    if late >= 0:
        raise BadSignature(
            f"{what} has a signature that expired {late / 1000} s ago; send it again"
        )


def _named(envelope: Envelope, pickle: AllowPickle | None, what: str) -> Codec:
    codec = CODECS.get(envelope.codec)
    if codec is None:
        names = ", ".join(CODECS)
        raise Undecodable(f"{what} is written as {envelope.codec[:40]!a}; known are {names}")
    if codec is PICKLE:
        if not isinstance(pickle, AllowPickle):
            raise Undecodable(f"{what} is a pickle, and pickle is not allowed here")
        if envelope.key_id is None:
            raise BadSignature(f"{what} is a pickle that is not signed: it is never read")
    return codec


def _name(wanted: Any) -> str:
    return wanted.__qualname__ if isinstance(wanted, type) else repr(wanted).replace("typing.", "")


LARGEST = 16 * 1024 * 1024  # the most bytes that are read without an app, whatever the app's limits
PARTS: dict[str, tuple[Any, str]] = {
    "limits": (Limits, "Limits(…)"),
    "ring": (KeyRing | None, "KeyRing(…), or None"),
    "pickle": (AllowPickle | None, "AllowPickle(), or None"),
}


class Wire(Struct, frozen=True):
    """How an app writes everything that it stores: `App(url, wire=Wire(ring=KeyRing(…)))`.

    `codec` is "json", "msgpack" or "pickle", `limits` bounds the size of values, `ring` holds the
    keys that sign them, and `pickle` allows values that only pickle can write.
    """

    codec: str = "json"
    limits: Limits = LIMITS
    ring: KeyRing | None = None
    pickle: AllowPickle | None = None

    def __post_init__(self) -> None:
        # Check these four now, not at the first job.
        faults = [
            # Without the value: it may be a secret that was meant for a ring.
            f"{option} is {_kind_of(value)}; it must be {allowed}"
            for option, (kind, allowed) in PARTS.items()
            if not isinstance(value := getattr(self, option), kind)
        ]
        if faults:
            raise UsageError(f"Wire: {'; '.join(faults)}")
        self.write(None, "nothing")

    def write(self, value: Any, what: str, bound: bytes | None = b"") -> bytes:
        return encode(
            value,
            codec=self.codec,
            limits=self.limits,
            ring=self.ring,
            pickle=self.pickle,
            bound=bound,
            what=what,
        )

    def read(self, data: bytes, type: Any, what: str, bound: bytes | None = b"") -> Any:
        return decode(
            data,
            type,
            limits=self.limits,
            ring=self.ring,
            pickle=self.pickle,
            bound=bound,
            what=what,
        )

    def sign(self, data: bytes, bound: bytes) -> bytes:
        """Return signed bytes with another signature; the value in them is not decoded."""
        if self.ring is None:
            return data
        written = data[:-SIGNATURE_BYTES]
        return written + self.ring.sign(written, bound)


def read_without_keys(data: bytes) -> tuple[Any, str | None]:
    """Return the value of unsigned bytes; for others None and a description of them."""
    try:
        envelope = unpack(data, "it")
    except PoolhandError as error:
        return None, f"cannot be read: {error}"
    kind = "a pickle" if envelope.codec == "pickle" else envelope.codec
    if envelope.key_id is not None:
        key = f"signed with the key {envelope.key_id!a}"
        return None, f"{kind}, {key}, {len(data):,} bytes: only an app with that key reads it"
    try:
        return Wire(limits=Limits(payload=LARGEST)).read(data, Any, "it"), None
    except PoolhandError as error:
        return None, f"{kind[:40]}, {len(data):,} bytes, cannot be read: {error}"


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
