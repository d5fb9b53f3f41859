"""NumPy's arrays and scalars where a registry says what may be named: as bytes and a few words.

NumPy pickles them by functions of its own that take whatever they are given. Here an array is a
extracted buffer, the name of its dtype, its shape and its order; none holds Python objects.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy

from lockstitch.errors import RemoteProtocolError, SerializationError

_DTYPE: Final = re.compile(
    r"[|<>=]?(?:[?biufcSUV][0-9]{1,9}|[mM]8(?:\[[0-9]{0,4}[a-zA-Z]{1,2}\])?)"
)


def described(array: numpy.ndarray[Any, Any]) -> tuple[Any, tuple[str, tuple[int, ...], str]]:
    """An array's bytes, as something with a buffer, and what is said of them. Raises
    `SerializationError` where it holds Python objects."""
    dtype = array.dtype
    if not _DTYPE.fullmatch(dtype.str) or dtype.fields is not None:
        raise SerializationError(
            f"an array of {dtype} cannot be sent in a job with a registry, only numbers, texts, "
            "bytes and times: send a list, or a column at a time"
        )
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    whole = numpy.asarray(array, order="F" if order == "F" else "C")
    flat = whole.reshape(-1, order="F" if order == "F" else "C")
    return flat.view(numpy.uint8), (dtype.str, array.shape, order)


def array_of(memory: Any, dtype: str, shape: tuple[int, ...], order: str) -> Any:
    """The array, in that memory. Raises `RemoteProtocolError` for what makes none."""
    try:
        return _array_of(memory, dtype, shape, order)
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"what came is no array: {dtype!r}, {shape!r}") from error


def _array_of(memory: Any, dtype: str, shape: tuple[int, ...], order: str) -> Any:
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype) or order not in ("C", "F"):
        raise ValueError("no dtype or order of ours")
    if type(shape) is not tuple or not all(type(each) is int and each >= 0 for each in shape):
        raise ValueError("no shape")
    kind = numpy.dtype(dtype)
    if not math.prod(shape) or not kind.itemsize:
        return numpy.zeros(shape, kind, order)  # type: ignore[call-overload]
    return numpy.frombuffer(memory, kind).reshape(shape, order=order)  # type: ignore[call-overload]


def scalar_of(dtype: str, content: bytes) -> Any:
    """A scalar of that dtype. Raises `RemoteProtocolError` likewise."""
    return array_of(content, dtype, (1,), "C")[0]
