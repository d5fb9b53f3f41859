from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from lockstitch.ray.engine import find_ray


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'lockstitch\[ray\]'") as caught:
        find_ray()
    assert caught.value.name == "ray"


def test_a_part_that_lacks_something_else_says_what(monkeypatch):
    def lack(name):
        raise ModuleNotFoundError("No module named 'msgpack'", name="msgpack")

    monkeypatch.setattr("lockstitch.ray.engine.import_module", lack)
    with pytest.raises(ModuleNotFoundError, match="msgpack"):
        find_ray("util.queue")


def test_programs_of_horovod_learn_it_where_they_import_their_executor(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [each for each in sys.modules if each.startswith("lockstitch.hvd.ray")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="not installed here"):
        importlib.import_module("lockstitch.hvd.ray")


def test_nothing_of_ray_is_imported_before_it_is_used():
    program = "import sys, lockstitch.ray; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"False"]
