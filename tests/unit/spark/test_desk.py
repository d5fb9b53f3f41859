"""Where the driver hears what its tasks report."""

from __future__ import annotations

import errno
import io
import re
import selectors
import threading

import cloudpickle
import pytest

from lockstitch.runtime import remote_errors
from lockstitch.spark.desk import Desk, Outputs
from lockstitch.spark.reports import Failed, Finished, Reports, Running, Said
from lockstitch.trust import Secret

SECRET = Secret(bytes(32))
SECONDS = 30


class Driver:
    """A desk with its loop."""

    def __init__(self, noun="rank", **outputs):
        self.selector = selectors.DefaultSelector()
        self.desk = Desk(self.selector, SECRET, "tcp:127.0.0.1:0", Outputs(**outputs), noun)

    def hear_until(self, is_enough):
        while not is_enough():
            for key, _ in self.selector.select(0.01):
                key.data()

    def call(self, task, secret=SECRET):
        """Has a task call; returns its line, or why there is none."""
        made = []

        def greet():
            try:
                made.append(Reports(self.desk.server.address, secret, task))
            except ConnectionError as error:
                made.append(error)

        thread = threading.Thread(target=greet)
        thread.start()
        self.hear_until(lambda: not thread.is_alive())
        return made[0]

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.desk.close()
        self.selector.close()


def pickled(error):
    return cloudpickle.dumps(remote_errors.describe(error, "rank1")).hex()


def test_lines_are_marked_with_the_rank_and_go_where_the_caller_says():
    out, err = io.StringIO(), io.StringIO()
    with Driver(stdout=out, stderr=err) as driver, driver.call(0) as task:
        task.tell(Running(3, "h"))
        task.tell(Said("stdout", "ä line"))
        task.tell(Said("stderr", "a word"))
        driver.hear_until(err.getvalue)
    assert out.getvalue() == "[3]<stdout>:ä line\n"
    assert err.getvalue() == "[3]<stderr>:a word\n"


def test_lines_may_begin_with_the_time_and_go_to_the_drivers_own_stdout(capsys):
    with Driver(is_timed=True) as driver:
        with driver.call(0) as task:
            task.tell(Running(0, "h"))
            task.tell(Said("stdout", "x"))
        driver.hear_until(lambda: driver.desk.started and driver.desk.is_quiet)
    pattern = r"\w{3} \w{3} \d\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x\n"
    assert re.fullmatch(pattern, capsys.readouterr().out)


def test_who_failed_because_of_another_is_not_to_blame_though_heard_first():
    with Driver() as driver, driver.call(0) as first, driver.call(1) as second:
        first.tell(Running(0, "a"))
        first.tell(Failed("exit code 1", is_of_lost_peer=True, error=""))
        driver.hear_until(lambda: driver.desk.first_failure)
        assert driver.desk.first_failure.who == "rank 0"
        second.tell(Running(1, "b"))
        second.tell(Failed("exit code 1", is_of_lost_peer=False, error=pickled(KeyError("k"))))
        driver.hear_until(lambda: driver.desk.first_failure.who == "rank 1")
        failure = driver.desk.first_failure
    assert str(failure) == "rank 1 on b failed first: exit code 1; it raised KeyError('k')"
    assert isinstance(failure.error, KeyError)
    assert not failure.is_unexplained


def test_a_stream_without_a_character_of_a_line_gets_it_escaped():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1")
    with Driver(stdout=out) as driver, driver.call(0) as task:
        task.tell(Running(0, "h"))
        task.tell(Said("stdout", "ä → b"))
        driver.hear_until(raw.getvalue)
    assert raw.getvalue().decode("latin-1") == "[0]<stdout>:ä \\u2192 b\n"


def test_where_a_line_cannot_be_written_that_is_raised_and_no_task_blamed():
    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(errno.ENOSPC, "no space left")

    with Driver(stdout=Full()) as driver, driver.call(0) as task:
        task.tell(Running(0, "h"))
        task.tell(Said("stdout", "x"))
        with pytest.raises(OSError, match="no space left"):
            driver.hear_until(lambda: driver.desk.first_failure)
        assert driver.desk.first_failure is None


def test_a_task_learns_that_the_driver_has_hung_up():
    with Driver() as driver, driver.call(0) as task:
        waiting = threading.Thread(target=task.await_end)
        waiting.start()
        assert waiting.is_alive()
        driver.desk.close()
        waiting.join(SECONDS)
        assert not waiting.is_alive()


def test_a_task_that_hangs_up_without_a_word_has_failed():
    with Driver("worker") as driver:
        with driver.call(4) as task:
            task.tell(Running(2, "c"))
        driver.hear_until(lambda: driver.desk.first_failure)
        failure = driver.desk.first_failure
    assert (failure.who, failure.host, failure.is_unexplained) == ("worker 2", "c", True)
    assert "killed, or its executor was lost" in str(failure)


def test_one_that_has_finished_before_has_not():
    with Driver() as driver:
        with driver.call(0) as task:
            task.tell(Running(0, "a"))
            task.tell(Finished())
        driver.hear_until(lambda: driver.desk.started and driver.desk.is_quiet)
        assert driver.desk.first_failure is None


def test_who_has_not_the_secret_is_not_heard():
    with Driver() as driver:
        refusal = driver.call(0, Secret.make())
        assert "does not reach the driver" in str(refusal)
        assert isinstance(refusal, ConnectionError)
