"""The connections of a speaker: those of the ranks below it, as rank 0 has them, and its own to its
parent. One thread reads all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d.coordinator_link import CoordinatorServer
from lockstitch.collectives.c10d.messages import Welcome
from lockstitch.collectives.c10d.routes import Addressed
from lockstitch.collectives.c10d.speaker import Speaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Clock
    from lockstitch.collectives.c10d.link_options import LinkOptions
    from lockstitch.collectives.c10d.messages import Message
    from lockstitch.collectives.c10d.tree import Place
    from lockstitch.link.line import Line
    from lockstitch.transport import Connection, Listener, Transport

# How often a speaker looks who is missing, while somebody is.
_LOOK_SECONDS: Final = 0.5
# How long it may take until it hears that it may go.
_LEAVE_SECONDS: Final = 5.0


class SpeakerServer(CoordinatorServer):
    """The ends of a speaker at `place`. `line` leads to its parent; the ranks below connect to
    `listener`, and are expected within the time of the `link_options`."""

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        place: Place,
        line: Line[Connection],
        transport: Transport,
        listener: Listener,
        hear: Callable[[Message], None],
        *,
        link_options: LinkOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._parent = place.parent
        self._line = line
        self._speaker = Speaker(place)
        self._looked_at = clock.now()
        self._leaves_at: float | None = None
        super().__init__(
            self._speaker,
            transport,
            listener,
            hear,
            link_options,
            expected=place.branches,
            speakers=place.speakers,
            clock=clock,
        )

    # ------------------------------------------------------------ the thread

    def _serve(self) -> None:
        self._ranks[id(self._line.stream)] = self._parent
        self._lines[self._parent] = self._line
        self._pulse.add(self._line)
        self._poller.add(self._line.stream)
        self._poller.arm(self._line.stream)
        super()._serve()
        self._send(self._speaker.leave())

    def _welcome(self) -> None:
        self._send([Addressed(self._parent, Welcome())])

    def _pass_time(self) -> None:
        if self._seconds_to_look() == 0.0:
            self._looked_at = self._clock.now()
            self._send(self._speaker.pass_time())

    def _may_end(self) -> bool:
        if self._leaves_at is None:
            self._leaves_at = self._clock.now() + _LEAVE_SECONDS
        is_late = self._clock.now() >= self._leaves_at
        return self._speaker.is_loose or self._parent not in self._lines or is_late

    def _remaining_seconds(self) -> float | None:
        waits = [super()._remaining_seconds(), self._seconds_to_look()]
        if self._leaves_at is not None:
            waits.append(max(0.0, self._leaves_at - self._clock.now()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _seconds_to_look(self) -> float | None:
        if not self._speaker.is_waiting:
            return None
        return max(0.0, self._looked_at + _LOOK_SECONDS - self._clock.now())
