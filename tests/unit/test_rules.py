"""The checker of rules finds what breaks them, and nothing does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rules import RULES, Rule, circles

if TYPE_CHECKING:
    from pathlib import Path

GUILTY = [
    ("import torch\nif torch.cuda.is_available():\n    pass\n", [2]),
    ("def f(x):\n    return x.is_cuda\n", [2]),
    ("def f(x):\n    return x.device.type == 'cpu' or device.type\n", [2, 2]),
    ("import torch\nn = torch.accelerator.device_count()\n", [2]),
]
INNOCENT = [
    "def f(x):\n    return x.is_cpu\n",
    "def f(field):\n    return field.type\n",
    '"""torch.cuda is only spoken of."""\n',
]


@pytest.mark.parametrize(("source", "lines"), GUILTY)
def test_who_asks_for_gpus_elsewhere_is_found(tmp_path: Path, source: str, lines: list[int]):
    (tmp_path / "somewhere.py").write_text(source)
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "kinds.py").write_text(source)
    found = RULES[0].broken(tmp_path)
    assert found == [f"somewhere.py:{line}: {RULES[0].text}" for line in lines]


@pytest.mark.parametrize("source", INNOCENT)
def test_who_does_not_is_left_alone(tmp_path: Path, source: str):
    (tmp_path / "somewhere.py").write_text(source)
    assert RULES[0].broken(tmp_path) == []


def test_an_exception_that_nothing_needs_is_found(tmp_path: Path):
    (tmp_path / "somewhere.py").write_text("")
    rule = Rule("nothing", RULES[0].find, {"somewhere.py": "it once did"})
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
