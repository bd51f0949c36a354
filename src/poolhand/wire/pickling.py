"""Pickle as a codec. Reading a pickle can run code: it needs a permission, and a signature.

This module only turns values into pickles and back. `payload` holds the two conditions.
"""

from __future__ import annotations

import pickle
from typing import Any

from poolhand.misuse import OptionsStruct
from poolhand.wire.codec import Codec, Reader


class AllowPickle(OptionsStruct, frozen=True):
    """The permission to use pickle: whoever holds a key of the ring may run code here."""


def _write(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _reader(type: Any) -> Reader:
    # A pickle brings its types along; the wanted one is not looked at.
    return pickle.loads


def _is_deeper(body: bytes, depth: int) -> bool:
    # Pickles are read without recursion.
    return False


PICKLE = Codec("pickle", _write, _reader, _is_deeper)
