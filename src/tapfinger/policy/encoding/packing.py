"""A network's inputs as few bytes, and back without any change of a number: what agents exchange. numpy only."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np

from tapfinger.errors import DataError
from tapfinger.policy.encoding.inputs import Inputs

#: Types of arrays that inputs have, by the letter that stands for them.
TYPES: dict[str, np.dtype[Any]] = {"f": np.dtype("<f4"), "i": np.dtype("<i8"), "b": np.dtype("?")}
#: Most bytes of the arrays together, so that few bytes cannot become many.
MOST_UNPACKED = 32 * 1024 * 1024
#: Fields that are needed to choose an action, whether the network takes them or not.
TO_ACT = ("startable", "minimum", "largest")

_HEAD = struct.Struct("!I")
_LETTERS = {dtype: letter for letter, dtype in TYPES.items()}


def pack(inputs: Inputs, fields: Collection[str]) -> bytes:
    """These fields of one state."""
    shapes, parts = {}, []
    for name in sorted({*fields, *TO_ACT}):
        array = np.ascontiguousarray(getattr(inputs, name))
        shapes[name] = _LETTERS[array.dtype], *array.shape
        parts.append(array.tobytes())
    head = json.dumps(shapes, separators=(",", ":")).encode()
    return zlib.compress(b"".join((_HEAD.pack(len(head)), head, *parts)))


def unpack(data: bytes) -> Inputs:
    """The inputs with these fields, the others None; raises DataError for bytes that hold none."""
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(data, MOST_UNPACKED)
        if not unpacker.eof:
            raise ValueError(f"it is cut short, or has more than {MOST_UNPACKED} bytes")
        (length,) = _HEAD.unpack_from(body)
        shapes = json.loads(body[_HEAD.size : _HEAD.size + length])
        arrays = _arrays(shapes, body, _HEAD.size + length)
        if not arrays.keys() >= {*TO_ACT}:
            raise ValueError(f"it lacks {', '.join(sorted({*TO_ACT} - arrays.keys()))}")
        return Inputs(**{**dict.fromkeys(Inputs._fields), **arrays})
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error) as error:
        raise DataError(f"an observation cannot be read: {error}; use the same version everywhere") from None


def _arrays(shapes: Any, body: bytes, at: int) -> dict[str, Any]:
    found = {}
    for name, (letter, *shape) in shapes.items():
        if name not in Inputs._fields or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{str(name)[:50]!r} is no field of it")
        dtype, count = TYPES[letter], math.prod(shape)
        found[name] = np.frombuffer(body, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    if at != len(body):
        raise ValueError(f"it has {len(body)} bytes, and its fields {at}")
    return found
