"""How long the value of a remote reference lives: the protocol, as two tables without any I/O.

A value lives on its *owner*. Every other worker that can reach it is a *user* and holds a *fork* of
its own. The owner keeps the value while it counts at least one fork. `OwnerSide` and `UserSide` are
told what happens (`rref.events`) and answer with what must be done; each worker has both.

Assumptions. Control messages may be lost, repeated and reordered. Messages with user values may be
late and are delivered once at most; when one is lost, its sender is told so (`Withdrawn`, or the
death of a worker), and what it carried is held until then. Workers stop, and do not come back under
the same generation.

Guarantees.
    G1  The owner learns of every fork's deletion.
    G2  A parent fork is not deleted before the owner counts its child.
    G3  The forks of a worker that died are reclaimed.
    G4  References to values of a worker that died are orphaned: every use of them fails.
Hence no value is freed while a live user holds it or a fork of it is under way, and each is freed
some time after the last fork was dropped.

How a fork gets counted (its *claim*); every message here but `RemoteCall` is sent until answered:
    owner creates    A value is made at the owner. It is counted once it is shared.
    owner → user     The owner counts the fork itself before the message leaves; nothing is claimed.
    remote()         `RemoteCall` claims the caller's fork, and any answer to it settles the claim.
                     If none comes soon, `ForkRequest` claims it again: a lost call stalls nothing.
    user → user      The parent remembers the child. The child sends `ForkRequest` to the owner,
                     who answers `ForkAccept`; then `ChildAccept` to the parent, who answers
                     `ChildNoted`.
    user → owner     In a request nothing is forked: the user *lends* its own fork, whose claim the
                     request repeats, and keeps it until the answer is there. In an answer the
                     parent remembers a child; the owner, which needs no fork of its own value, only
                     sends `ChildAccept`.
    fork of a fork   A child may fork before its own claim is settled: it is then a parent like any
                     other, and stays for the same reason (G2).
    deletion         `ForksDeleted`, answered by `DeletionsNoted`; one batch at a time per owner,
                     what is dropped meanwhile goes with the next one. A fork dropped before its
                     claim, or that of a child, is settled is deleted when both are.

Why a late or repeated claim cannot bring a deleted fork back, without remembering deleted forks:
each user numbers its claims (*serial*). A batch of deletions carries the *floor*, the smallest
serial whose claim is unsettled, and a deletion waits until the floor has passed its own serial. So
the owner can refuse every unknown fork below the floor, and remembers one number for each user.
A `RemoteCall` that timed out counts as settled: if the call comes after a deletion it is refused.
So whoever else waits for the value is told that it will not come (`Barren`) when its maker's forks
are deleted before the call has come. They are as soon as the call fails, and with their objects
where it timed out, since then it may still come.

A Ctrl-C may strike anywhere in a table. Then the same event is told once more, before any other,
and ends in what it would have ended in: whatever belongs together is written without a call in
between, what is found done is left so, and what the first attempt has told nobody is told.

A death takes away what a worker held and what it answered for. Forks that it had passed on may
still be under way, so the owner, and parents that wait for it, let `GRACE_SECONDS` go by first.

owner_side.py  what the owner counts
user_side.py   what a user knows of the forks that it holds
"""

from lockstitch.rref.lifetime.owner_side import OwnerSide
from lockstitch.rref.lifetime.user_side import MAX_BATCH, State, UserSide

__all__ = ["MAX_BATCH", "OwnerSide", "State", "UserSide"]
