"""The ranks of one host: negotiation and tensors through one shared segment.

Who drives. Whoever submits or waits does the work, one thread at a time (`_lock`); there is no
coordinator and no cycle. Of several waiting threads one holds the *token*: it looks at the logs
again and again for a moment, then sleeps until somebody rings. The others sleep on their handles.
The holder completes their operations too, and passes the token on when its own is done.

Operations that nobody waits for are looked after by a background thread (`background_driver`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives.mappings import declare_private
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import GLOBAL_SET, Kind
from lockstitch.collectives.shared_memory.background_driver import BackgroundDriver
from lockstitch.collectives.shared_memory.channel import Channel
from lockstitch.collectives.shared_memory.publishing import LogFullError
from lockstitch.collectives.shared_memory.segment import Geometry, Segment
from lockstitch.collectives.shared_memory.token import Token
from lockstitch.collectives.shared_memory.wakeups import Wakeups
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.forks import abandon_in_child
from lockstitch.memory.arena import Arena, ArenaFullError
from lockstitch.memory.leases import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.shared_memory.introduction import SharedDescriptors

# Waking up costs about 50 µs, and whoever is woken may come to a processor where others are.
_SPIN_SECONDS = 300e-6
# Who gives the processor away for longer than this has given it to somebody.
_GIVEN_AWAY_SECONDS = 10e-6
_LOOK_SECONDS = 1.0
# How soon to look again for room that others give back without ringing.
_ROOM_SECONDS = 1e-3


class SharedMemoryBackend:
    """One rank's end. `known` is taken over."""

    name = "shared_memory"
    takes_devices = False

    def __init__(
        self, rank: int, geometry: Geometry, known: SharedDescriptors, pending: PendingOperations
    ) -> None:
        self._rank = rank
        self._pending = pending
        self._segment = Segment(known.segment, geometry)
        known.close_segment()
        self._arena = Arena(geometry.arena_bytes)
        self._wakeups = Wakeups(rank, known, self._segment.sleepers())
        self._lock = threading.RLock()
        self._token = Token()
        self._channels: dict[int, Channel] = {}
        self._open_channels: tuple[Channel, ...] = ()
        self._closing: list[Channel] = []
        self._has_left = False
        self._is_closed = False
        self._is_abandoned = False
        self._turns = 0
        self._background = BackgroundDriver(f"rank {rank} reductions", self)
        self.open_set(ProcessSet(GLOBAL_SET, tuple(range(geometry.ranks))))
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<SharedMemoryBackend of rank {self._rank} · {self._arena!r}>"

    @property
    def negotiation_bytes(self) -> int:
        return 8 * sum(channel.words_written for channel in self._channels.values())

    # ------------------------------------------------------------ the backend

    def submit(self, handle: Handle[Any]) -> None:
        if self._is_abandoned:
            self._check_process()
        try:
            while not self._try_submit(handle):
                self._sleep_without_token()
        except BaseException as error:
            self._pending.fail(handle, error)
            raise
        if not handle.is_done and self._background.is_parked and not handle.request.is_awaited:
            self._background.look_after()

    def _try_submit(self, handle: Handle[Any]) -> bool:
        with self._lock:
            if self._has_left:
                return True  # the handle has failed, or will at once
            if handle.request.is_deferred:
                self._turn()  # for those before it
            is_told = False
            try:
                self._channels[handle.request.process_set].submit(handle)
                is_told = True
                if not handle.request.is_deferred:
                    self._turn()
                if self._wakeups.is_asleep:
                    self._wakeups.wake_own()  # what the sleeper waits for may be done now
            except LogFullError:
                return False
            except ArenaFullError:
                self._check_hope(handle)
                return False
            except BaseException as error:
                # An interrupt: others may have been told, or not. Any other error that comes before
                # they are is this rank's alone, as that of a tensor which cannot be read.
                if is_told or not isinstance(error, Exception) or self._is_changing():
                    self._break(error)
                raise
        return True

    def _check_hope(self, handle: Handle[Any]) -> None:
        """Will there ever be more room?"""
        if all(channel.is_idle for channel in self._channels.values()):
            size = self._segment.geometry.arena_bytes
            raise CollectiveError(
                f"{handle.name!r} does not fit into the {size} bytes that rank {self._rank} shares "
                "with the others: raise `arena_bytes`"
            )

    def advance(self) -> None:
        self._check_process()
        with self._lock:
            self._turn()

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        if self._is_abandoned:
            self._check_process()
        try:
            while not handle.is_done:
                if gives_up is not None and gives_up():
                    return
                if not self._token.hold(lambda: self._drive(handle, gives_up)):
                    self._token.follow(handle, self._call_off_background, _LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - told to all: nobody goes on without this rank
            self._give_up(error)
        except BaseException:  # an interrupt: perhaps nobody waits for it any more
            handle.request.is_awaited = False
            self._background.look_after()
            raise

    def resident(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        count = 1
        for length in shape:
            count *= length
        size = max(count, 1) * dtype.itemsize
        with self._lock:
            try:
                place = self._arena.take(size)
            except ArenaFullError as error:
                raise CollectiveError(f"rank {self._rank} has no room: {error}") from error
        segment = self._segment
        address = segment.address + segment.arena_begins[self._rank] + place
        lease = self._arena.lease(place, segment.mapping)
        # Of its own storage, so that saving the tensor does not save the segment.
        memory = window(address, size, lease)
        flat = torch.frombuffer(memory, dtype=dtype, count=max(count, 1))
        declare_private(flat)
        return flat[:count].view(tuple(shape))

    def is_resident(self, tensor: torch.Tensor) -> bool:
        begin = self._segment.address + self._segment.arena_begins[self._rank]
        return begin <= tensor.data_ptr() < begin + self._segment.geometry.arena_bytes

    def open_set(self, process_set: ProcessSet) -> None:
        if process_set.includes(self._rank):
            with self._lock:
                self._channels[process_set.id] = Channel(
                    process_set,
                    self._rank,
                    self._segment,
                    self._arena,
                    self._pending,
                    self._wakeups,
                )
                self._closing = [each for each in self._closing if not each.is_idle]
                self._open_channels = (*self._channels.values(), *self._closing)

    def close_set(self, process_set: ProcessSet) -> None:
        with self._lock:
            closed = self._channels.pop(process_set.id, None)
            if closed is not None:
                # Others may still be reading what this rank has put there.
                self._closing = [each for each in [*self._closing, closed] if not each.is_idle]
            self._open_channels = (*self._channels.values(), *self._closing)

    def close(self) -> None:
        if self._is_abandoned or self._is_closed:
            return
        self._is_closed = True
        with self._lock:
            self._publish_leave()
        # Whoever is inside a sleep is woken, and gone when the token is free.
        self._wakeups.wake_own()
        self._background.close()
        self._token.wait()
        self._wakeups.close()

    def abandon(self) -> None:
        """In a forked child: the session is the parent's."""
        self._is_abandoned = True
        self._wakeups.close()

    # ------------------------------------------------------------ driving

    def _turn(self) -> bool:
        """One look at all logs; whether anything was new."""
        self._turns += 1
        is_news = False
        death: RankLostError | None = None
        channels = self._open_channels
        try:
            for channel in channels:
                if channel.advance():
                    is_news = True
                    death = death or channel.death
        except BaseException as error:
            if isinstance(error, Exception) or self._is_changing():
                self._break(error)
            raise
        if death is not None:
            self._break(death)
        return is_news

    def _is_changing(self) -> bool:
        return any(channel.is_changing for channel in self._open_channels)

    def is_wanted(self) -> bool:
        with self._lock:
            return any(channel.table.wants(self._rank) for channel in self._open_channels)

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        with self._looking() as is_looking:
            channel = self._channels.get(handle.request.process_set) if is_looking else None
            if channel is None:
                return None
            is_join = handle.request.kind is Kind.JOIN
            return channel.table.not_joined() if is_join else channel.missing(handle.name)

    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        with self._looking() as is_looking:
            tables = [each.table for each in self._open_channels] if is_looking else []
            return [
                (waiting.name, waiting.submitted)
                for table in tables
                for waiting in table.waiting()
                if self._rank in waiting.missing
            ]

    @contextlib.contextmanager
    def _looking(self) -> Iterator[bool]:
        """Has looked at all logs; False where somebody else works for long, or none may."""
        if self._is_abandoned or not self._lock.acquire(timeout=_LOOK_SECONDS):
            yield False
            return
        try:
            if not self._has_left:
                self._turn()
            yield True
        finally:
            self._lock.release()

    def _drive(
        self, handle: Handle[Any] | None, gives_up: Callable[[], bool] | None = None
    ) -> None:
        """Works until the handle is done; without one, until nothing is under way or somebody else
        wants to."""
        left = _SPIN_SECONDS
        begin = time.perf_counter()
        while not self._is_over(handle):
            with self._lock:
                is_news = self._turn()
            if is_news:
                left = _SPIN_SECONDS
                begin = time.perf_counter()
            elif left > 0:
                yielded = time.perf_counter()
                os.sched_yield()
                back = time.perf_counter()
                left -= yielded - begin
                # While another one has had the processor, this one has not spun.
                if back - yielded < _GIVEN_AWAY_SECONDS:
                    left -= back - yielded
                begin = back
            else:
                self._sleep(handle)
                if gives_up is not None and gives_up():
                    return
                left = _SPIN_SECONDS
                begin = time.perf_counter()

    def _is_over(self, handle: Handle[Any] | None) -> bool:
        if handle is not None:
            return handle.is_done
        return self._token.is_wanted or not len(self._pending) or self._has_left

    def _sleep(self, handle: Handle[Any] | None, timeout_seconds: float = _LOOK_SECONDS) -> None:
        """Until somebody rings; holds the token."""

        def has_come() -> bool:
            with self._lock:
                is_news = self._turn()
            return is_news or self._is_over(handle)

        try:
            dead = self._wakeups.sleep_unless(has_come, timeout_seconds)
        except OSError as error:
            self._give_up(error)
            return
        if dead is None:
            return
        if dead:
            self._handle_deaths(dead)
        self._pending.look_for_stalls(self._missing, give_up=self._give_up)

    def _sleep_without_token(self) -> None:
        """For a moment: others give room back without waking anybody."""
        if not self._token.hold(lambda: self._sleep(None, _ROOM_SECONDS)):
            threading.Event().wait(_ROOM_SECONDS)

    def _call_off_background(self) -> None:
        """If it is the one who drives."""
        if self._background.is_driving:
            self._token.is_wanted = True
            self._wakeups.wake_own()

    def drive_unattended(self) -> None:
        """What the background thread does: drives if nobody else does."""
        # The session has ended with what goes wrong, and others will be told.
        with contextlib.suppress(Exception):
            if not self._token.is_wanted:
                self._token.hold(lambda: self._drive(None))

    @property
    def turns(self) -> int:
        """How often somebody has looked at the logs."""
        return self._turns

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way that nobody may wait for soon."""
        return any(
            not handle.request.is_awaited and handle.route is None for handle in self._pending.all()
        )

    # ------------------------------------------------------------ ends

    def _handle_deaths(self, dead: list[int]) -> None:
        with self._lock:
            self._turn()  # what they had finished is finished
            lost = [rank for rank in dead if self._wakeups.is_watched(rank)]
            if lost:
                words = ", ".join(map(str, lost))
                self._break(RankLostError(f"rank {words} died (seen by rank {self._rank})"))

    def _break(self, error: BaseException) -> None:
        """The session is over: here, and for the others."""
        if not isinstance(error, CollectiveError):
            error = CollectiveError(
                f"the session ended when rank {self._rank} could not do its part: {error!r}"
            )
        self._pending.break_off(error)
        self._publish_leave(str(error), isinstance(error, RankLostError))

    def end(self, error: BaseException) -> None:
        """Ends the session with that, for the other ranks too, before it has begun here."""
        self._give_up(error)
        self.close()

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            self._break(error)

    def _publish_leave(self, reason: str = "", is_by_death: bool = False) -> None:
        if not self._has_left:
            self._has_left = True
            for channel in self._channels.values():
                channel.leave(reason, is_by_death)

    def _missing(self, handle: Handle[Any]) -> tuple[int, ...]:
        with self._lock:
            channel = self._channels.get(handle.request.process_set)
            return channel.missing(handle.name) if channel else ()

    def _check_process(self) -> None:
        if self._is_abandoned:
            raise CollectiveError(
                f"this process was forked from rank {self._rank}, which alone may use its session"
            )
