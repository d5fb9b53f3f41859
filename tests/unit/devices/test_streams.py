"""Who waits for whom, with streams that only take notes."""

from __future__ import annotations

import pytest
import torch

from lockstitch.devices import streams
from lockstitch.devices.kinds import HOST
from lockstitch.devices.streams import Arrival, SideStream, Streams

ONE, OTHER = torch.device("cuda:0"), torch.device("cuda:1")


class Event:
    def __init__(self, of):
        self.of = of
        self.is_done = False

    def query(self):
        return self.is_done

    def synchronize(self):
        self.is_done = True


class Stream:
    def __init__(self, device):
        self.device = device
        self.waited_for = []

    def record_event(self):
        return Event(self)

    def wait_event(self, event):
        self.waited_for.append(event.of)

    def wait_stream(self, stream):
        self.waited_for.append(stream)


@pytest.fixture
def current(monkeypatch):
    """The streams that are current, by device; a test may put others there."""
    of = {device: Stream(device) for device in (ONE, OTHER)}
    monkeypatch.setattr(torch.cuda, "current_stream", of.__getitem__)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    return of


class Lent(torch.Tensor):
    """A tensor on a GPU, as far as it is asked."""

    is_cuda = True
    device = ONE
    layout = torch.strided

    @staticmethod
    def of(layout=torch.strided, **parts):
        made = torch.ones(1).as_subclass(Lent)
        made.borrowers = []
        made.layout = layout
        for name, part in parts.items():
            setattr(made, name, lambda part=part: part)
        return made

    def record_stream(self, stream):
        assert self.layout is torch.strided  # as the real one
        self.borrowers.append(stream)


def test_only_gpus_have_streams_each_one(current):
    events = Streams([HOST, OTHER, ONE, OTHER]).record()
    assert [event.of for event in events] == [current[OTHER], current[ONE]]
    assert Streams([HOST]).record() == []


def test_every_current_stream_waits_for_everything_that_was_recorded(current):
    queued = Streams([ONE, OTHER]).record()
    Streams([OTHER, HOST]).wait_for(queued)
    assert current[OTHER].waited_for == [current[ONE], current[OTHER]]
    assert current[ONE].waited_for == []


def test_another_stream_that_takes_a_result_waits_and_is_known_to_the_allocator(current):
    tensor = Lent.of()
    made_on = current[ONE]
    arrival = Arrival(Streams.of([tensor]))
    assert arrival(tensor) is tensor
    assert (made_on.waited_for, tensor.borrowers) == ([], [])
    current[ONE] = taken_on = Stream(ONE)
    assert arrival([tensor, None]) == [tensor, None]
    assert (taken_on.waited_for, tensor.borrowers) == ([made_on], [taken_on])


def test_a_side_stream_waits_for_what_was_asked_before_and_is_waited_for(current):
    tensor, asked_on = Lent.of(), current[ONE]
    side = SideStream(ONE)
    operation = side.operation([tensor])
    operation.begin()
    (own,) = tensor.borrowers
    assert own.waited_for == [asked_on]
    result = Lent.of()
    operation.end()
    assert operation(result) is result
    assert asked_on.waited_for == [own]
    assert result.borrowers == [asked_on]


def test_an_operation_that_never_ended_makes_nobody_wait(current):
    operation = SideStream(ONE).operation([Lent.of()])
    assert operation(7) == 7
    assert current[ONE].waited_for == []


def test_events_are_done_when_all_are(current):
    events = Streams([ONE, OTHER]).record()
    assert not streams.are_done(events)
    streams.wait_for(events)
    assert streams.are_done(events)


def test_what_is_on_the_host_or_nothing_needs_no_lending(current):
    tensor = Lent.of()
    streams.use_here([None, torch.ones(2), tensor])
    assert tensor.borrowers == [current[ONE]]


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (torch.sparse_coo, ("_indices", "_values")),
        (torch.sparse_csr, ("crow_indices", "col_indices", "values")),
        (torch.sparse_bsr, ("crow_indices", "col_indices", "values")),
        (torch.sparse_csc, ("ccol_indices", "row_indices", "values")),
        (torch.sparse_bsc, ("ccol_indices", "row_indices", "values")),
    ],
    ids=str,
)
def test_all_that_a_sparse_tensor_consists_of_is_in_use(current, layout, names):
    parts = {name: Lent.of() for name in names}
    streams.use_here([Lent.of(layout, **parts)])
    streams.use_on(current[OTHER], [Lent.of(layout, **parts)])  # not on its device
    assert [part.borrowers for part in parts.values()] == [[current[ONE]]] * len(names)


def test_where_cuda_is_not_in_use_there_are_no_side_streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", None)
    assert streams.side_streams() == []


def test_a_forked_child_of_a_process_that_uses_cuda_asks_for_no_streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert streams.side_streams() == []
