"""Former digests of calls: earlier versions identified a call by a digest of its payload.

Runs begun with those versions are found by them. The payload depended on the codec of the app and
the key that signed it, so each of those is tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.wire.compression import compress
from poolhand.wire.payload import CODECS
from poolhand.wire.pickling import PICKLE

HEAD = b"PH\x01"
COMPRESSED, SIGNED = 1, 2


def former_digests(code: TaskCode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bytes]:
    """Return all digests that a call may have had, the likeliest first."""
    call = code.signature.bind(args, kwargs)
    parcels = code.parcels
    names = sorted(CODECS, key=lambda name: name != parcels.codec)
    digests = []
    for name in names:
        if name == PICKLE.name and parcels.pickle is None:
            continue
        # A value that this codec cannot write was never stored with it.
        with suppress(Exception):
            body = CODECS[name].write(call)
            digests += [hashlib.sha256(data).digest() for data in _enveloped(name, body, parcels)]
    return digests


def _enveloped(codec: str, body: bytes, parcels: Serializer) -> Iterator[bytes]:
    packed = compress(body) if len(body) > parcels.limits.compress_above else None
    flags = 0 if packed is None else COMPRESSED
    body = body if packed is None else packed
    if parcels.ring is not None:
        for key_id in parcels.ring.names:
            data = HEAD + bytes((flags | SIGNED,)) + _short(codec) + _short(key_id) + body
            yield data + parcels.ring.former_signature(key_id, data)
    yield HEAD + bytes((flags,)) + _short(codec) + body


def _short(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded
