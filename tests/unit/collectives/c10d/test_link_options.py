"""How long ranks wait for each other to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.trust import Secret


@pytest.mark.parametrize(
    ("seconds", "heartbeat", "patience"),
    [(60.0, 0.0, 60.0), (60.0, 10.0, 10.0), (60.0, 2.5, 10.0), (60.0, 30.0, 30.0), (5, 10.0, 5)],
)
def test_nobody_waits_for_a_greeting_as_long_as_for_a_start(seconds, heartbeat, patience) -> None:
    terms = LinkOptions.of("word", Secret(bytes(32)), 60.0)
    options = replace(terms, seconds=seconds, heartbeat=heartbeat)
    assert options.greeting_seconds == patience


@pytest.mark.parametrize(("heartbeat", "news"), [(0.0, 1.0), (2.5, 0.25), (10.0, 1.0), (30.0, 1.0)])
def test_who_hears_of_a_silent_host_by_others_knows_within_the_heartbeat(heartbeat, news) -> None:
    options = replace(LinkOptions.of("word", Secret(bytes(32)), 60.0), heartbeat=heartbeat)
    assert options.silence == 0.8 * heartbeat
    assert options.news_seconds == news


@pytest.mark.parametrize(
    ("seconds", "heartbeat", "patience"),
    [(60.0, 0.0, 60.0), (60.0, 10.0, 10.0), (60.0, 2.5, 2.5), (60.0, 0.5, 2.0), (1.0, 10.0, 1.0)],
)
def test_who_connects_waits_no_longer_than_a_host_may_be_silent(
    seconds, heartbeat, patience
) -> None:
    terms = LinkOptions.of("word", Secret(bytes(32)), 60.0)
    assert replace(terms, seconds=seconds, heartbeat=heartbeat).connect_seconds == patience
