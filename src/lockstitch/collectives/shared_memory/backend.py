"""The ranks of one host: negotiation and tensors through one shared segment.

The backend hands an operation to the process set that it belongs to (`open_sets`), and leaves
waiting and working to whoever drives (`driving`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives.mappings import declare_private
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import GLOBAL_SET
from lockstitch.collectives.shared_memory.adoption import adopt, place_of
from lockstitch.collectives.shared_memory.driving import Driver
from lockstitch.collectives.shared_memory.open_sets import OpenSets
from lockstitch.collectives.shared_memory.operations import NOWHERE
from lockstitch.collectives.shared_memory.publishing import LogFullError
from lockstitch.collectives.shared_memory.segment import Geometry, Segment
from lockstitch.collectives.shared_memory.spreading import Spreading
from lockstitch.collectives.shared_memory.wakeups import Wakeups
from lockstitch.errors import CollectiveError
from lockstitch.forks import abandon_in_child
from lockstitch.memory.arena import Arena, ArenaFullError
from lockstitch.memory.leases import window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.shared_memory.introduction import SharedDescriptors


class SharedMemoryBackend:
    """One rank's end. `known` is taken over."""

    name = "shared_memory"
    takes_devices = False
    opens_sets_alone = True

    def __init__(
        self, rank: int, geometry: Geometry, known: SharedDescriptors, pending: PendingOperations
    ) -> None:
        self._rank = rank
        self._pending = pending
        self._segment = Segment(known.segment, geometry)
        known.close_segment()
        self._arena = Arena(geometry.arena_bytes)
        sleepers = self._segment.sleepers()
        self._wakeups = Wakeups(rank, known, sleepers)
        self._sets = OpenSets(rank, self._segment, self._arena, pending, self._wakeups)
        spreading = Spreading(rank, self._segment.places(), sleepers)
        self._driver = Driver(rank, self._sets, pending, self._wakeups, spreading)
        self._is_closed = False
        self._is_abandoned = False
        self.open_set(ProcessSet(GLOBAL_SET, tuple(range(geometry.ranks))))
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<SharedMemoryBackend of rank {self._rank} · {self._arena!r}>"

    @property
    def negotiation_bytes(self) -> int:
        return 8 * self._sets.words_written

    # ------------------------------------------------------------ operations

    def submit(self, handle: Handle[Any]) -> None:
        if self._is_abandoned:
            self._check_process()
        handle.is_begun = True
        try:
            while not self._try_submit(handle):
                self._driver.wait_for_room()
        except BaseException as error:
            self._pending.fail(handle, error)
            raise
        if not handle.is_done and not handle.request.is_awaited:
            self._driver.look_after()

    def look_after(self) -> None:
        self._driver.look_after()

    def _try_submit(self, handle: Handle[Any]) -> bool:
        sets = self._sets
        with sets.lock:
            if sets.has_left:
                return True  # the handle has failed, or will at once
            if handle.request.is_deferred:
                sets.turn()  # for those before it
            is_told = False
            try:
                should_look = sets.submit(handle)
                is_told = True
                if should_look:
                    sets.turn()
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
                if is_told or not isinstance(error, Exception) or sets.is_changing:
                    sets.end(error)
                raise
        return True

    def _check_hope(self, handle: Handle[Any]) -> None:
        """Raises `CollectiveError` where there will never be more room."""
        if self._sets.is_idle:
            size = self._segment.geometry.arena_bytes
            raise CollectiveError(
                f"{handle.name!r} does not fit into the {size} bytes that rank {self._rank} shares "
                "with the others: raise `arena_bytes`"
            )

    def advance(self) -> None:
        self._check_process()
        with self._sets.lock:
            self._sets.turn()

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        if self._is_abandoned:
            self._check_process()
        self._driver.wait(handle, gives_up)

    def is_wanted(self) -> bool:
        return self._sets.is_wanted()

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        return None if self._is_abandoned else self._sets.missing(handle)

    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        return [] if self._is_abandoned else self._sets.wanted()

    # ------------------------------------------------------------ memory

    def rest(self, seconds: float) -> None:
        self._driver.rest(seconds)

    def resident(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        count = 1
        for length in shape:
            count *= length
        size = max(count, 1) * dtype.itemsize
        with self._sets.lock:
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
        is_inside = begin <= tensor.data_ptr() < begin + self._segment.geometry.arena_bytes
        return is_inside or place_of(tensor, self._segment) != NOWHERE

    def adopt(self, tensor: torch.Tensor) -> bool:
        with self._sets.lock:
            try:
                return adopt(tensor, self._segment, self._rank, self._arena)
            except ArenaFullError:
                return False

    # ------------------------------------------------------------ process sets, and the end

    def open_set(self, process_set: ProcessSet) -> None:
        if process_set.includes(self._rank):
            self._sets.open(process_set)

    def close_set(self, process_set: ProcessSet) -> None:
        self._sets.close(process_set)

    def close(self) -> None:
        if self._is_abandoned or self._is_closed:
            return
        self._sets.leave()
        self._is_closed = True  # only now: where an interrupt comes before, the next call tells
        self._driver.close()
        self._wakeups.close()

    def end(self, error: BaseException) -> None:
        """Ends the session with that, for the other ranks too, before it has begun here."""
        self._sets.end(error)
        self.close()

    def abandon(self) -> None:
        """Called in a forked child: the session is the parent's."""
        self._is_abandoned = True
        self._wakeups.abandon()

    def _check_process(self) -> None:
        if self._is_abandoned:
            raise CollectiveError(
                f"this process was forked from rank {self._rank}, which alone may use its session"
            )
