from __future__ import annotations

import sys

import pytest
import torch

from lockstitch import compiling
from lockstitch.compiling import keep_from_compilers, opaque
from lockstitch.devices import guard

RULES = "added = []\ndef add(package):\n    added.append(package)\n"


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """The name of a module that knows what compilers pass over; not imported yet."""
    name = "rules_of_a_compiler"
    (tmp_path / f"{name}.py").write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiling, "COMPILER_RULES", name)
    others = [each for each in sys.meta_path if not isinstance(each, compiling._Watch)]
    monkeypatch.setattr(sys, "meta_path", others)
    yield name
    sys.modules.pop(name, None)


def test_a_compiler_that_is_imported_later_hears_of_the_package_once(rules, monkeypatch):
    guarded = []
    monkeypatch.setattr(guard, "keep_guard", lambda: guarded.append(1))
    before = list(sys.meta_path)
    keep_from_compilers("some_package")
    assert len(sys.meta_path) == len(before) + 1
    module = __import__(rules)
    assert module.added == ["some_package"]
    assert sys.meta_path == before
    assert module.__spec__.loader.get_source(rules) == RULES
    assert guarded == [1]


def test_a_compiler_that_is_there_hears_of_it_at_once(rules):
    before = list(sys.meta_path)
    module = __import__(rules)
    keep_from_compilers("some_package")
    assert module.added == ["some_package"]
    assert sys.meta_path == before


def test_a_compiler_without_such_rules_is_left_alone(rules, tmp_path):
    (tmp_path / f"{rules}.py").write_text("")
    keep_from_compilers("some_package")
    assert not hasattr(__import__(rules), "added")


@pytest.mark.slow
def test_torch_passes_over_this_package():
    pytest.importorskip("torch._dynamo")
    from torch._dynamo import trace_rules  # noqa: PLC0415 - it takes seconds

    assert trace_rules.check_file(compiling.__file__).skipped
    assert not trace_rules.check_file(__file__).skipped


@pytest.mark.slow
def test_a_compiler_that_must_not_cut_says_why_it_would():
    @opaque
    def talk(x):
        return x

    compiled = torch.compile(lambda x: talk(x) + 1, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="talk: it talks to other processes"):
        compiled(torch.ones(2))
