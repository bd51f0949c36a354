"""Pickle as a codec: reading a pickle can run code, so it needs permission and a signature.

This module only converts values to pickles and back. `payload` enforces both conditions.
"""

from __future__ import annotations

import pickle
from typing import Any

from poolhand.misuse import OptionsStruct
from poolhand.wire.codec import Codec, Reader


class AllowPickle(OptionsStruct, frozen=True):
    """The permission to use pickle: every holder of a key of the ring can then run code here."""


def _write(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _reader(type: Any) -> Reader:
    # A pickle names its types itself; the requested type is ignored.
    return pickle.loads


def _is_deeper(body: bytes, depth: int) -> bool:
    # Pickles are read without recursion.
    return False


PICKLE = Codec("pickle", _write, _reader, _is_deeper)
