"""What the connections between ranks are made with: the secret, the patience, and the names."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from lockstitch.collectives.rank_names import RankNames
from lockstitch.link.pulse import SILENT_SHARE
from lockstitch.trust import Secret

_LEAST_GREETING_SECONDS = 10.0
# A connection that is asked for once more, since the first packet was lost, takes a second.
_LEAST_CONNECT_SECONDS = 2.0
_MOST_NEWS_SECONDS = 1.0


@dataclass(frozen=True)
class LinkOptions:
    """How the ranks meet: by which secret, within which time, and at which rank; whether what they
    say then is authenticated; and how long one may be silent (`heartbeat`, 0: for ever)."""

    secret: Secret
    seconds: float = 60.0
    coordinator_rank: int = 0
    is_authenticated: bool = True
    heartbeat: float = 0.0
    names: RankNames = field(default_factory=RankNames, compare=False)
    """How messages to people call the ranks, and where these are."""

    @classmethod
    def of(
        cls, word: str, secret: Secret | None, seconds: float, coordinator_rank: int = 0
    ) -> LinkOptions:
        """`word` is what the rank `coordinator_rank` has told all others, and is never used again.
        Where the job has no secret, whoever has read it belongs here, and MACs would keep nobody
        out."""
        known = secret or Secret(sha256(word.encode()).digest())
        return cls(
            known.of("reductions", word.encode()), seconds, coordinator_rank, secret is not None
        )

    @property
    def greeting_seconds(self) -> float:
        """How long a rank may take to come, or to answer who comes. All of them have met before, so
        one that stays away has died, is cut off, or stands still."""
        return self._within_heartbeat(_LEAST_GREETING_SECONDS)

    @property
    def connect_seconds(self) -> float:
        """How long it may take to connect to a rank that listens: the system answers for it,
        whatever its process does."""
        return self._within_heartbeat(_LEAST_CONNECT_SECONDS)

    def _within_heartbeat(self, least: float) -> float:
        patience = max(self.heartbeat, least)
        return min(self.seconds, patience) if self.heartbeat else self.seconds

    @property
    def silence(self) -> float:
        """How long another host may acknowledge nothing: the rest of the heartbeat is for the other
        end to find that the connection has been given up, and for telling all. 0: for ever."""
        return SILENT_SHARE * self.heartbeat

    @property
    def news_seconds(self) -> float:
        """How long a rank whose connection to another one has broken waits for news of its death,
        which say more."""
        return min(_MOST_NEWS_SECONDS, self.heartbeat / 10 or _MOST_NEWS_SECONDS)

    def place_of(self, rank: int) -> str:
        """Where that rank is, as a part of a sentence."""
        place = self.names.place(rank)
        return f", on {place}" if place else ""
