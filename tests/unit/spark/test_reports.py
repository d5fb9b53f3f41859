"""What tasks tell the driver."""

from __future__ import annotations

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.spark.reports import CODEC, Failed, Finished, Reports, Running, Said
from lockstitch.trust import Secret


@pytest.mark.parametrize(
    "report",
    [
        Running(3, "10.0.0.1"),
        Said("stdout", "…\x1b[1mbold"),
        Failed("killed by SIGKILL", is_of_lost_peer=False, error="00ff"),
        Finished(),
    ],
)
def test_reports_survive_the_way(report):
    assert CODEC.decode(CODEC.encode(report)) == report


@pytest.mark.parametrize(
    "content", [b'["Said","stdin","x"]', b'["Running","0","h"]', b'["Pickle","x"]', b"\x80\x05."]
)
def test_what_is_no_report_is_refused(content):
    with pytest.raises(RemoteProtocolError, match="not a report of a task"):
        CODEC.decode(content)


def test_a_driver_that_is_not_there_is_told_with_what_to_look_at():
    with pytest.raises(ConnectionError, match=r"task 2 does not reach the driver .*driver\.host"):
        Reports("tcp:127.0.0.1:9", Secret.make(), 2)
