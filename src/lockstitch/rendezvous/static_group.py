"""A group of `world_size` ranks that come together, stay, and may meet again on the same store.

- `meetings/<rank>`: how often this rank has come; its generation
- `meeting/<n>/<rank>`: a member's entry for the nth meeting
- `meeting/<n>/size`: the world size that the first of them was given, and its rank
- `meeting/<n>/<what>/<rank>`: what else all tell each other, in worlds that need it
- `meeting/<n>/refused/<rank>`: this rank has found what is wrong with the group

Each rank publishes its entry and waits for those of the others, one request each: requests in
proportion to the ranks, none of which waits behind a chain of others. The answers together grow
with their square, since everybody learns everybody's address: afterwards nobody needs the store,
which may go with rank 0. Where there are more than 64 ranks they meet in blocks, and look addresses
up when they need them (`large_group`).

Who was given another world size than the first calls the meeting off: the two would never agree on
when all are there. So does who was given the rank of one that still waits in the meeting before:
the two would wait for the others in different meetings.

Meetings are numbered by each rank for itself: the nth initialisation of one rank meets the nth of
all others, so entries of an earlier life are never mistaken for those of this one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo
from lockstitch.rendezvous.arrivals import ARRIVALS, arrivals_of
from lockstitch.rendezvous.census import Census
from lockstitch.rendezvous.large_group import (
    BLOCK,
    CALLED_OFF,
    MOST_WHO_READ_ALL,
    LargeMeeting,
    StoredTable,
)
from lockstitch.rendezvous.reaching import say
from lockstitch.rendezvous.roster import Member, Table, check_names_are_unique
from lockstitch.rendezvous.store import another_client, missing_keys, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.distributed_c10d import Store

    from lockstitch.attach.values import OtherWait

_FAREWELL_SECONDS = 5.0


class Members(Protocol):
    """Who is in a group, whether it is all known or looked up."""

    def find(self, who: str | int | WorkerId) -> Member | None: ...

    def members(self) -> list[Member]: ...

    def fetch(self, ranks: Iterable[int]) -> None: ...


class StaticRoster:
    """The members of a static group as one of them sees it: fixed once they have met."""

    def __init__(
        self,
        me: WorkerInfo,
        table: Members,
        withdraw: Callable[[], None],
        census: Census | None = None,
    ) -> None:
        self._me = me
        self._table = table
        self._withdraw = withdraw
        self._has_left = threading.Lock()
        self.census = census or Census.of(table.members())
        """What is known of all members, by rank."""

    def __repr__(self) -> str:
        return f"<StaticRoster of {self._me.name!r} · {self.size} members>"

    @property
    def me(self) -> WorkerInfo:
        """Who this worker is."""
        return self._me

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.census.hosts)

    def find(self, who: str | int | WorkerId) -> Member | None:
        """Returns the member of that name, rank or id; None when there is none. In a large group it
        may have to be looked up; raises `RpcError` where that cannot be any more."""
        return self._table.find(who)

    def members(self) -> list[Member]:
        """Returns all members, by rank; of a large group all have to be looked up, see `find`."""
        return self._table.members()

    def fetch(self, ranks: Iterable[int]) -> None:
        """Looks up, where that is necessary, members that will be asked for, all at once."""
        self._table.fetch(ranks)

    def leave(self) -> None:
        """Strikes this worker out of the store; harmless when repeated."""
        if self._has_left.acquire(blocking=False):
            with contextlib.suppress(RuntimeError):  # the store may have gone with rank 0
                self._withdraw()


class Met(NamedTuple):
    """What a meeting has brought to one rank: its own entry, the others, and what is known of
    all."""

    me: Member
    members: Members
    census: Census


def meet(
    store: Store,
    me: Callable[[int], Member],
    rank: int,
    world_size: int,
    timeout_seconds: float,
) -> Met:
    """Publishes this rank's entry, `me(generation)`; returns when all are there.

    Raises RuntimeError when ranks are missing after the timeout, when two have the same name, and
    at once when two have the same rank, or ranks were given different world sizes, or different
    secrets.
    """
    meeting = store.add(f"meetings/{rank}", 1) - 1
    _check_rank_is_free(store, meeting, rank)
    member = me(meeting & MAX_GENERATION)
    keys = _entry_keys(meeting, world_size)
    try:
        _check_world_size(store, meeting, rank, world_size)
    except RemoteProtocolError:  # another secret: the others find that out by this rank's entry
        with failing_together(store, member.info, world_size):
            store.set(keys[rank], member.encode())
            raise
    if world_size > MOST_WHO_READ_ALL:
        return _meet_in_blocks(store, member, meeting, world_size, timeout_seconds)
    store.set(keys[rank], member.encode())
    _check_rank_is_still_free(store, meeting, member.info, keys)
    _wait_for_all(store, meeting, rank, keys, timeout_seconds)
    with failing_together(store, member.info, world_size):
        entries = read_all(store, keys)
        members = [Member.decode(entry) for entry in entries if not _is_called_off(entry)]
        check_names_are_unique(members)
    for entry in entries:
        if _is_called_off(entry):
            raise _called_off(entry.decode(), rank)
    return Met(member, Table(members), Census.of(members))


def _meet_in_blocks(
    store: Store, member: Member, meeting: int, world_size: int, timeout_seconds: float
) -> Met:
    """Does the same where there are many ranks."""
    rank, name = member.info.id, member.info.name
    large = LargeMeeting(store, meeting, rank, world_size, BLOCK)
    if taken := large.take_name(name):
        call_off(store, world_size, meeting, f" ({taken})")
        raise RuntimeError(taken)
    store.set(large.entry_key(rank), member.encode())
    _check_rank_is_still_free(store, meeting, member.info, _entry_keys(meeting, world_size))
    found = large.census(timeout_seconds)
    if isinstance(found, Census):
        return Met(member, StoredTable(store, large, world_size, member), found)
    if isinstance(found, str):
        raise _called_off(found, rank)
    large.give_up(name)
    raise _give_up(store, meeting, rank, world_size, timeout_seconds, found)


def _entry_keys(meeting: int, world_size: int) -> list[str]:
    return [f"meeting/{meeting}/{each}" for each in range(world_size)]


def _called_off(why: str, rank: int) -> RuntimeError:
    return RuntimeError(f"the meeting was {why} while rank {rank} waited for others")


def _wait_for_all(
    store: Store, meeting: int, rank: int, keys: Sequence[str], timeout_seconds: float
) -> None:
    """Returns when the entries of all ranks are there. Raises RuntimeError when some are missing
    after the timeout; the store is then as if this rank had never come."""

    def ranks_of(missing: list[str]) -> list[int]:
        return [each for each, key in enumerate(keys) if key in missing]

    def notice(missing: list[str]) -> None:
        say(
            f"rank {rank} waits for ranks {ranks_of(missing)} of {len(keys)} to join; "
            f"it gives up after {timeout_seconds:g} s"
        )

    def awaited() -> OtherWait:
        ranks = [each for each, key in enumerate(keys) if not store.check([key])]
        return arrivals_of(ranks, len(keys))

    with ARRIVALS.awaited(awaited):
        missing = missing_keys(store, keys, timeout_seconds, notice)
    if missing:
        raise _give_up(store, meeting, rank, len(keys), timeout_seconds, ranks_of(missing))


def _give_up(
    store: Store, meeting: int, rank: int, size: int, seconds: float, missing: list[int]
) -> RuntimeError:
    """Takes this rank's entry back, so that the ranks can try again; returns the error."""
    store.delete_key(f"meeting/{meeting}/{rank}")
    store.delete_key(_size_key(meeting))
    store.add(f"meetings/{rank}", -1)
    return RuntimeError(
        f"rank {rank}, on host {socket.gethostname()}, waited {seconds:g} s for {size} ranks to "
        f"join, but ranks {missing} did not come, or gave up. Is world_size right, has each been "
        f"started, and does its host reach this one? (It is meeting number {meeting + 1} on this "
        "store; all ranks must have met as often.)"
    )


@contextlib.contextmanager
def failing_together(store: Store, me: WorkerInfo, world_size: int) -> Iterator[None]:
    """A context manager around a check that fails on all ranks or on none: a rank that fails waits
    a while until the others have failed too. The store goes with the program of one of them,
    perhaps before others have read what they are to check."""
    try:
        yield
    except (RuntimeError, ValueError):
        keys = [f"meeting/{me.generation}/refused/{rank}" for rank in range(world_size)]
        with contextlib.suppress(RuntimeError):  # it has gone
            # Before the word that lets the others go, for it does not end soon without a store.
            client = another_client(store)
            store.set(keys[me.id], "")
            if (
                world_size <= MOST_WHO_READ_ALL or me.id == 0
            ):  # of many, who most often has the store
                missing_keys(store, keys, _FAREWELL_SECONDS, waiting=client)
        raise


def exchange(
    store: Store, roster: StaticRoster, what: str, mine: str, timeout_seconds: float
) -> list[bytes]:
    """Returns what each member says of `what`, by rank, once all have said it. Raises RuntimeError
    naming those that have not in time."""
    me, members = roster.me, roster.members()
    keys = [f"meeting/{me.generation}/{what}/{member.info.id}" for member in members]
    store.set(keys[me.id], mine)
    if missing := missing_keys(store, keys, timeout_seconds):
        ranks = [each for each, key in enumerate(keys) if key in missing]
        raise RuntimeError(
            f"rank {me.id} waited {timeout_seconds} s to hear of {what} from ranks {ranks}"
        )
    return list(read_all(store, keys))


def first_objection(
    store: Store, roster: StaticRoster, what: str, mine: str, timeout_seconds: float
) -> str:
    """Returns what the first of the members objects, by rank; nothing where none does. All say it
    of one matter (`what`), and meet in blocks once more for that. Raises RuntimeError naming those
    that have not in time."""
    me = roster.me
    meeting = LargeMeeting(store, me.generation, me.id, roster.size, BLOCK, what=what)
    store.set(meeting.entry_key(me.id), Member(me, (), "", kind=mine).encode())
    found = meeting.census(timeout_seconds)
    if isinstance(found, Census):
        return next(filter(None, found.kinds), "")
    if isinstance(found, str):
        raise _called_off(found, me.id)
    raise RuntimeError(
        f"rank {me.id} waited {timeout_seconds:g} s to hear of {what} from ranks {found}"
    )


def call_off(store: Store, world_size: int, meeting: int = 0, why: str = "") -> list[Member]:
    """Ends the wait of all who are in `meet` for this meeting: somebody will not come. Returns who
    has come already, and so may be on its way on."""
    keys = _entry_keys(meeting, world_size)
    for key in keys:
        if not store.check([key]):
            store.set(key, f"{CALLED_OFF}{why}")
    if world_size > MOST_WHO_READ_ALL:
        LargeMeeting(store, meeting, 0, world_size, BLOCK).call_off(f"{CALLED_OFF}{why}")
    return [Member.decode(entry) for entry in read_all(store, keys) if not _is_called_off(entry)]


def _check_rank_is_free(store: Store, meeting: int, rank: int) -> None:
    """Raises `RuntimeError` where another worker of this rank still waits in the meeting before:
    one that has met the others and comes again has left a complete meeting behind."""
    former = meeting - 1
    if former < 0 or not store.check([_size_key(former)]):
        return
    size, _ = store.get(_size_key(former)).split()
    keys = _entry_keys(former, int(size))
    if (
        int(size) > MOST_WHO_READ_ALL
        and LargeMeeting(store, former, rank, int(size), BLOCK).is_complete()
    ):
        return
    missing = [each for each, key in enumerate(keys) if not store.check([key])]
    if not missing or rank in missing:
        return
    name = Member.decode(store.get(keys[rank])).info.name
    taken = _came_twice(rank, name, missing)
    call_off(store, int(size), former, f" ({taken})")
    raise RuntimeError(taken)


def _check_rank_is_still_free(
    store: Store, meeting: int, me: WorkerInfo, keys: Sequence[str]
) -> None:
    """Raises `RuntimeError` where another worker of this rank has come since: it could not know of
    this one."""
    if store.add(f"meetings/{me.id}", 0) <= meeting + 1:
        return
    missing = [each for each, key in enumerate(keys) if not store.check([key])]
    taken = _came_twice(me.id, me.name, missing)
    for each in (meeting, meeting + 1):
        call_off(store, len(keys), each, f" ({taken})")
    raise RuntimeError(taken)


def _came_twice(rank: int, name: str, missing: list[int]) -> str:
    return (
        f"rank {rank} came twice: worker {name!r} has that rank, and waits for ranks {missing}. "
        "Give each worker a rank of its own. If that worker was interrupted, or ended, start all "
        "workers anew"
    )


def _check_world_size(store: Store, meeting: int, rank: int, world_size: int) -> None:
    said = store.compare_set(_size_key(meeting), "", f"{world_size} {rank}").decode()
    try:
        first_size, first_rank = map(int, said.split())
    except ValueError as error:
        raise RemoteProtocolError(
            f"rank {rank}, on host {socket.gethostname()}, was given no secret, and another worker "
            "of its group was: give all the same (LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE)"
        ) from error
    if first_size != world_size:
        different = (
            f"rank {first_rank} was given world_size {first_size}, rank {rank} world_size "
            f"{world_size}; all ranks of a group must be given the same"
        )
        call_off(store, first_size, meeting, f" ({different})")
        raise RuntimeError(different)


def _size_key(meeting: int) -> str:
    return f"meeting/{meeting}/size"


def _is_called_off(entry: bytes) -> bool:
    return entry.startswith(CALLED_OFF.encode())
