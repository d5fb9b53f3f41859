"""Runs every probe: on what this torch has, and on impostors, which each must refuse."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from lockstitch.torch_internals import registry
from lockstitch.torch_internals.probing import Cost
from lockstitch.torch_internals.registry import PRIVATES, missing

SLOW = (
    "OptimizedModule",
    "Optimizer.",
    "Module._is_replica",
    "torch._dynamo",
    "_torchdynamo_",
    "DistributedDataP",
    "Reducer",
)
"""What imports torch's compiler, which takes seconds."""


def each_private():
    for private in PRIVATES:
        is_slow = private.name.startswith(SLOW)
        yield pytest.param(private, id=private.name, marks=[pytest.mark.slow] * is_slow)


class Impostor:
    """Something else under the same name."""


IMPOSTORS = (lambda *_a, **_k: None, lambda *a, **_k: a[0] if a else None, Impostor, Impostor(), {})


@pytest.mark.parametrize("private", list(each_private()))
def test_this_torch_has_what_is_expected_and_nothing_else_passes_for_it(private):
    thing, fault = private.look(Cost.SLOW)
    assert thing is not None
    assert not fault
    assert [each for each in IMPOSTORS if not private.fault_of(each)] == []
    assert not private.fault_of(thing)  # what was tried with impostors has left nothing behind


def test_each_name_is_registered_once():
    names = [private.name for private in PRIVATES]
    assert sorted(set(names)) == sorted(names)


def test_nothing_is_missing_here_and_that_is_seen_quickly():
    assert missing() == []


def test_what_is_missing_is_listed_with_the_features_that_are_off(monkeypatch):
    monkeypatch.delattr(torch, "_neg_view")
    monkeypatch.setattr(torch, "_foreach_copy_", lambda _outs, _sources: None)
    (copies, negative) = missing()
    assert str(copies).startswith("torch._foreach_copy_ does something else; it should copy each")
    assert copies.consequence == "quick copies of many tensors: does without it"
    assert str(negative).startswith("torch._neg_view is missing; it should")
    assert negative.consequence == "receiving tensors with a negative bit: off"


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta")])
def test_probes_pass_in_whatever_mode_the_program_is(mode):
    with mode():
        assert missing() == []
    assert registry.missing() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            "torch._neg_view",
            r"imported: with torch \S+ there is no receiving tensors with a negative",
        ),
        (
            "torch._C._len_torch_function_stack",
            r"ImportError: Lockstitch cannot work with torch .*_len_torch_",
        ),
    ],
)
def test_a_torch_without_a_name_loses_its_feature_only_unless_it_is_the_base(lost, said):
    holder, _, name = lost.rpartition(".")
    program = (
        f"import torch; del {holder}.{name}\n"
        "import lockstitch.rpc, lockstitch.hvd, lockstitch.nn\n"
        "from lockstitch.torch_internals.tensors import negative_view\n"
        "try: negative_view(torch.ones(1))\n"
        "except RuntimeError as error: print('imported:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert re.search(said, done.stdout + done.stderr)
