from __future__ import annotations

import logging

import pytest

from lockstitch.hvd import logs
from lockstitch.hvd.logs import begin_logs, end_logs


@pytest.fixture
def log(monkeypatch):
    """A logger without parents, to which nobody listens."""
    made = logging.Logger("alone")
    monkeypatch.setattr(logs, "_log", made)
    return made


def test_messages_of_the_level_are_shown_with_the_rank(log, capsys):
    begin_logs({"HOROVOD_LOG_LEVEL": "Info", "HOROVOD_LOG_HIDE_TIME": "1"}, rank=3)
    begin_logs({"HOROVOD_LOG_LEVEL": "INFO", "HOROVOD_LOG_HIDE_TIME": "1"}, rank=2)
    log.info("once")
    log.debug("not this")
    end_logs()
    log.info("nor this")
    assert capsys.readouterr().err == "[rank 2] INFO: once\n"


def test_the_time_is_shown_unless_hidden(log, capsys):
    begin_logs({"HOROVOD_LOG_LEVEL": "fatal"}, rank=0)
    log.critical("late")
    assert capsys.readouterr().err.startswith("[2")


def test_nothing_is_changed_where_nothing_is_asked(log):
    begin_logs({}, rank=0)
    assert not log.handlers
    with pytest.raises(ValueError, match="none of trace, debug"):
        begin_logs({"HOROVOD_LOG_LEVEL": "loud"}, rank=0)


def test_the_programs_own_handlers_show_them(log, capsys):
    shown = []
    own = logging.Handler()
    own.emit = lambda record: shown.append(record.getMessage())
    log.addHandler(own)
    begin_logs({"HOROVOD_LOG_LEVEL": "DEBUG"}, rank=0)
    log.debug("here")
    assert shown == ["here"]
    assert capsys.readouterr().err == ""
