"""This process as others find it: its endpoint and its card.

A worker of `lockstitch run` is there from before its program begins; one that another launcher has
started from the import of `lockstitch.rpc`, `lockstitch.hvd` or `lockstitch.c10d` on, and any other
process from the moment at which it is about to meet others. LOCKSTITCH_ATTACH=0 keeps a process out
of sight.

Processes are of one job if they have a *key* in common: the job that the launcher names, the place
where they meet.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import logging
import os
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Final, Literal

from lockstitch import __version__
from lockstitch.attach import system
from lockstitch.attach.endpoint import Endpoint
from lockstitch.attach.folder import Entry, entries, folder_of, make_folder
from lockstitch.attach.report import REPORTS, make_report
from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import Card
from lockstitch.forks import abandon_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lockstitch.attach.folder import Elsewhere
    from lockstitch.attach.sources import Sources
    from lockstitch.attach.values import Question

JOB_VARIABLE: Final = "LOCKSTITCH_JOB"
ATTACH_VARIABLE: Final = "LOCKSTITCH_ATTACH"
_RANKS: Final = (
    "RANK HOROVOD_RANK LOCKSTITCH_WORKER OMPI_COMM_WORLD_RANK PMI_RANK MV2_COMM_WORLD_RANK"
).split()
_NAMESPACES: Final = ("PMIX_NAMESPACE", "SLURM_STEP_ID")

_log = logging.getLogger(__name__)


class Presence:
    """See the module. A process has one, `PRESENCE`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._meetings: dict[str, None] = {}
        self._entry: Entry | None = None
        self._endpoint: Endpoint | None = None
        self._kind: Literal["worker", "launcher"] = "worker"
        self._has_failed = False
        self._gateway = ""
        self.lend: Callable[[], int] = _nothing
        """The descriptor at which this process listens for other hosts, -1 where it does not: other
        processes of the job borrow it (`succession`)."""
        self._is_registered = False
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<Presence · {self._endpoint or 'not shown'}>"

    @property
    def is_shown(self) -> bool:
        """Whether others find this process."""
        return self._endpoint is not None

    @property
    def descriptor(self) -> int | None:
        """That of the endpoint, which stays open until the process ends."""
        return None if self._endpoint is None else self._endpoint.fileno()

    def show(self) -> None:
        """Lets others find this process, and answers them on a thread; harmless when repeated."""
        if self._endpoint is None:
            endpoint = self._open("worker")
            if endpoint is not None:
                endpoint.serve()

    def show_if_launched(self) -> None:
        """`show`, where a launcher has started this process as a worker; a process that this one
        starts by `multiprocessing` is none."""
        parents = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
        is_child = parents is not None and parents() is not None
        if rank_of(os.environ) and not is_child:
            self.show()

    def show_as(self, name: str) -> None:
        """`show`, as a worker of that name and no other: this is a child that a worker has forked
        for a part of its work."""
        self._sources.names.clear()
        self._sources.names.append(lambda: (name,))
        self.show()

    def forget_child(self, pid: int) -> None:
        """Removes what a child of this process has left, which has ended. Its number may have been
        given out again since."""
        with contextlib.suppress(OSError):
            for entry in entries(folder_of(os.environ, os.geteuid())):
                if entry.pid == pid and system.born(pid) != entry.born:
                    entry.remove()

    def show_launcher(self) -> Endpoint | None:
        """The same for a launcher, which answers in its own loop (`Endpoint.take`); None where
        there can be no endpoint, or a thread of this process answers already."""
        return self._open("launcher")

    def meet_at(self, key: str) -> None:
        """This process is about to meet others at a place: those who meet there are of one job.
        `key`: empty where the environment names the place."""
        if key and key not in self._meetings:
            self._meetings[key] = None
            self.renew()
        self.show()

    def renew(self) -> None:
        """Writes the card anew, since names or meetings have changed."""
        with self._lock:
            entry = self._entry
            if entry is not None:
                self._write(entry)

    def card(self) -> Card:
        """Returns who this process is now."""
        pid = os.getpid()
        return Card(
            pid=pid,
            born=system.born(pid) or 0,
            parent=os.getppid(),
            version=__version__,
            kind=self._kind,
            program=system.name_of_program([*sys.orig_argv]),
            job=os.environ.get(JOB_VARIABLE, ""),
            rank=rank_of(os.environ),
            names=self._sources.all_names(),
            keys=(*keys_of(os.environ), *self._meetings),
            started_at=system.started_at(pid),
            gateway=self._gateway,
        )

    def tell_elsewhere(self, gateway: str, elsewhere: Elsewhere) -> None:
        """Lets commands of this user know where the job's workers of other hosts can be asked, and
        where this process answers those of other hosts."""
        with self._lock:
            entry, self._gateway = self._entry, gateway
            if entry is not None:
                self._write(entry)
                try:
                    entry.write_elsewhere(elsewhere)
                except OSError as error:
                    _log.info("commands on this host do not see other hosts: %s", error)

    def close(self) -> None:
        """Others find this process no more; harmless when repeated."""
        with self._lock:  # who writes a card now is done before that is removed
            endpoint, self._endpoint, self._entry = self._endpoint, None, None
            if endpoint is not None:
                endpoint.close()

    def abandon(self) -> None:
        """A forked child begins unseen; where its parent has met others it has, too."""
        self._lock = threading.Lock()
        self._endpoint = self._entry = None
        self._gateway = ""
        self.lend = _nothing

    # ------------------------------------------------------------ inside

    def _open(self, kind: Literal["worker", "launcher"]) -> Endpoint | None:
        """Opens the endpoint, whose questions the caller has answered; None where it is open."""
        with self._lock:
            is_wanted = os.environ.get(ATTACH_VARIABLE, "1") != "0"
            if self._endpoint is not None or self._has_failed or not is_wanted:
                return None
            self._kind = kind
            folder, pid = folder_of(os.environ, os.geteuid()), os.getpid()
            entry = Entry(folder, pid, system.born(pid) or 0)
            try:
                make_folder(folder)
                entry.remove()  # of one with this number, on a system that tells no births
                self._write(entry)  # before it is found by its socket
                endpoint = self._endpoint_at(entry)
            except OSError as error:
                self._has_failed = True
                _log.info("commands such as `lockstitch status` do not see this process: %s", error)
                return None
            self._entry, self._endpoint = entry, endpoint
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.close)
        return endpoint

    def _endpoint_at(self, entry: Entry) -> Endpoint:
        try:
            return Endpoint(entry, self._answer, lambda: self.lend())
        except OSError:
            entry.remove()
            raise

    def _write(self, entry: Entry) -> None:
        try:
            entry.write_card(self.card())
        except OSError as error:
            _log.info("the card of this process could not be written: %s", error)

    def _answer(self, question: Question) -> bytes:
        return REPORTS.encode(make_report(self.card(), self._sources, question))


def _nothing() -> int:
    return -1


def rank_of(environment: Mapping[str, str]) -> str:
    """Returns the rank, or the number, that a launcher has given this process; empty without
    one."""
    found = (environment.get(name) for name in _RANKS)
    step_rank = environment.get("SLURM_PROCID") if "SLURM_STEP_NUM_TASKS" in environment else None
    return next((rank for rank in found if rank), step_rank or "")


def keys_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what this process has in common with others of its job, as far as launchers say."""
    keys = []
    if job := environment.get(JOB_VARIABLE):
        keys.append(f"job {job}")
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if host and port:
        keys.append(meeting_key(host, port))
    if launcher := environment.get("LOCKSTITCH_BOARD"):
        keys.append(f"launcher {launcher}")
    of_slurm = environment.get("SLURM_JOB_ID", "")
    return (
        *keys,
        *(f"{it} {of_slurm}.{environment[it]}" for it in _NAMESPACES if it in environment),
    )


def new_job(name: str) -> str:
    """Returns what LOCKSTITCH_JOB is to be for a new job of that name: one of the same name is
    another job."""
    return f"{name}/{secrets.token_hex(4)}"


def check_job_name(name: str) -> None:
    """Raises `ValueError` for what cannot be the name of a job."""
    if not name or not name.isprintable() or "/" in name or name.isdecimal():
        raise ValueError(
            f"a job cannot be called {name!r}: a name has printable characters, no slash, and is "
            "no number"
        )


def meeting_key(host: str, port: str | int) -> str:
    """Returns the key of those who meet at an address. All names of this host's loopback are
    one."""
    is_local = host in ("localhost", "")
    if not is_local:
        try:
            is_local = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_local = False
    return f"meeting {'localhost' if is_local else host}:{port}"


PRESENCE: Final = Presence(SOURCES)
