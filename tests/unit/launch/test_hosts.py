from __future__ import annotations

import socket

import pytest

from lockstitch.launch.hosts import is_here, parse_discovered, parse_hostfile, parse_hosts


def test_hosts_on_the_command_line():
    assert parse_hosts("h1:2, h2,h-3.example.org:4") == (
        ("h1", 2),
        ("h2", 1),
        ("h-3.example.org", 4),
    )
    assert parse_hosts("h1:2,h2:1,h1:3") == (("h1", 5), ("h2", 1))
    assert parse_hosts("[fe80::1]:2") == (("[fe80::1]", 2),)


def test_hosts_in_a_file():
    text = "# ours\nh1 slots=2\n\nh2 slots = 4 max_slots=8  # big\nh3:3\nh4\n"
    assert parse_hostfile(text) == (("h1", 2), ("h2", 4), ("h3", 3), ("h4", 1))


@pytest.mark.parametrize("line", ["h1 slts=2", "h1 2", "h1 slots=2 h2 slots=2", "h1 slots=two"])
def test_a_slip_in_a_file_is_no_host_with_one_slot(line):
    with pytest.raises(ValueError, match=f"'{line}' is no host: write host or host slots=2"):
        parse_hostfile(f"h0\n{line}\n")


def test_hosts_that_a_script_has_found():
    assert parse_discovered("h1:2\n\nh2\n", default_slots=4) == (("h1", 2), ("h2", 4))
    assert parse_discovered("", default_slots=4) == ()


@pytest.mark.parametrize(
    "text", ["", "h1:", "h1:two", "h1;rm", "h1 slots=2", "-oProxyCommand=x y", "-oX"]
)
def test_what_is_no_host_is_refused_with_its_name(text):
    with pytest.raises(ValueError, match="is no host"):
        parse_hosts(text)


def test_this_machine_by_any_of_its_names():
    assert is_here("localhost")
    assert is_here(socket.gethostname())
    assert not is_here("another.example.org")
