"""The checker of rules finds what breaks them, and nothing does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rules import RULES, Rule, circles, state_born_late

if TYPE_CHECKING:
    from pathlib import Path

GPUS, SOCKETS = RULES

GUILTY = [
    (GPUS, "import torch\nif torch.cuda.is_available():\n    pass\n", [2]),
    (GPUS, "def f(x):\n    return x.is_cuda\n", [2]),
    (GPUS, "def f(x):\n    return x.device.type == 'cpu' or device.type\n", [2, 2]),
    (GPUS, "import torch\nn = torch.accelerator.device_count()\n", [2]),
    (SOCKETS, "import socket\nsocket.socket()\n", [2]),
    (SOCKETS, "import socket\nwith socket.create_server(('', 0)) as s:\n    pass\n", [2]),
    (SOCKETS, "from socket import create_connection\n", [1]),
    (SOCKETS, "import socket as s\n", [1]),
    (SOCKETS, "import socketserver\n", [1]),
    (SOCKETS, "import asyncio\nasyncio.start_server(f)\n", [2]),
    (SOCKETS, "from multiprocessing.connection import Client\n", [1]),
]
INNOCENT = [
    (GPUS, "def f(x):\n    return x.is_cpu\n"),
    (GPUS, "def f(field):\n    return field.type\n"),
    (GPUS, '"""torch.cuda is only spoken of."""\n'),
    (SOCKETS, "import socket\nx: socket.socket\nsocket.gethostname()\n"),
    (SOCKETS, "from multiprocessing.connection import wait\n"),
]


@pytest.mark.parametrize(("rule", "source", "lines"), GUILTY)
def test_what_breaks_a_rule_is_found_where_it_is_not_allowed(
    tmp_path: Path, rule: Rule, source: str, lines: list[int]
):
    (tmp_path / "somewhere.py").write_text(source)
    for place in ("devices", "link"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "kinds.py").write_text(source if f"{place}/" in rule.allowed else "")
    assert rule.broken(tmp_path) == [f"somewhere.py:{line}: {rule.text}" for line in lines]


@pytest.mark.parametrize(("rule", "source"), INNOCENT)
def test_what_does_not_is_left_alone(tmp_path: Path, rule: Rule, source: str):
    (tmp_path / "somewhere.py").write_text(source)
    assert rule.broken(tmp_path) == []


def test_an_exception_that_nothing_needs_is_found(tmp_path: Path):
    (tmp_path / "somewhere.py").write_text("")
    rule = Rule("nothing", GPUS.find, {"somewhere.py": "it once did"})
    assert rule.needless(tmp_path) == ["somewhere.py: needs no exception: nothing"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_no_rule_is_broken_and_no_exception_is_needless(rule: Rule):
    assert rule.broken() + rule.needless() == []


def test_no_files_import_each_other_in_a_circle():
    assert circles() == []


def test_circles_are_found_through_annotations_too(tmp_path: Path):
    (tmp_path / "a.py").write_text("from lockstitch.b import B\n")
    (tmp_path / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lockstitch.c import C\n"
    )
    (tmp_path / "c.py").write_text("import lockstitch.a\n")
    (tmp_path / "d.py").write_text("from lockstitch import a\n")
    assert circles(tmp_path) == [["a.py", "b.py", "c.py"]]


def test_all_state_is_there_from_the_beginning():
    assert state_born_late() == []


LATE = "class A:\n    def f(self):\n        self.x = 1\n"
IN_TIME = [
    "class A:\n    def __init__(self):\n        self.x = 0\n    def f(self):\n        self.x = 1\n",
    "class A:\n    def __init__(self):\n        self.f()\n    def f(self):\n        self.x = 1\n",
    "class A:\n    x: int\n    def f(self):\n        self.x = 1\n",
    "class A(b.B[int]):\n    def f(self):\n        self.x = 1\nclass B:\n    x = 0\n",
    "class A:\n    @classmethod\n    def f(cls):\n        cls.x = 1\n",
]


def test_state_that_is_born_late_is_found(tmp_path: Path):
    (tmp_path / "late.py").write_text(LATE)
    (found,) = state_born_late(tmp_path)
    assert found.startswith("late.py:3: A.x is not there")


@pytest.mark.parametrize("source", IN_TIME)
def test_state_that_is_born_in_time_is_left_alone(tmp_path: Path, source: str):
    (tmp_path / "in_time.py").write_text(source)
    assert state_born_late(tmp_path) == []
