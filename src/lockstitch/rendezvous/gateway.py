"""The gateway of a host: whoever has the job's secret can ask there what the job's workers do.

One process of a host opens it, of those that launchers number the first, where it has a secret and
is about to meet others over a network. When all have met, and they are of several hosts, each
gateway learns those of the others, and commands of this user on its host find them
(`PRESENCE.tell_elsewhere`); a gateway of a job of one host is closed again. When its process is
gone another one of the host goes on in its place, and while it is stopped or hangs another one
answers for it (`attach.succession`). LOCKSTITCH_ATTACH_PORT names a port for it; then it is there
for a job of one host, too. Where LOCKSTITCH_PORT_RANGE says which ports may be used, it takes none
of them unless that variable is set, since each may be needed by a worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.attach.asking import Answers, all_entries, ask, own_folder
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
from lockstitch.attach.succession import Seat, borrow_listener
from lockstitch.attach.values import FarAnswer, FarQuestion
from lockstitch.forks import abandon_in_child
from lockstitch.launcher_link.server import LauncherServer
from lockstitch.link.addresses import is_loopback, with_port
from lockstitch.link.ports import VARIABLE as PORT_RANGE
from lockstitch.rendezvous.large_group import MOST_WHO_READ_ALL
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.link.sockets import SocketListener
    from lockstitch.rendezvous.static_group import StaticRoster

PORT_VARIABLE: Final = "LOCKSTITCH_ATTACH_PORT"
_LOCAL_RANKS: Final = (
    "LOCAL_RANK HOROVOD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID"
).split()
_MOST_GUESTS: Final = 64
_TRIES: Final = 20
_LOAN_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 10.0
_DEPUTY_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class _Server(LauncherServer):
    me = GATEWAY
    codec = FAR
    most_bytes = MOST_BYTES
    patience_seconds = _ANSWER_SECONDS
    delay_seconds = 0.0
    """So long whoever comes is left to others that listen at the same socket."""
    _left_at = float("-inf")

    def _accept(self, listener: SocketListener) -> None:
        now, since = self._clock.now(), self._left_at
        self._left_at = float("-inf")
        # Somebody still waits who did before; or somebody else does, who is welcome as well.
        if self.delay_seconds and now - since > self.delay_seconds + _PAUSE_SECONDS:
            self._left_at = now
            self._pause(self.delay_seconds)
            return
        super()._accept(listener)


class Gateway:
    """Listens at an address (as `SocketListener`) and answers, on threads of its own. Raises
    `OSError`. `is_deputy`: it lets in only whom nobody else does who listens there."""

    def __init__(self, address: str, secret: Secret, *, is_deputy: bool = False) -> None:
        self._selector = selectors.DefaultSelector()
        try:
            self._server = _Server(
                self._selector, secret, self._hear, address, most_guests=_MOST_GUESTS
            )
            if is_deputy:
                self._server.delay_seconds = _DEPUTY_SECONDS
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

    @property
    def descriptor(self) -> int:
        """That at which it listens."""
        return self._server.descriptor

    def take_over(self) -> None:
        """Is a deputy no more."""
        self._server.delay_seconds = 0.0

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
        self._seat: Seat | None = None
        """That of this process's own gateway."""
        self._awaited: set[str] = set()
        """The addresses of gateways that this one opens again when their processes are gone."""
        self._deputies: set[Gateway | None] = set()
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
                    self._gateway = Gateway(f"tcp:{with_port(host, port)}", self._secret)
                except (OSError, ValueError, OverflowError) as error:
                    _log.info("commands on other hosts do not see this one: %s", error)
                    return ""
                self._seat = _seat_of(self._gateway.address)
                if self._seat is not None:
                    self._seat.take()
                PRESENCE.lend = self._lend
            return self._gateway.address

    def learn(self, roster: StaticRoster, environment: Mapping[str, str]) -> None:
        """Takes in where the gateways of the other hosts of a group are, which has met."""
        with self._lock:
            gateway, secret = self._gateway, self._secret
            try:
                if gateway is None or secret is None:
                    self._await_end_of_own(roster, environment)
                    return
                found = gateways_of(roster)
            except RuntimeError as error:  # the store is gone; nobody's work depends on this
                _log.info("commands on this host do not see other hosts: %s", error)
                return
            if not found and not self._others and not environment.get(PORT_VARIABLE):
                self._gateway = None
                gateway.close()
                self._leave_seat()
                return
            self._others |= dict.fromkeys(found)
            self._tell(gateway, secret)

    def _tell(self, gateway: Gateway, secret: Secret) -> None:
        elsewhere = Elsewhere(tuple(self._others), secret.text())
        PRESENCE.tell_elsewhere(gateway.address, elsewhere)
        if self._seat is not None:
            self._seat.write(elsewhere)

    def _await_end_of_own(self, roster: StaticRoster, environment: Mapping[str, str]) -> None:
        """Has the gateway of this host opened again when its process is gone."""
        hosts = roster.census.hosts
        is_alone = len(set(hosts)) == 1 and not environment.get(PORT_VARIABLE)
        if is_alone or environment.get(ATTACH_VARIABLE) == "0" or not PRESENCE.is_shown:
            return
        address = gateway_at(roster, hosts[roster.me.id])
        seat = _seat_of(address) if address and address not in self._awaited else None
        if seat is not None:
            self._awaited.add(address)
            threading.Thread(
                target=self._succeed, args=(seat, address), name="lockstitch heir", daemon=True
            ).start()

    def _succeed(self, seat: Seat, address: str) -> None:
        deputy = self._deputy_at(seat, address)
        elsewhere = seat.await_vacancy()
        secret = None if elsewhere is None else Secret.from_text(elsewhere.secret)
        gateway = None if secret is None else deputy or _open_again(address, secret)
        with self._lock:
            self._deputies.discard(deputy)
            if elsewhere and secret and gateway and self._gateway is None:
                gateway.take_over()
                self._gateway, self._secret, self._seat = gateway, secret, seat
                self._others |= dict.fromkeys(elsewhere.addresses)
                PRESENCE.lend = self._lend
                self._tell(gateway, secret)
                return
        for each in (gateway, deputy):
            if each is not None:
                each.close()
        seat.close()

    def _deputy_at(self, seat: Seat, address: str) -> Gateway | None:
        """Listens where the gateway does, for those whom it does not let in; None where it lends
        nothing."""
        for _ in range(_LOAN_TRIES):  # it has met the others, and is about to say what it knows
            elsewhere = seat.read()
            if elsewhere is not None:
                break
            threading.Event().wait(_PAUSE_SECONDS)
        else:
            return None
        try:
            lent = borrow_listener(own_folder(), address)
            secret = Secret.from_text(elsewhere.secret)
            deputy = None if lent is None else Gateway(f"fd:{lent}", secret, is_deputy=True)
        except (OSError, RuntimeError) as error:
            _log.info("nobody answers for this host while the process that does hangs: %s", error)
            return None
        if deputy is not None:
            with self._lock:
                self._deputies.add(deputy)
        return deputy

    def _lend(self) -> int:
        gateway = self._gateway
        return -1 if gateway is None else gateway.descriptor

    def _leave_seat(self) -> None:
        if self._seat is not None:
            self._seat.close()
            self._seat = None

    def close(self) -> None:
        """Closes the gateway; harmless when repeated."""
        with self._lock:
            open_, self._gateway, self._others = {self._gateway, *self._deputies}, None, {}
            self._deputies = set()
        for gateway in open_:
            if gateway is not None:
                gateway.close()
        self._leave_seat()

    def abandon(self) -> None:
        """A forked child has none."""
        self._lock = threading.Lock()
        self._gateway = self._seat = None
        self._others = {}
        self._awaited, self._deputies = set(), set()


def gateways_of(roster: StaticRoster) -> list[str]:
    """Returns the gateways of the hosts of a group, but for this process's own host."""
    hosts = roster.census.hosts
    found = (
        gateway_at(roster, host) for host in dict.fromkeys(hosts) if host != hosts[roster.me.id]
    )
    return [each for each in found if each]


def gateway_at(roster: StaticRoster, host: str) -> str:
    """Returns the gateway of a host of a group; nothing where it has none. Of a large group only
    the first rank of the host is looked up."""
    hosts = roster.census.hosts
    for rank in (rank for rank, each in enumerate(hosts) if each == host):
        member = roster.find(rank)
        if member is not None and member.gateway:
            return member.gateway
        if len(hosts) > MOST_WHO_READ_ALL:
            break
    return ""


def answers_of_own_job(asked: FarQuestion) -> Answers:
    """Asks the processes of this host that belong to the job of this one, and where it `is_whole`
    those of its other hosts, too."""
    places = {entry.pid: (entry, entry.read_card()) for entry in all_entries()}
    known = outlines([card for _, card in places.values() if card is not None])
    own = next((each for each in known if os.getpid() in {c.pid for c in each.cards}), None)
    entries = [] if own is None else [places[card.pid][0] for card in own.cards]
    return (ask_everywhere if asked.is_whole else ask)(entries, asked.question)


def _seat_of(address: str) -> Seat | None:
    try:
        return Seat(own_folder(), address)
    except OSError as error:
        _log.info("nobody will answer for this host when the process that does is gone: %s", error)
        return None


def _open_again(address: str, secret: Secret) -> Gateway | None:
    """Opens the gateway at an address whose process has just ended; None where that cannot be."""
    for _ in range(_TRIES):
        try:
            return Gateway(f"tcp:{address}", secret)
        except (OSError, RuntimeError) as error:  # still taken; or this process, too, ends
            _log.info("other hosts cannot ask this one at %s for now: %s", address, error)
            threading.Event().wait(_PAUSE_SECONDS)
    return None


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
