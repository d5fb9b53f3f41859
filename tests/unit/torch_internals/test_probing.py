from __future__ import annotations

import re

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from lockstitch.errors import UnsupportedTorchError
from lockstitch.torch_internals import registry
from lockstitch.torch_internals.probing import Cost, Names, resolve


def doubles(function):
    return function(2) == 4


@pytest.fixture
def program(monkeypatch):
    """Gives torch a private name of its own, and says what it is."""

    def define(thing):
        monkeypatch.setattr(torch, "_twice_of_a_test", thing, raising=False)

    return define


def test_what_does_as_expected_is_taken_as_it_is(program):
    def twice(x):
        return 2 * x

    program(twice)
    names = Names("doubling")
    assert names.take("torch._twice_of_a_test", "double a number", doubles) is twice
    (private,) = names.finish()
    assert private.look(Cost.SLOW) == (twice, "")


def fail(_x):
    raise KeyError("own")


@pytest.mark.parametrize(
    ("thing", "fault"),
    [
        (None, r"is missing"),
        (lambda x: x, r"does something else"),
        (fail, r"raises KeyError when tried: 'own'"),
    ],
)
def test_who_uses_what_is_not_as_expected_is_told_what_and_why(program, thing, fault):
    if thing is not None:
        program(thing)
    names = Names("doubling")
    absent = names.take("torch._twice_of_a_test", "double a number", doubles)
    text = (
        rf"with torch {re.escape(torch.__version__)} there is no doubling: "
        rf"torch._twice_of_a_test {fault}; it should double a number\. Install a torch"
    )
    for use in (
        lambda: absent(2),
        lambda: absent.attribute,
        lambda: isinstance(2, absent),
        lambda: 2 in absent,
        lambda: absent[2],
    ):
        with pytest.raises(UnsupportedTorchError, match=text):
            use()
    assert not hasattr(absent, "__wrapped__")
    assert "doubling" not in repr(absent)
    (private,) = names.finish()
    assert private.look(Cost.QUICK)[1]


def test_what_can_be_missed_has_another_in_its_place(program):
    program(lambda x: x)
    names = Names("doubling", is_base=True)

    def slowly(x):
        return x + x

    assert names.take("torch._twice_of_a_test", "double", doubles, otherwise=slowly) is slowly
    (private,) = names.finish()
    assert private.can_be_missed


def test_without_the_base_nothing_is_imported_and_all_that_is_missing_is_named():
    names = Names("everything", is_base=True)
    names.take("torch._no_such_thing", "be there", bool)
    names.take("torch.add", "subtract", lambda add: add(torch.ones(1), 1) == 0)
    names.take("torch.sub", "subtract", lambda sub: sub(torch.ones(1), 1) == 0)
    text = r"_no_such_thing is missing; it should be there; torch.add does something else"
    with pytest.raises(ImportError, match=text) as raised:
        names.finish()
    assert "torch.sub" not in str(raised.value)


def test_a_dear_probe_runs_only_when_it_is_asked_for(program):
    tried = []

    def probe(function):
        tried.append(function)
        return False

    program(fail)
    names = Names("doubling")
    assert names.take("torch._twice_of_a_test", "double", probe, cost=Cost.THOROUGH) is fail
    (private,) = names.finish()
    assert private.look(Cost.QUICK) == (fail, "")
    assert not tried
    assert private.look(Cost.THOROUGH) == (fail, "does something else")
    assert tried == [fail]


def test_an_attribute_of_objects_is_taken_by_what_reads_it():
    names = Names("shapes")
    read = names.take("Tensor._shape", "be there", lambda look: look(torch.ones(2)), reader=len)
    assert read is len


def test_a_module_that_nobody_has_imported_is_found(monkeypatch):
    import torch.utils.show_pickle as module  # noqa: PLC0415 - so that it can be forgotten

    monkeypatch.delattr(torch.utils, "show_pickle")
    assert resolve("torch.utils.show_pickle") is module
    with pytest.raises(ImportError):
        resolve("torch.utils.no_such_module")


def test_no_probe_leaves_a_mode_behind_that_keeps_programs_from_being_compiled():
    """Torch notes in its module that a mode was entered, beside the stack of modes."""
    assert registry.missing(dearest=Cost.THOROUGH) == []
    assert not is_in_torch_dispatch_mode()
