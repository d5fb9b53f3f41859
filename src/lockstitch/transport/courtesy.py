"""Whether whoever spins offers the CPU from the start, as others want it for moments.

Where a host has more workers than CPUs, a spinner that keeps its CPU keeps it from a worker that
has something to do: what takes 20 µs then takes 100. Where each worker has a CPU of its own, to
keep it is quicker. Nobody tells which it is, but a yield does: it takes long where somebody else
has run meanwhile. After such a yield the process is courteous for 5 ms, and so on.

Two that share a CPU while another is idle would give it to each other for ever. So whoever has been
courteous for a while sleeps in place of spinning for 3 ms: who is woken is put on a CPU that is
idle. Where there is none, it is courteous for twice as long the next time, up to 80 ms.
"""

from __future__ import annotations

from typing import Final

# Who gets the CPU back only after so long has let somebody else run on it.
LONG_YIELD_SECONDS: Final = 8e-6
_COURTEOUS_SECONDS: Final = 5e-3
_REST_SECONDS: Final = 3e-3
_MOST_SECONDS: Final = 80e-3
# Who has had a CPU for itself for so long begins anew.
_CALM_SECONDS: Final = 20e-3


class Courtesy:
    """That of one process. Times are those of one clock, in seconds. Threads that use it in the
    same instant do no harm."""

    def __init__(self) -> None:
        self.offers_until = 0.0
        """Until when to offer the CPU from the start."""
        self.rests_until = 0.0
        """Until when to sleep, and not to spin."""
        self._since = 0.0
        self._before_rest = _COURTEOUS_SECONDS

    def note_long_yield(self, now: float) -> None:
        """Somebody else has run on this CPU, until just now."""
        if now > max(self.offers_until, self.rests_until) + _CALM_SECONDS:
            self._before_rest = _COURTEOUS_SECONDS
        if now > self.offers_until:
            self._since = now
        if now - self._since > self._before_rest:
            self._before_rest = min(2 * self._before_rest, _MOST_SECONDS)
            self.rests_until = now + _REST_SECONDS
            self.offers_until = now
        else:
            self.offers_until = now + _COURTEOUS_SECONDS
