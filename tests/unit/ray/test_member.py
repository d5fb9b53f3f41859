from __future__ import annotations

import sys
import threading
import types

import pytest

from lockstitch.ray.member import install_definitions, main_definitions


@pytest.fixture
def main(monkeypatch):
    """A program's `__main__`."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_what_main_defines_is_there_again_in_another_main(main, monkeypatch):
    program = (
        "import math\nN = 3\ndef f(x):\n    return g(x) + N\ndef g(x):\n    return C().y * x\n"
    )
    exec(program + "class C:\n    y = 2\n", vars(main))
    content = main_definitions()
    other = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", other)
    install_definitions(content)
    assert other.f(5) == 13
    assert other.C.y == 2
    assert not hasattr(other, "math")


def test_what_cannot_travel_stays_and_the_rest_goes(main, monkeypatch):
    main.LOCK = threading.Lock()
    exec("def bad():\n    return LOCK\ndef good():\n    return 1\n", vars(main))
    content = main_definitions()
    other = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", other)
    install_definitions(content)
    assert other.good() == 1
    assert not hasattr(other, "bad")


def test_what_a_module_holds_goes_by_name_as_ever(main):
    main.CallableOfAnother = threading.Event
    assert b"Event" not in main_definitions()
