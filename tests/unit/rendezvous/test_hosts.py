"""Which address reaches a worker."""

from __future__ import annotations

import pytest

from lockstitch.ids import WorkerInfo
from lockstitch.link.machine import host_identity
from lockstitch.rendezvous import Member
from lockstitch.rendezvous.hosts import choose_address, reach, why_apart

BOTH = ["unix:/run/w0", "tcp:10.0.0.1:80"]


def test_the_first_address_that_reaches_is_taken():
    assert choose_address(BOTH, is_same_host=True) == "unix:/run/w0"
    assert choose_address(BOTH, is_same_host=False) == "tcp:10.0.0.1:80"
    assert choose_address(BOTH[1:], is_same_host=True) == "tcp:10.0.0.1:80"


def test_no_address_that_reaches_is_an_error():
    with pytest.raises(ConnectionError, match="from another host"):
        choose_address(BOTH[:1], is_same_host=False)
    with pytest.raises(ConnectionError, match="on this host"):
        choose_address([], is_same_host=True)


def member(rank, host, *addresses):
    return Member(WorkerInfo(f"w{rank}", rank), addresses, host, host_name=f"name-of-{host}")


UNIX, TCP, LOCAL = "unix:/run/w", "tcp:10.0.0.1:80", "tcp:127.0.0.1:80"


def test_workers_of_one_host_need_no_address_for_others():
    assert why_apart([member(0, "a", UNIX), member(1, "a", UNIX)]) == ""
    assert why_apart([member(0, "a", UNIX, TCP), member(1, "b", "tls:[fd00::1]:80")]) == ""


@pytest.mark.parametrize(
    ("addresses", "variable"),
    [([UNIX], "LOCKSTITCH_SECRET_FILE"), ([UNIX, LOCAL], "LOCKSTITCH_ADDRESS")],
    ids=["no secret", "loopback"],
)
def test_workers_that_other_hosts_cannot_call_are_named_with_what_to_do(addresses, variable):
    told = why_apart([member(0, "a", UNIX, TCP), member(1, "b", *addresses)])
    assert told.startswith("worker 'w0' is on host name-of-a, but worker 'w1' on host name-of-b")
    assert variable in told
    assert "(and 1 more like it)" in why_apart([member(n, "ab"[n], UNIX) for n in range(2)])


def test_error_of_a_connection_to_another_host_names_it_and_keeps_its_cause():
    class Transport:
        def connect(self, address, timeout_seconds):
            raise ConnectionError(f"no way to {address}") from FileNotFoundError("x")

    with pytest.raises(
        ConnectionError, match=r"^on host name-of-b: no way to tcp:10\.0\.0\.1:80"
    ) as e:
        reach(member(1, "b", TCP), Transport(), 1.0)
    assert isinstance(e.value.__cause__, FileNotFoundError)
    with pytest.raises(ConnectionError, match=r"^no way to unix:/run/w"):
        reach(member(1, host_identity(), UNIX), Transport(), 1.0)
