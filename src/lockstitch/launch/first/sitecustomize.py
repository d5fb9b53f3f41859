"""Runs in every Python of a worker before anything of its program, however that is started: Python
imports a module of this name by itself.

From then on the worker can be asked what it waits for (`lockstitch.inquiry`) and be looked at
(`lockstitch.attach`), and its end is told to the launcher (`lockstitch.endings`). Nothing else is
different: the folder leaves `sys.path`, and a `sitecustomize` of somebody else's runs all the same.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys


def _run_next() -> None:
    """Runs the `sitecustomize` that would have run without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if found is not None and found.loader is not None:
        module = importlib.util.module_from_spec(found)
        sys.modules["sitecustomize"] = module
        found.loader.exec_module(module)


def _begin() -> None:
    # A Python without Lockstitch (another environment's) is a worker as well. Whatever else may be
    # wrong, a program is not to fail because somebody wants to hear of its end.
    with contextlib.suppress(Exception):
        importlib.import_module("lockstitch.inquiry").INQUIRY.install(even_if_ignored=True)
        importlib.import_module("lockstitch.endings").ENDING.install()
        if os.getsid(0) == os.getpid():  # the worker itself, not what it has started
            importlib.import_module("lockstitch.attach.presence").PRESENCE.show()


_begin()
_run_next()
