"""Modules that import each other in circles, imported by several threads at once."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
from typing import TYPE_CHECKING

import cloudpickle
import pytest

from lockstitch.imports import Imports, is_complete, loads
from tests.circles import Circles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def circles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Circles:
    return Circles(tmp_path, monkeypatch)


def at_once(tasks: list[Callable[[], object]]) -> list[object]:
    """What each of them returns, or raises."""
    results: list[object] = [None] * len(tasks)
    barrier = threading.Barrier(len(tasks))

    def run(number: int) -> None:
        barrier.wait(10)
        try:
            results[number] = tasks[number]()
        except BaseException as error:  # noqa: BLE001 - compared by the test
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.mark.parametrize("size", [2, 3])
def test_circles_are_imported_by_several_threads(circles: Circles, size: int) -> None:
    for _ in range(5):
        names = circles.make(size)
        tasks = [lambda name=name: loads(b"c" + name.encode() + b"\nrun\n.")() for name in names]
        assert at_once(tasks) == [7] * len(names)


def test_a_thread_of_the_program_may_import_at_the_same_time(circles: Circles) -> None:
    """Which of the two threads hears of the circle, Python decides: ours goes on in any case."""
    imports = Imports()
    for _ in range(5):
        package, part = circles.make(1)
        tasks = [
            lambda part=part: imports.module(part).run(),
            lambda package=package: importlib.import_module(package),
        ]
        assert at_once(tasks)[0] == 7


def test_a_parent_that_another_thread_has_just_taken_back_is_imported_again() -> None:
    answers = iter([KeyError("some"), KeyError("some.package"), "found"])

    def find(_module: str, _name: str) -> object:
        answer = next(answers)
        if isinstance(answer, KeyError):
            raise answer
        return answer

    assert Imports().find("some.package.part", "x", find) == "found"


def test_a_key_error_of_its_own_is_the_modules_affair() -> None:
    def find(_module: str, _name: str) -> object:
        raise KeyError("so")

    with pytest.raises(KeyError, match="so"):
        Imports().find("some.package", "x", find)


def test_a_package_that_another_thread_takes_back_meanwhile_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "taken_back"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(
        "import sys\ndel sys.modules['taken_back']\ndef run(): return 7\n"
    )
    (package / "wrong.py").write_text(
        "import taken_back\n"
        "taken_back.times = getattr(taken_back, 'times', 0) + 1\n"
        "{}['its own affair']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Imports().module("taken_back.part").run() == 7
    assert loads(b"ctaken_back.part\nrun\n.")() == 7
    with pytest.raises(KeyError, match="its own affair"):
        Imports().module("taken_back.wrong")
    assert sys.modules["taken_back"].times == 1


def test_what_is_there_takes_no_turn() -> None:
    imports = Imports()
    inside, done = threading.Event(), threading.Event()

    def hold(_module: str, _name: str) -> None:
        inside.set()
        done.wait(10)

    holder = threading.Thread(target=imports.find, args=("not.there", "x", hold))
    holder.start()
    assert inside.wait(10)
    assert imports.find("os", "sep", lambda *_: os.sep) == os.sep
    assert imports.module("os") is os
    assert imports.under_way == 1
    done.set()
    holder.join(10)
    assert imports.under_way == 0


def test_whoever_waits_in_an_import_lets_others_import() -> None:
    imports = Imports()
    waits, may_go_on = threading.Event(), threading.Event()

    def call_others(_module: str, _name: str) -> str:
        assert imports.suspend()
        waits.set()
        assert may_go_on.wait(10)
        imports.resume()
        return imports.find("another", "name", lambda *_: "inside")

    found: list[object] = []
    waiter = threading.Thread(
        target=lambda: found.append(imports.find("a", "name", call_others)), daemon=True
    )
    waiter.start()
    assert waits.wait(10)
    assert imports.find("b", "name", lambda *_: "meanwhile") == "meanwhile"
    may_go_on.set()
    waiter.join(10)
    assert found == ["inside"]
    assert not imports.suspend()
    assert (imports.under_way, imports._turn.locked()) == (0, False)


def test_what_a_waiting_module_has_defined_already_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = Imports()
    (tmp_path / "waiting_module.py").write_text("def early(): return 1\nhook()\ndef late(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    seen: list[object] = []

    def hook() -> None:
        assert imports.suspend()
        assert not is_complete("waiting_module")
        asking = threading.Thread(
            target=lambda: seen.append(imports.find("waiting_module", "early", _never)())
        )
        asking.start()
        asking.join(10)
        imports.resume()

    monkeypatch.setattr("builtins.hook", hook, raising=False)
    imports.module("waiting_module")
    assert seen == [1]
    monkeypatch.delitem(sys.modules, "waiting_module")


def _never(*_: str) -> None:
    raise AssertionError("it would wait for ever")


def test_an_error_of_an_import_is_raised_and_gives_the_turn_back() -> None:
    imports = Imports()
    with pytest.raises(ModuleNotFoundError):
        imports.module("no_such_module_here")
    assert not imports._turn.locked()
    assert "0 under way" in repr(imports)


def test_a_module_named_in_a_closure_is_imported_in_turn() -> None:
    assert loads(cloudpickle.dumps(pickle)) is pickle


def test_a_forked_child_does_not_wait_for_threads_that_it_has_not() -> None:
    imports = Imports()
    imports._turn.acquire()
    imports.under_way = 1
    imports.begin_anew()
    assert imports.module("os") is os
    assert imports.find("x", "y", lambda *_: 3) == 3
