"""Lines over two pipes, none of which anybody waits for: what cannot be written yet is kept."""

from __future__ import annotations

import os
import selectors
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_BYTES: Final = 1 << 16
_LONGEST_BYTES: Final = 1 << 22
"""What is longer without an end is cut there."""


class Lines:
    """Reads lines from one descriptor and writes to another, both of which it closes in the end.
    Entries of `selector` have as data what is to be called. `take` gets each line that is not
    empty, without its end; `on_end` is called once, when nothing more will come, or nothing can be
    written any more. `ping` may be called from any thread."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        incoming: int,
        outgoing: int,
        take: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self.heard = 0
        """How often something has come."""
        self.on_empty: Callable[[], None] = lambda: None
        """Called for an empty line."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when all has been written that was kept, or none of it can be any more."""
        self._selector = selector
        self._incoming: int | None = incoming
        self._outgoing: int | None = outgoing
        self._take = take
        self._on_end: Callable[[], None] | None = on_end
        self._rest = b""
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._is_watched = False
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)
        selector.register(incoming, selectors.EVENT_READ, self.read)

    def __repr__(self) -> str:
        state = "ended" if self._on_end is None else "open"
        return f"<Lines · {state} · {len(self._kept)} bytes to write>"

    @property
    def is_open(self) -> bool:
        """Whether something may still come."""
        return self._incoming is not None

    @property
    def kept_bytes(self) -> int:
        """How much waits to be written."""
        return len(self._kept)

    # ------------------------------------------------------------ writing

    def send(self, line: bytes) -> None:
        """Writes a line, now or later; nothing where nobody reads any more."""
        self.write(line + b"\n")

    def write(self, data: bytes) -> None:
        """Likewise bytes as they are."""
        with self._lock:
            if self._outgoing is None:
                return
            self._kept += data
        if not self._is_watched:
            self._flush()

    def ping(self) -> None:
        """Writes an empty line, unless something waits to be written, which will say as much.
        Raises `OSError` where nobody reads any more."""
        with self._lock:
            if self._outgoing is not None and not self._kept:
                with suppress(BlockingIOError):
                    os.write(self._outgoing, b"\n")

    def finish(self) -> None:
        """Waits until all is written, or cannot be any more, and closes both ends; harmless when
        repeated."""
        if self._outgoing is not None:
            os.set_blocking(self._outgoing, True)
            self._flush()
        self.close()

    def close_outgoing(self) -> None:
        """Writes no more, which the other end sees; harmless when repeated."""
        with self._lock:
            outgoing, self._outgoing = self._outgoing, None
            self._kept.clear()
        if outgoing is not None:
            if self._is_watched:
                self._is_watched = False
                self._selector.unregister(outgoing)
                self.on_written()
            os.close(outgoing)

    def close(self) -> None:
        """Closes both ends; harmless when repeated."""
        self.close_outgoing()
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._selector.unregister(incoming)
            os.close(incoming)

    def _flush(self) -> None:
        with self._lock:
            outgoing, is_broken = self._outgoing, False
            if outgoing is None:
                return
            try:
                while self._kept:
                    del self._kept[: os.write(outgoing, self._kept)]
            except BlockingIOError:
                pass
            except OSError:
                is_broken = True
        if is_broken:
            self.close_outgoing()
            self._end()
        elif bool(self._kept) != self._is_watched:
            self._is_watched = not self._is_watched
            if self._is_watched:
                self._selector.register(outgoing, selectors.EVENT_WRITE, self._flush)
            else:
                self._selector.unregister(outgoing)
                self.on_written()

    # ------------------------------------------------------------ reading

    def read(self) -> bool:
        """Takes what has come; False when nothing has, or nothing will any more."""
        if self._incoming is None:
            return False
        try:
            chunk = os.read(self._incoming, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # a terminal whose other end is gone
            chunk = b""
        if not chunk:
            self._read_end()
            return False
        self.heard += 1
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            if line:
                self._take(line)
            else:
                self.on_empty()
        return True

    def _read_end(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._selector.unregister(incoming)
            os.close(incoming)
        if self._rest:
            self._take(self._rest)
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    # ------------------------------------------------------------ as `link.pulse` wants it

    def signs_of_life(self) -> tuple[int, ...]:
        """Nothing is seen of the other end but what it says."""
        return ()

    def bound_silence(self, seconds: float) -> None:
        """The system can bound nothing for pipes."""
