"""Wire: how an app writes values as bytes, and reads them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from poolhand.errors import PoolhandError, UsageError
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import SIGNATURE_BYTES, KeyRing, unpack
from poolhand.wire.limits import LIMITS, Limits
from poolhand.wire.payload import decode, encode

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
