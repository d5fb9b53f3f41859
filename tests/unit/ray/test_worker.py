from __future__ import annotations

import os
import stat

import pytest

from lockstitch.errors import RemoteError
from lockstitch.launcher_link.process import JOB, WorkerDismissed
from lockstitch.ray.calls import Call
from lockstitch.ray.worker import HvdWorker, InMemoryFile, Outcome
from lockstitch.trust import Secret
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, "of another job")
    monkeypatch.setenv(FILE_VARIABLE, "")
    monkeypatch.setenv("HOROVOD_RANK", "")


@pytest.fixture
def worker():
    worker = HvdWorker()
    yield worker
    if worker._secret is not None:
        worker._secret.close()
    if worker._held is not None:
        worker._held.close()


def test_the_secret_lies_in_memory_and_the_environment_only_names_where(worker):
    secret = Secret.make()
    worker.prepare({"HOROVOD_RANK": "3"}, secret.text())
    assert os.environ["HOROVOD_RANK"] == "3"
    assert VARIABLE not in os.environ
    assert not any(secret.text() in value for value in os.environ.values())
    assert Secret.from_file(os.environ[FILE_VARIABLE]) == secret
    assert Secret.from_file(os.environ[FILE_VARIABLE]) == secret  # whoever reads it, and how often
    again = Secret.make()
    worker.prepare({}, again.text())
    assert Secret.from_file(os.environ[FILE_VARIABLE]) == again


def test_the_file_is_for_its_user_alone_and_gone_when_it_is_closed():
    file = InMemoryFile("5a" * 32)
    status = os.stat(file.path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0
    path = file.path
    file.close()
    file.close()
    assert not os.path.exists(path)


def test_a_port_is_held_until_the_next(worker):
    first = worker.hold_port()
    assert worker.hold_port() != first


def test_functions_get_the_object_of_the_worker_or_their_own_arguments(worker):
    assert worker.execute(Call(lambda executable: executable)) is None
    worker.begin(Call(lambda *args, **kwargs: (args, kwargs), [1], {"a": 2}))
    assert worker.execute(Call(lambda executable: executable)) == ((1,), {"a": 2})
    assert worker.execute(lambda executable: executable[1]) == {"a": 2}  # by its handle
    assert worker.run(Call(lambda x, y: x - y, [5], {"y": 2})) == 3


def test_who_raises_has_left_the_job(worker):
    left = []
    JOB.take_part(lambda: left.append(True))

    def fail():
        raise ValueError("the bug")

    with pytest.raises(ValueError, match="the bug"):
        worker.run(Call(fail))
    assert left == [True]


def test_who_exits_has_failed_where_an_actor_would_only_end(worker):
    def leave():
        raise SystemExit(3)

    with pytest.raises(RemoteError, match=r"ended by sys\.exit\(3\)"):
        worker.run(Call(leave))


def test_who_has_no_rank_any_more_is_told_apart_from_who_has_finished(worker):
    def leave():
        raise WorkerDismissed("the training has finished")

    assert worker.live(Call(leave), None, False) == Outcome(True, None)
    begin = Call(dict, [], {"a": 1})
    assert worker.live(Call(lambda it: it["a"]), begin, True) == Outcome(False, 1)
