"""What everybody has to know of all members of a group at once: who shares a host with whom, and
what is special about whom. No I/O here.

In a large group nobody reads the entries of all. Some members read some entries each, others put
together what those have found, and all read the outcome, in which what many have in common is
written once.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from lockstitch.errors import RemoteProtocolError
from lockstitch.link.codec import Codec
from lockstitch.link.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.rendezvous.roster import Member

_MOST_BYTES: Final = 1 << 26
_COMPLAINT: Final = "the store holds no census of a group"


@dataclass(frozen=True, slots=True)
class Census:
    """Of each member, by rank: a text that is the same for those of one host, and its kind
    (`Member.kind`)."""

    hosts: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, members: Iterable[Member]) -> Census:
        """Makes the census of members, which come by rank. Of their hosts nothing is kept but who
        shares one."""
        listed = list(members)
        digests = {each: _digest(each) for each in {member.host for member in listed}}
        hosts = tuple(digests[member.host] for member in listed)
        return cls(hosts, tuple(member.kind for member in listed))

    @classmethod
    def joined(cls, parts: Iterable[Census]) -> Census:
        """Makes one census of those of neighbouring ranks, which come in their order."""
        listed = list(parts)
        return cls(
            tuple(itertools.chain.from_iterable(part.hosts for part in listed)),
            tuple(itertools.chain.from_iterable(part.kinds for part in listed)),
        )

    def numbered(self) -> Census:
        """Returns the census of a whole group, in which hosts are numbers: they are shorter."""
        numbers: dict[str, str] = {}
        hosts = (numbers.setdefault(host, str(len(numbers))) for host in self.hosts)
        return Census(tuple(hosts), self.kinds)

    def encode(self) -> str:
        """Returns the census as a text for the store."""
        record = _Record(Runs.of(self.hosts), Runs.of(self.kinds))
        return base64.b85encode(zlib.compress(_CODEC.encode(record))).decode()

    @classmethod
    def decode(cls, text: bytes) -> Census:
        """Returns what `encode` has written. Raises `RemoteProtocolError` for anything else."""
        try:
            reader = zlib.decompressobj()
            content = reader.decompress(base64.b85decode(text), _MOST_BYTES)
            record = _CODEC.decode(content)
            hosts, kinds = _texts(record.hosts), _texts(record.kinds)
            if len(hosts) != len(kinds):
                raise ValueError("it counts members in two ways")
        except (ValueError, zlib.error, binascii.Error) as error:
            raise RemoteProtocolError(f"{_COMPLAINT}: {text[:200]!r} ({error})") from error
        return cls(hosts, kinds)


@dataclass(frozen=True, slots=True)
class _Record:
    """A census as it is written."""

    hosts: Runs
    kinds: Runs


_CODEC: Final = Codec(_Record, complaint=_COMPLAINT)


def _texts(runs: Runs) -> tuple[str, ...]:
    if None in runs.texts:
        raise ValueError("a text is missing")
    return tuple(text or "" for text in runs.row())


def _digest(host: str) -> str:
    return blake2b(host.encode(), digest_size=8).hexdigest()
