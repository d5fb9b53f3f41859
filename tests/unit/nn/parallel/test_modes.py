"""A thread takes over the modes of the one for which it works."""

from __future__ import annotations

import contextvars
import pickle
import threading
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from lockstitch.nn.parallel.modes import Modes, in_callers_modes

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="none")


def in_a_thread(function: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


MODES = {
    "none": [],
    "device": [lambda: torch.device("meta")],
    "no_grad": [lambda: torch.no_grad()],
    "inference": [lambda: torch.inference_mode()],
    "bfloat16": [lambda: torch.autocast("cpu", torch.bfloat16)],
    "float16, no cache": [lambda: torch.autocast("cpu", torch.float16, cache_enabled=False)],
    "autocast off": [lambda: torch.autocast("cpu", enabled=False)],
    "grad within inference": [lambda: torch.inference_mode(), lambda: torch.enable_grad()],
}


@pytest.mark.parametrize("name", MODES)
def test_the_other_thread_has_the_callers_modes(name: str) -> None:
    with ExitStack() as stack:
        for mode in MODES[name]:
            stack.enter_context(mode())
        here = Modes.of_this_thread()
        there = in_a_thread(in_callers_modes(Modes.of_this_thread))
    assert there.is_grad_enabled == here.is_grad_enabled
    assert there.is_inference == here.is_inference
    assert [kind[:2] for kind in there.autocast] == [kind[:2] for kind in here.autocast]
    if here.autocast[0][1]:
        assert there == here
    assert pickle.loads(pickle.dumps(here)) == here


def test_the_threads_own_modes_come_back() -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        modes = Modes.of_this_thread()
    before = Modes.of_this_thread()
    with modes.active():
        assert not torch.is_grad_enabled()
    assert Modes.of_this_thread() == before


def test_context_variables_come_along_but_not_back() -> None:
    def change() -> str:
        found = NAME.get()
        NAME.set("changed")
        return found

    NAME.set("caller")
    assert in_a_thread(in_callers_modes(change)) == "caller"
    assert NAME.get() == "caller"
