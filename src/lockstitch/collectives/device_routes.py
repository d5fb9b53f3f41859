"""The routes of tensors that are not in host memory, one for each process set.

With the first of them the ranks of a set tell each other where their tensors are (`placement`), by
an allgather in host memory. From then on such tensors go by NCCL, through a c10d backend of the
set's own, or through host memory (`staging`). What is submitted before that is known waits here;
the calls that submit it do not.

A rank that joins tells it too, if it has used a device. If it has not, nobody can know: until all
have joined tensors go through host memory, and then the ranks tell each other anew.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from lockstitch.collectives.placement import Placement, is_for_nccl
from lockstitch.collectives.requests import GLOBAL_SET
from lockstitch.devices.kinds import gpu, is_gpu_context_open
from lockstitch.devices.streams import Streams
from lockstitch.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lockstitch.collectives.c10d.backend import C10dBackend
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.nccl_bootstrap import NcclBootstrap
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.staging import Staging

_LOOK_SECONDS = 1.0


class SessionServices(Protocol):
    """The operations of a session that a route calls."""

    def tell_all(self, content: bytes, process_set: ProcessSet) -> Handle[torch.Tensor]:
        """Begins to tell the other ranks of a set some bytes, and to hear theirs."""
        ...

    def hear_all(self, handle: Handle[torch.Tensor]) -> list[bytes]:
        """Waits for what all have told."""
        ...


class DeviceRoutes:
    """The routes of one session, one for each process set. Without a `bootstrap` everything goes
    through host memory."""

    def __init__(
        self,
        services: SessionServices,
        bootstrap: NcclBootstrap | None,
        staging: Staging,
        pending: PendingOperations,
    ) -> None:
        self._services = services
        self._bootstrap = bootstrap
        self._staging = staging
        self._pending = pending
        self._routes: dict[int, _DeviceRoute] = {}
        self._lock = threading.Lock()

    def submit(self, handle: Handle[Any], process_set: ProcessSet) -> None:
        """Begins an operation with tensors on devices; raises what goes wrong at once."""
        handle.is_begun = True
        if self._bootstrap is None:
            self.submit_through_host(handle)
        else:
            self._route(process_set, self._bootstrap).submit(handle)

    def submit_through_host(self, handle: Handle[Any]) -> None:
        """Begins the same operation with copies in host memory."""
        try:
            self._staging.submit(handle)
        except BaseException as error:
            self._pending.fail(handle, error)
            raise

    def is_wanted(self) -> bool:
        """Returns whether others wait on a device for what this rank has not submitted."""
        return any(route.backend.is_wanted() for route in self._all() if route.backend is not None)

    def before_join(self, everybody: ProcessSet) -> None:
        """This rank is about to join: the devices of the others are told. What was submitted is on
        its way when it returns."""
        if self._bootstrap is not None:
            route = self._routes.get(GLOBAL_SET)
            if route is None and is_gpu_context_open():
                route = self._route(everybody, self._bootstrap)
            if route is not None:
                route.join()
        self._staging.drive_unattended()

    def after_join(self) -> None:
        """Notes that all ranks have joined."""
        route = self._routes.get(GLOBAL_SET)
        if route is not None:
            route.begin_anew()

    def close_set(self, set_id: int) -> None:
        """A process set is no longer used."""
        route = self._routes.pop(set_id, None)
        if route is not None:
            route.close()

    def close(self) -> None:
        """Ends all; the session is over already."""
        for route in self._all():
            route.close()

    def _all(self) -> list[_DeviceRoute]:
        with self._lock:
            return list(self._routes.values())

    def _route(self, process_set: ProcessSet, bootstrap: NcclBootstrap) -> _DeviceRoute:
        route = self._routes.get(process_set.id)
        if route is None:
            with self._lock:
                route = self._routes.get(process_set.id)
                if route is None:
                    made = _DeviceRoute(process_set, self._services, bootstrap, self, self._pending)
                    route = self._routes[process_set.id] = made
        return route


_JOIN = None
"""Stands among what waits where this rank has joined."""


class _DeviceRoute:
    """The route of one process set. Operations wait here until it is known."""

    def __init__(
        self,
        process_set: ProcessSet,
        services: SessionServices,
        bootstrap: NcclBootstrap,
        devices: DeviceRoutes,
        pending: PendingOperations,
    ) -> None:
        self._process_set = process_set
        self._services = services
        self._bootstrap = bootstrap
        self._devices = devices
        self._pending = pending
        self._lock = threading.Lock()
        self._waiting: list[tuple[Handle[Any], Streams] | None] = []
        self._thread: threading.Thread | None = None
        self._is_known = False
        self._is_for_now = False
        """Known only until all have joined."""
        self._error: BaseException | None = None
        self._is_closed = False
        self.backend: C10dBackend | None = None
        """Where it goes by NCCL."""

    def submit(self, handle: Handle[Any]) -> None:
        with self._lock:
            is_known = self._is_known
            if not is_known:
                handle.route = self
                tensors = (*handle.request.tensors, *(handle.request.outputs or ()))
                self._waiting.append((handle, Streams.of(tensors)))
                if self._thread is None:
                    self._ask(_first_device(tensors))
        if is_known:
            self._send(handle, self.backend, self._error)

    def join(self) -> None:
        thread = self._thread
        if thread is not None and self._waiting:
            thread.join()  # they belong before the join
        with self._lock:
            if not self._is_known:
                self._waiting.append(_JOIN)
                if self._thread is None:
                    self._ask(gpu())
                return
        if self.backend is not None:
            self.backend.join()

    def begin_anew(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join()
        with self._lock:
            if self._is_for_now:
                self._is_known = self._is_for_now = False

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        """Waits until the handle is done or on its way."""
        while not handle.is_done and handle.route is self:
            handle.wait(_LOOK_SECONDS)
            handle.rearm()
            self._pending.look_for_stalls(lambda _: (), self)
            if gives_up is not None and gives_up():
                return

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.join()
        if self.backend is not None:
            self.backend.close()
        self._bootstrap.cancel(self._process_set)

    # ------------------------------------------------------------ inside

    def _ask(self, device: torch.device | None) -> None:
        """Tells the others where this rank's tensors are; holds the lock."""
        if self._is_closed:
            self._pending.check()
        mine = self._bootstrap.announce(self._process_set, device)
        asked = self._services.tell_all(mine.encode(), self._process_set)
        self._thread = threading.Thread(
            target=self._settle, args=(asked, device), name="where tensors are", daemon=True
        )
        self._thread.start()

    def _settle(self, asked: Handle[torch.Tensor], device: torch.device | None) -> None:
        backend: C10dBackend | None = None
        error: BaseException | None = None
        is_for_now = False
        try:
            placements = self._heard(asked)
            if placements is None:
                is_for_now = True
            elif is_for_nccl(placements, self._process_set.ranks):
                backend = self._bootstrap.connect(self._process_set, device, placements[0])
        except BaseException as raised:  # noqa: BLE001 - everybody who waits gets it
            error = raised
        if backend is None:
            self._bootstrap.cancel(self._process_set)
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self.backend, self._error, self._is_for_now = backend, error, is_for_now
                    self._is_known = True
                    self._thread = None
                    return
            for each in waiting:
                self._let_go(each, backend, error)

    def _heard(self, asked: Handle[torch.Tensor]) -> list[Placement] | None:
        """Returns what all ranks have told; None where one has joined and will not."""
        try:
            return [Placement.decode(each) for each in self._services.hear_all(asked)]
        except CollectiveError:
            if self._pending.is_broken or self._process_set.id != GLOBAL_SET:
                raise
            return None

    def _let_go(
        self,
        each: tuple[Handle[Any], Streams] | None,
        backend: C10dBackend | None,
        error: BaseException | None,
    ) -> None:
        if each is _JOIN:
            if backend is not None:
                backend.join()
            return
        handle, streams = each
        with streams.current():
            try:
                self._send(handle, backend, error)
            except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
                self._pending.fail(handle, raised)
        handle.nudge()

    def _send(
        self, handle: Handle[Any], backend: C10dBackend | None, error: BaseException | None
    ) -> None:
        if error is not None:
            handle.route = None
            self._pending.fail(handle, error)
        elif backend is not None:
            handle.route = backend
            backend.submit(handle)
        else:
            self._devices.submit_through_host(handle)


def _first_device(tensors: tuple[torch.Tensor, ...]) -> torch.device | None:
    return next((tensor.device for tensor in tensors if not tensor.is_cpu), None)
