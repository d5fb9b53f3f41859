from __future__ import annotations

import contextvars
import pickle
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from lockstitch.modes import (
    Modes,
    are_plain,
    has_memory,
    in_callers_modes,
    in_plain_modes,
    plain_modes,
    writable,
)
from tests.modes import EACH_MODE, MODES, Hollow, in_mode

CHANGING = [each for each in EACH_MODE if each not in ("none", "no_grad", "autocast")]


@pytest.mark.parametrize("name", CHANGING)
def test_within_plain_modes_tensors_are_ordinary_ones_and_afterwards_the_mode_is_back(name):
    assert are_plain()
    with in_mode(name):
        before = torch.empty(2)
        assert not are_plain()
        with plain_modes():
            assert are_plain()
            made = torch.zeros(2)
        after = torch.empty(2)
        assert not are_plain()
    assert are_plain()
    assert type(made) is torch.Tensor
    assert made.device.type == "cpu"
    assert not made.is_inference()
    made.add_(1)
    assert type(before) is type(after)
    assert (before.device, before.is_inference()) == (after.device, after.is_inference())


def test_several_modes_come_back_in_their_order_also_after_an_error():
    with torch.device("meta"), MODES["operators"](), torch.inference_mode(), MODES["functions"]():

        @in_plain_modes
        def fail():
            assert are_plain()
            raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert torch.ones(1).device.type == "meta"
        assert torch.is_inference_mode_enabled()
    assert are_plain()


def test_a_transform_of_functions_is_left_and_entered_again():
    def double(x):
        with plain_modes():
            assert torch.ones(3).sum() == 3
        return x * 2

    assert torch.equal(torch.vmap(double)(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.parametrize("name", ["none", "inference", "no_grad"])
def test_whether_gradients_are_recorded_stays_as_it_was(name):
    with MODES[name]():
        expected = torch.is_grad_enabled()
        with plain_modes():
            assert torch.is_grad_enabled() == expected


def test_what_stands_for_numbers_that_are_not_there_has_no_memory():
    seen = []
    torch.vmap(lambda x: (seen.append(has_memory(x)), x)[1])(torch.ones(2))
    torch.func.grad(lambda x: (seen.append(has_memory(x)), x.sum())[1])(torch.ones(2))
    assert seen == [False, False]
    assert not has_memory(Hollow(torch.ones(2)))
    assert not has_memory(torch.ones(2, device="meta"))
    for each in (torch.ones(2), torch.ones(0), torch.nn.Parameter(torch.ones(1))):
        assert has_memory(each)
    assert has_memory(torch.eye(2).to_sparse())


def test_what_was_made_in_inference_mode_can_be_written_by_another_name():
    with torch.inference_mode():
        inference = torch.arange(6.0).view(2, 3).t()[1:]
        alias = writable(inference)
    alias.add_(1)
    assert not alias.is_inference()
    assert torch.equal(alias, inference)
    assert inference.tolist() == [[2.0, 5.0], [3.0, 6.0]]


@pytest.mark.slow
def test_torch_has_fake_tensors_without_memory():
    with in_mode("real fake"):
        fake = torch.ones(2)
    assert not has_memory(fake)


@pytest.mark.slow
def test_everything_may_be_imported_in_any_mode():
    program = (
        "import torch\n"
        "with torch.inference_mode(), torch.device('meta'):\n"
        "    import lockstitch.rpc, lockstitch.hvd, lockstitch.nn, lockstitch.optim\n"
        "    import lockstitch.checkpoint, lockstitch.observe, lockstitch.collectives\n"
        "from lockstitch.autograd.stitch import _ANCHOR\n"
        "assert _ANCHOR.requires_grad and not _ANCHOR.is_inference() and _ANCHOR.is_cpu\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="none")


def in_a_thread(function: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


OF_CALLERS = {
    "none": [],
    "device": [lambda: torch.device("meta")],
    "no_grad": [lambda: torch.no_grad()],
    "inference": [lambda: torch.inference_mode()],
    "bfloat16": [lambda: torch.autocast("cpu", torch.bfloat16)],
    "float16, no cache": [lambda: torch.autocast("cpu", torch.float16, cache_enabled=False)],
    "autocast off": [lambda: torch.autocast("cpu", enabled=False)],
    "grad within inference": [lambda: torch.inference_mode(), lambda: torch.enable_grad()],
}


@pytest.mark.parametrize("name", OF_CALLERS)
def test_the_other_thread_has_the_callers_modes(name: str) -> None:
    with ExitStack() as stack:
        for mode in OF_CALLERS[name]:
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
