"""The gateway of a host: whoever has the job's secret can ask there what the job's workers do.

One process of a host opens it, of those that launchers number the first, where it has a secret and
is about to meet others over a network. When all have met, and they are of several hosts, each
gateway learns those of the others, and commands of this user on its host find them
(`PRESENCE.tell_elsewhere`); a gateway of a job of one host is closed again. LOCKSTITCH_ATTACH_PORT
names a port for it; then it is there for a job of one host, too. Where LOCKSTITCH_PORT_RANGE says
which ports may be used, it takes none of them unless that variable is set, since each may be needed
by a worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.attach.asking import Answers, all_entries, ask
from lockstitch.attach.far import (
    FAR,
    GATEWAY,
    MOST_BYTES,
    PURPOSE,
    ask_everywhere,
)
from lockstitch.attach.folder import Elsewhere
from lockstitch.attach.outlines import outlines
from lockstitch.attach.presence import ATTACH_VARIABLE, PRESENCE
from lockstitch.attach.values import FarAnswer, FarQuestion
from lockstitch.forks import abandon_in_child
from lockstitch.launcher_link.server import LauncherServer
from lockstitch.link.addresses import is_loopback, with_port
from lockstitch.link.ports import VARIABLE as PORT_RANGE
from lockstitch.rendezvous.large_group import MOST_WHO_READ_ALL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.rendezvous.static_group import StaticRoster
    from lockstitch.trust import Secret

PORT_VARIABLE: Final = "LOCKSTITCH_ATTACH_PORT"
_LOCAL_RANKS: Final = (
    "LOCAL_RANK HOROVOD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID"
).split()
_MOST_GUESTS: Final = 64
_ANSWER_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


class _Server(LauncherServer):
    me = GATEWAY
    codec = FAR
    most_bytes = MOST_BYTES
    patience_seconds = _ANSWER_SECONDS


class Gateway:
    """Listens at a port of an address and answers, on threads of its own. Raises `OSError`."""

    def __init__(self, host: str, port: int, secret: Secret) -> None:
        self._selector = selectors.DefaultSelector()
        try:
            self._server = _Server(
                self._selector,
                secret,
                self._hear,
                f"tcp:{with_port(host, port)}",
                most_guests=_MOST_GUESTS,
            )
        except BaseException:
            self._selector.close()
            raise
        self._is_closed = False
        self._waking, self._wakes = os.pipe()
        self._selector.register(self._waking, selectors.EVENT_READ, lambda: None)
        abandon_in_child(self)
        self._thread = threading.Thread(target=self._run, name="lockstitch gateway", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Gateway at {self.address}{' · closed' if self._is_closed else ''}>"

    @property
    def address(self) -> str:
        """Where it listens, `host:port`."""
        return self._server.address.removeprefix("tcp:")

    def close(self) -> None:
        """Listens no more; harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._wakes)  # wakes the thread
            self._thread.join()

    def abandon(self) -> None:
        """A forked child lets go of it."""
        if self._is_closed:
            return  # its descriptors may be somebody else's by now
        self._is_closed = True
        self._server.abandon()
        for descriptor in (self._waking, self._wakes):
            os.close(descriptor)

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(self._server.seconds_to_next()):
                key.data()
            self._server.pass_time()
        self._server.close()
        self._selector.close()
        os.close(self._waking)

    def _hear(self, asker: int, message: Any) -> None:
        if isinstance(message, FarQuestion):
            threading.Thread(
                target=self._answer, args=(asker, message), name="lockstitch answer", daemon=True
            ).start()

    def _answer(self, asker: int, asked: FarQuestion) -> None:
        answers = answers_of_own_job(asked)
        told = FarAnswer(tuple(answers.reports), tuple(answers.silent), tuple(answers.unreached))
        with contextlib.suppress(OSError):  # whoever asked is gone
            self._server.tell(asker, told)


class HostGateway:
    """What of gateways concerns this process. A process has one, `HOST_GATEWAY`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gateway: Gateway | None = None
        self._secret: Secret | None = None
        self._others: dict[str, None] = {}
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<HostGateway · {self._gateway or 'none'}>"

    def offer(self, host: str | None, secret: Secret | None, environment: Mapping[str, str]) -> str:
        """Opens the gateway at an address of this host, where there is to be one in this process.
        Returns where it is, for others of the group; nothing where there is none."""
        if host is None or secret is None or not _is_wanted(host, environment):
            return ""
        with self._lock:
            if self._gateway is None:
                self._secret = secret.of(PURPOSE)
                try:
                    port = int(environment.get(PORT_VARIABLE) or 0)
                    self._gateway = Gateway(host, port, self._secret)
                except (OSError, ValueError, OverflowError) as error:
                    _log.info("commands on other hosts do not see this one: %s", error)
                    return ""
            return self._gateway.address

    def learn(self, roster: StaticRoster, environment: Mapping[str, str]) -> None:
        """Takes in where the gateways of the other hosts of a group are, which has met."""
        with self._lock:
            gateway, secret = self._gateway, self._secret
            if gateway is None or secret is None:
                return
            try:
                found = gateways_of(roster)
            except RuntimeError as error:  # the store is gone; nobody's work depends on this
                _log.info("commands on this host do not see other hosts: %s", error)
                return
            if not found and not self._others and not environment.get(PORT_VARIABLE):
                self._gateway = None
                gateway.close()
                return
            self._others |= dict.fromkeys(found)
            elsewhere = Elsewhere(tuple(self._others), secret.text())
            PRESENCE.tell_elsewhere(gateway.address, elsewhere)

    def close(self) -> None:
        """Closes the gateway; harmless when repeated."""
        with self._lock:
            gateway, self._gateway, self._others = self._gateway, None, {}
        if gateway is not None:
            gateway.close()

    def abandon(self) -> None:
        """A forked child has none."""
        self._lock = threading.Lock()
        self._gateway = None
        self._others = {}


def gateways_of(roster: StaticRoster) -> list[str]:
    """Returns the gateways of the hosts of a group, but for this process's own host. Of a large
    group only the first rank of each host is looked up."""
    hosts = roster.census.hosts
    found: dict[str, str | None] = {hosts[roster.me.id]: None}
    for rank, host in enumerate(hosts):
        if host not in found or (found[host] == "" and len(hosts) <= MOST_WHO_READ_ALL):
            member = roster.find(rank)
            found[host] = member.gateway if member is not None else ""
    return [each for each in found.values() if each]


def answers_of_own_job(asked: FarQuestion) -> Answers:
    """Asks the processes of this host that belong to the job of this one, and where it `is_whole`
    those of its other hosts, too."""
    places = {entry.pid: (entry, entry.read_card()) for entry in all_entries()}
    known = outlines([card for _, card in places.values() if card is not None])
    own = next((each for each in known if os.getpid() in {c.pid for c in each.cards}), None)
    entries = [] if own is None else [places[card.pid][0] for card in own.cards]
    return (ask_everywhere if asked.is_whole else ask)(entries, asked.question)


def _is_wanted(host: str, environment: Mapping[str, str]) -> bool:
    if environment.get(ATTACH_VARIABLE) == "0" or not PRESENCE.is_shown:
        return False
    local_rank = next((environment[name] for name in _LOCAL_RANKS if environment.get(name)), "0")
    if local_rank != "0":
        return False
    return bool(environment.get(PORT_VARIABLE)) or not (
        is_loopback(host) or environment.get(PORT_RANGE)
    )


HOST_GATEWAY: Final = HostGateway()
