"""Functions that programs have called when a future is there: what becomes of what they raise.

Whoever reads such an error wants to see the program's own lines, so the frames of ours and of torch
that lead to the callback, and from it, are left out.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.errors import (
    CallbackError,
    add_note,
    print_error,
    repr_of,
    set_attribute,
    text_of,
    traceback_of,
    without_traceback,
)
from lockstitch.interrupts import OWN_ERRORS_IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

_NOT_THE_PROGRAMS: Final = (str(Path(__file__).parents[1]), str(torch.futures.__file__))


def can_be_called(callback: object) -> bool:
    """Whether it can be called at all."""
    return callable(callback)


def call(callback: Callable[[Any], object], argument: object) -> None:
    """Calls one that nobody waits for: what it raises is printed."""
    try:
        callback(argument)
    except BaseException as error:  # noqa: BLE001 - printed; its caller is torch, which would go on
        frames = traceback_of(error)
        begin = frames and frames.tb_next
        add_note(error, f"raised in {_name_of(callback)}, a callback of a future, and only printed")
        set_attribute(error, "__traceback__", begin)
        print_error(error, begin)


def error_of(callback: Callable[[Any], object], error: BaseException) -> BaseException:
    """What to raise where the result of a callback is waited for that raised `error`. A future
    cannot keep frames: the note says which there were."""
    lines = "".join(
        line
        for frame in traceback.extract_tb(traceback_of(error))
        if not frame.filename.startswith(_NOT_THE_PROGRAMS)
        for line in traceback.format_list([frame])
    )
    where = f":\n{lines.rstrip()}" if lines else ""
    add_note(error, f"raised in {_name_of(callback)}, a callback of a future{where}")
    without_traceback(error)
    kind = type(error)  # `isinstance` asks the error, too, which may raise
    if issubclass(kind, RuntimeError) or not issubclass(kind, Exception):
        return error
    # The words are torch's.
    said = f"{kind.__name__}: {text_of(error)}"
    text = f"Got the following error when running the callback: {said}"
    wrapped = CallbackError(text)
    wrapped.__cause__ = error
    return wrapped


def _name_of(callback: object) -> str:
    with OWN_ERRORS_IGNORED:
        return str(getattr(callback, "__qualname__", None) or repr_of(callback))
    return repr_of(callback)
