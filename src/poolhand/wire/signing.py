"""Signing: HMAC-SHA256 with a ring of keys, so that keys can be rotated while data is stored."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from typing import Any

from poolhand.errors import BadSignature, UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.validation import is_text, shown

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
        faults += _switch_faults(accept_unsigned=accept_unsigned, accept_unbound=accept_unbound)
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
        names = ", ".join(map(repr, secrets))
        yield f"current={shown(current)} is not allowed; it must be one of {names}"


def _switch_faults(**given: object) -> Iterator[str]:
    for name, value in given.items():
        if not isinstance(value, bool):
            yield f"{name}={shown(value)} is not allowed; give True or False"
