"""Who is here: workers find each other through a key-value store, and then no longer need it.

- `launchers`: what launchers tell a process: its rank, and where the ranks meet
- `store`: opening the store, and waiting on it
- `reaching`: whether it is there already, and telling who waits
- `launcher_store`: the store of a launcher that lets workers come and go
- `sealed_store`: the store of a job that has a secret
- `hosts`: which of a worker's addresses to take, and who has none for it
- `roster`: who a member is and where to reach it, and a table of members; no I/O
- `static_group`: a given number of ranks that come together and stay
- `large_group`, `census`: how so many of them meet that nobody can know all addresses
- `joining`: joining such a group
- `arrivals`: for whom this process waits meanwhile, for who looks on
- `gateway`: where whoever has the job's secret can ask what its workers of a host do
- `contacts`: where to find a group whose workers come and go
- `member_records`: who is and was in such a group, as a table that members can merge; no I/O
- `membership_protocol`: how its members keep that table the same everywhere; no I/O
- `membership_events`: what the protocol takes in and gives out

The store is torch's. **It is not authenticated**: whoever can reach it can write into it. It serves
discovery only, and nothing read from it is ever executed. Where the job has a secret, entries are
sealed with it, and who connects has to prove itself anyway.
"""

from lockstitch.link.machine import host_identity
from lockstitch.rendezvous.hosts import (
    choose_address,
)
from lockstitch.rendezvous.joining import check_name, join
from lockstitch.rendezvous.roster import Member
from lockstitch.rendezvous.sealed_store import sealed_by
from lockstitch.rendezvous.static_group import StaticRoster
from lockstitch.rendezvous.store import another_client, missing_keys, open_store

__all__ = [
    "Member",
    "StaticRoster",
    "check_name",
    "choose_address",
    "host_identity",
    "join",
    "another_client",
    "missing_keys",
    "open_store",
    "sealed_by",
]
