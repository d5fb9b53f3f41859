"""Where the threads of this process are: looked at from another thread, while they run on."""

from __future__ import annotations

import itertools
import linecache
import sys
import sysconfig
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from lockstitch.attach.system import thread_state, what_keeps
from lockstitch.attach.values import NO_LINE, CodeLine, ThreadReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

_HERE: Final = f"{Path(__file__).resolve().parent}/"
_PACKAGE: Final = str(Path(__file__).resolve().parents[1])
_DEEPEST: Final = 200
"""So many lines of a stack are told, the innermost ones."""


class SourceFolders:
    """Tells the user's own code from the library's, Python's and installed packages'."""

    def __init__(self) -> None:
        paths = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
        self._foreign = tuple({f"{path}/" for path in (_PACKAGE, *paths)})
        self._installed = tuple(f"{sysconfig.get_path(each)}/" for each in ("purelib", "platlib"))
        self._standard = tuple(f"{sysconfig.get_path(each)}/" for each in ("stdlib", "platstdlib"))

    def is_own(self, file: str) -> bool:
        """Returns whether a file is the user's own."""
        return not file.startswith((*self._foreign, "<frozen"))

    def is_pythons(self, file: str) -> bool:
        """Returns whether a file is of Python's standard library."""
        is_standard = file.startswith((*self._standard, "<frozen"))
        return is_standard and not file.startswith(self._installed)


def frames_of(innermost: FrameType) -> Iterator[FrameType]:
    """Yields the frames of a stack, the innermost first."""
    frame: FrameType | None = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


def code_line(frame: FrameType) -> CodeLine:
    """Returns the line that a frame is at."""
    code, line = frame.f_code, frame.f_lineno or 0
    text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    return CodeLine(code.co_filename, line, code.co_name, text)


def own_line(innermost: FrameType, folders: SourceFolders | None = None) -> CodeLine:
    """Returns the innermost line of the user's own code in a stack, or the innermost line of any
    code where none is the user's."""
    return code_line(_own_frame(frames_of(innermost), folders or SourceFolders()) or innermost)


def served_line(frames: Sequence[FrameType], folders: SourceFolders) -> CodeLine:
    """The same of frames that serve a call, the innermost first: `NO_LINE` where the innermost is
    this library's, which does so for a function in C, say."""
    frame = _own_frame(frames, folders)
    if frame is None and not frames[0].f_code.co_filename.startswith(f"{_PACKAGE}/"):
        frame = frames[0]
    return NO_LINE if frame is None else code_line(frame)


def _own_frame(frames: Iterable[FrameType], folders: SourceFolders) -> FrameType | None:
    return next((each for each in frames if folders.is_own(each.f_code.co_filename)), None)


def look_at_threads(*, stacks: bool = False) -> list[ThreadReport]:
    """Returns where each thread of Python's is, the main thread first; but for those that were
    started for the question. `stacks`: with all lines of each."""
    # Not `threading.enumerate`: a thread that stands still may hold its lock.
    known = {each.ident: each for each in list(threading._active.values())}  # type: ignore[attr-defined]
    main = threading.main_thread().ident
    folders, reports = SourceFolders(), []
    for ident, frame in sys._current_frames().items():
        if _is_for_questions(frame):
            continue
        thread = known.get(ident)
        native = (thread.native_id if thread is not None else None) or 0
        is_users = any(folders.is_own(each.f_code.co_filename) for each in frames_of(frame))
        reports.append(
            ThreadReport(
                name=thread.name if thread is not None else "",
                ident=ident,
                native_id=native,
                kind="main" if ident == main else "user" if is_users else "library",
                state=thread_state(native) if native else "",
                at=own_line(frame, folders),
                stack=_stack(frame) if stacks else (),
                stands_in=_what_it_stands_in(frame, native, folders),
            )
        )
    return sorted(reports, key=lambda each: (each.kind != "main", each.native_id))


def _what_it_stands_in(
    innermost: FrameType, native: int, folders: SourceFolders
) -> Literal["", "lock", "sleep", "lockstitch"]:
    """See `ThreadReport.stands_in`."""
    files = (each.f_code.co_filename for each in frames_of(innermost))
    caller = next((file for file in files if not folders.is_pythons(file)), "")
    if caller.startswith(f"{_PACKAGE}/"):
        return "lockstitch"
    kept = what_keeps(native) if native else ""
    if kept == "limited lock":
        # One that waits for the interpreter's lock stands in such a one, too.
        return "sleep" if innermost.f_code.co_filename == threading.__file__ else ""
    return kept


def _is_for_questions(innermost: FrameType) -> bool:
    """Returns whether a thread does nothing but answer questions."""
    *_, outermost = frames_of(innermost)
    return outermost.f_code.co_filename.startswith(_HERE)


def _stack(innermost: FrameType) -> tuple[CodeLine, ...]:
    frames = itertools.islice(frames_of(innermost), _DEEPEST)
    return tuple(reversed([code_line(frame) for frame in frames]))
