"""Who waits for whom, with streams that only take notes."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn.slots import streams

CPU, ONE, OTHER = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")


class Stream:
    def __init__(self, device):
        self.device = device
        self.waited_for = []

    def record_event(self):
        return f"what {self.device} has queued"

    def wait_event(self, event):
        self.waited_for.append(event)


@pytest.fixture
def current(monkeypatch):
    of = {device: Stream(device) for device in (ONE, OTHER)}
    monkeypatch.setattr(torch.cuda, "current_stream", of.__getitem__)
    return of


def test_only_gpus_have_streams_each_one():
    assert streams.gpus_of([CPU, OTHER, ONE, OTHER]) == [OTHER, ONE]
    assert streams.gpus_of([CPU]) == []


def test_every_current_stream_waits_for_everything_that_was_queued(current):
    queued = streams.queued_here([ONE, CPU, OTHER, ONE])
    assert queued == ["what cuda:0 has queued", "what cuda:1 has queued"]
    streams.wait_here(queued, [OTHER, CPU])
    assert current[OTHER].waited_for == queued
    assert current[ONE].waited_for == []


class Lent:
    """A tensor on a GPU, as far as it is asked."""

    is_cuda = True
    device = ONE
    layout = torch.strided

    def __init__(self):
        self.borrowers = []

    def record_stream(self, stream):
        self.borrowers.append(stream)


def test_what_is_on_the_host_or_nothing_needs_no_lending(current):
    streams.lend(None)
    streams.lend(torch.ones(2))
    tensor = Lent()
    streams.lend(tensor)
    assert tensor.borrowers == [current[ONE]]
