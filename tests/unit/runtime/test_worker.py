"""One participant: its services, and whose code is running."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from lockstitch.errors import NotInitializedError
from lockstitch.ids import WorkerId
from lockstitch.runtime import worker as worker_module
from lockstitch.runtime.worker import PROCESS, current_worker, has_current_worker
from tests.unit.runtime.stage import Background, Stage


class Service: ...


class Special(Service): ...


def name_of_current_worker() -> str:
    return current_worker().name


def test_without_a_worker_the_error_says_what_to_do() -> None:
    assert not has_current_worker()
    with pytest.raises(NotInitializedError, match="^RPC has not been initialized"):
        current_worker()


def test_worker_is_current_within_active_and_on_its_own_threads_only() -> None:
    with Stage() as stage:
        with stage.worker.active():
            assert current_worker() is stage.worker
            assert Background(has_current_worker).result() is False
        assert not has_current_worker()
        assert stage.agent.outgoing.call(stage.worker.id, name_of_current_worker) == "worker"


def test_worker_of_the_process_is_current_everywhere_until_it_closes() -> None:
    with Stage() as stage:
        PROCESS.worker = stage.worker
        assert Background(name_of_current_worker).result() == "worker"
        stage.worker.close()
        assert not has_current_worker()


def test_services_are_found_by_their_type_or_that_of_a_base() -> None:
    with Stage() as stage:
        worker, service = stage.worker, Special()
        with pytest.raises(LookupError, match="'worker' has no Service"):
            worker.service(Service)
        worker.plug(service)
        assert worker.service(Special) is service
        assert worker.service(Service) is service
        assert worker.obtain(Special, Special) is service
        assert type(worker.obtain(Service, Service)) is Service
        assert len(worker.services()) == 2


def test_identity_and_text() -> None:
    with Stage() as stage:
        assert stage.worker.id == WorkerId(0, 0)
        assert repr(stage.worker).startswith("<Worker 'worker' · rank 0 · <Agent")


def test_forked_child_begins_without_a_worker() -> None:
    with Stage() as stage:
        PROCESS.worker = stage.worker
        with stage.worker.active():
            child = os.fork()
            if not child:
                os._exit(0 if not has_current_worker() and stage.worker.abandoned else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert current_worker() is stage.worker
            assert not stage.worker.abandoned


def test_closed_worker_is_freed() -> None:
    with Stage() as stage:
        stage.agent.outgoing.call(stage.worker.id, abs, (-1,))
        stage.caller()
    gone = weakref.ref(stage.worker)
    del stage
    gc.collect()
    assert gone() is None


def test_an_interrupt_while_the_program_ends_lets_no_thread_abort_it(monkeypatch) -> None:
    standing_still = []

    def end_threads(_threads: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_module, "end_threads", end_threads)
    monkeypatch.setattr(
        worker_module, "stand_still_instead_of_aborting", lambda: standing_still.append(True)
    )
    with pytest.raises(KeyboardInterrupt):
        PROCESS.end()
    assert standing_still == [True]


def error_without_a_worker() -> str:
    with pytest.raises(NotInitializedError) as caught:
        current_worker()
    return str(caught.value)


def test_why_there_is_no_worker_is_said() -> None:
    try:
        PROCESS.parents, PROCESS.has_ended = None, False
        assert error_without_a_worker().startswith("RPC has not been initialized. Call init_rpc")
        with Stage() as stage:
            PROCESS.worker = stage.worker
        assert "RPC has not been initialized: this process's worker has" in error_without_a_worker()
    finally:
        PROCESS.has_ended = False


def test_a_forked_child_is_told_whose_it_is() -> None:
    with Stage() as stage:
        PROCESS.worker = stage.worker
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, error_without_a_worker().encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reader, 1000).decode()
        os.close(reader)
        os.close(writer)
    assert said.startswith("RPC has not been initialized in this process, which was forked from ")
    assert "'worker'" in said
