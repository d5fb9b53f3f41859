from __future__ import annotations

import queue
import sys
import types

import pytest

from lockstitch.ray.log import LOG, CallbackThread, log


@pytest.fixture
def queues(monkeypatch):
    """Ray's queues, without Ray."""
    made = []

    class Queue(queue.Queue):
        def __init__(self, actor_options):
            super().__init__()
            made.append(self)
            self.options = actor_options
            self.is_over = False

        def shutdown(self):
            self.is_over = True

    module = types.ModuleType("ray.util.queue")
    module.Queue, module.Empty = Queue, queue.Empty
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    here = types.SimpleNamespace(get_node_id=lambda: "here")
    sys.modules["ray"].get_runtime_context = lambda: here
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: (node, soft)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    monkeypatch.setitem(sys.modules, "ray.util.queue", module)
    yield made
    LOG.configure(None)


def test_callbacks_get_what_rank_0_logs_in_its_order(queues, monkeypatch):
    heard, again = [], []
    with CallbackThread([heard.append, again.append]) as thread:
        LOG.configure(thread.queue)
        for rank in ("0", "1"):
            monkeypatch.setenv("HOROVOD_RANK", rank)
            log(f"of {rank}")
            log(f"of all: {rank}", chief_only=False)
    assert heard == again == ["of 0", "of all: 0", "of all: 1"]
    assert queues[0].is_over


def test_what_is_logged_is_kept_on_the_node_of_the_program_which_outlives_others(queues):
    with CallbackThread([print]):
        assert queues[0].options == {"num_cpus": 0, "scheduling_strategy": ("here", False)}


def test_without_callbacks_nothing_is_made_and_nothing_is_kept(queues):
    with CallbackThread(None) as thread:
        LOG.configure(thread.queue)
        log("for nobody", chief_only=False)
    assert queues == []


def test_what_a_callback_raises_is_raised_in_the_end_unless_something_else_was(queues):
    def fail(value):
        raise ValueError(value)

    thread = CallbackThread([fail]).__enter__()
    thread.queue.put("first")
    thread.queue.put("second")
    with pytest.raises(ValueError, match="first"):
        thread.__exit__(None, None, None)
    thread = CallbackThread([fail]).__enter__()
    thread.queue.put("first")
    thread.__exit__(KeyError, KeyError("other"), None)
