"""The policy, case by case."""

from __future__ import annotations

import pytest
import torch

from lockstitch.autograd.decisions import Decision, decide
from lockstitch.autograd.graph import Component, Entry
from lockstitch.ids import GlobalId

G = (torch.ones(1),)
NULL = None


def stitch(number):
    return GlobalId(0, 0, number)


def component(*names, receives=1, covered=False):
    entries = tuple(Entry(None if name is None else stitch(name), ()) for name in names)
    return Component(entries, (), (), tuple(range(receives)), covered)


def arrivals(**named):
    return {
        None if name == "roots" else stitch(int(name[1:])): gradients
        for name, gradients in named.items()
    }


def parts(*numbers):
    return {stitch(number): frozenset({0}) for number in numbers}


CASES = [
    # one entry: its arrival is all there is to know
    ("single", component(1), arrivals(), None, Decision.WAIT),
    ("single", component(1), arrivals(s1=G), None, Decision.RUN),
    ("single null", component(1), arrivals(s1=NULL), None, Decision.RUN),
    ("single, no part", component(1), arrivals(s1=NULL), parts(), Decision.RUN),
    # nobody knows who takes part
    ("all there", component(2, 1), arrivals(s2=G, s1=NULL), None, Decision.RUN),
    ("nothing there", component(2, 1), arrivals(), None, Decision.WAIT),
    ("some there", component(2, 1), arrivals(s2=G), None, Decision.ASK),
    ("roots only", component(None, 1), arrivals(roots=G), None, Decision.ASK),
    ("covered", component(None, 1, covered=True), arrivals(roots=G), None, Decision.BLOCK),
    (
        "covered, first not there",
        component(2, 1, covered=True),
        arrivals(s1=G),
        None,
        Decision.ASK,
    ),
    (
        "covered, first is null",
        component(2, 1, covered=True),
        arrivals(s2=NULL),
        None,
        Decision.ASK,
    ),
    (
        "covered, first not whole",
        component(2, 1, covered=True),
        arrivals(s2=(None, torch.ones(1))),
        None,
        Decision.ASK,
    ),
    (
        "covered, but nothing goes out",
        component(2, 1, covered=True, receives=0),
        arrivals(s2=G),
        None,
        Decision.ASK,
    ),
    # it is known who takes part
    ("none takes part", component(2, 1), arrivals(s2=NULL), parts(9), Decision.IDLE),
    ("the one that does is there", component(2, 1), arrivals(s2=G), parts(2), Decision.RUN),
    ("roots always do", component(None, 1), arrivals(roots=G), parts(), Decision.RUN),
    ("another is missing", component(3, 2, 1), arrivals(s3=G), parts(3, 1), Decision.BLOCK),
    (
        "another is missing, nothing goes out",
        component(2, 1, receives=0),
        arrivals(s2=G),
        parts(2, 1),
        Decision.WAIT,
    ),
    ("only a null of another", component(2, 1), arrivals(s2=NULL), parts(1), Decision.WAIT),
]


@pytest.mark.parametrize(("name", "component", "arrived", "known", "decision"), CASES)
def test_smart(name, component, arrived, known, decision):
    assert decide(component, arrived, known, fast=False) is decision


@pytest.mark.parametrize(
    ("component", "arrived", "decision"),
    [
        (component(1), arrivals(s1=G), Decision.RUN),
        (component(2, 1), arrivals(s2=G, s1=G), Decision.RUN),
        (component(2, 1), arrivals(s2=G), Decision.BLOCK),
        (component(2, 1, receives=0), arrivals(s2=G), Decision.WAIT),
        (component(2, 1, receives=0), arrivals(), Decision.WAIT),
    ],
)
def test_fast_expects_every_entry(component, arrived, decision):
    assert decide(component, arrived, None, fast=True) is decision
