"""How owners and users of references agree who holds what (see `rref.lifetime`)."""

from __future__ import annotations

from lockstitch.ids import GlobalId
from lockstitch.wire.messages.kinds import Message, kind


@kind(16)
class ForkRequest(Message):
    """User → owner: I hold `fork` of `reference`; count it and answer `ForkAccept`.

    `serial` numbers the claims of one user, in the order in which it makes them.
    """

    reference: GlobalId
    fork: GlobalId
    serial: int


@kind(17)
class ForkAccept(Message):
    """Owner → user: `fork` is counted."""

    fork: GlobalId


@kind(18)
class ChildAccept(Message):
    """Child, or owner → parent: `fork` is counted, its parent may go (G2); answer `ChildNoted`."""

    fork: GlobalId


@kind(19)
class ForksDeleted(Message):
    """User → owner: these forks are gone (G1), pairs (reference, fork); answer `DeletionsNoted`.

    All claims of the user with a serial below `floor` are over and done: one that still comes in
    was sent before, and is a repetition or too late.
    """

    batch: int
    floor: int
    forks: tuple[tuple[GlobalId, GlobalId], ...]


@kind(20)
class DeletionsNoted(Message):
    """Owner → user: the deletions of `batch` are noted and need not be sent again."""

    batch: int


@kind(21)
class ChildNoted(Message):
    """Parent → child, or owner: the acceptance of `fork` is noted and need not be sent again."""

    fork: GlobalId
