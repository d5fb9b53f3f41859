"""A command that is asked by a signal while it begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

STRUCK = """
import os, signal, sys

class Strikes:
    def find_spec(self, name, *_):
        if name == "lockstitch.launch.cli":
            os.kill(os.getpid(), signal.SIGUSR1)

sys.meta_path.insert(0, Strikes())
from lockstitch.launch import entrance

sys.argv = ["", "--version"]
entrance.{script}()
"""


@pytest.mark.parametrize("script", ["main", "horovodrun"])
def test_a_question_that_comes_while_it_is_imported_does_not_end_it(script):
    code = STRUCK.format(script=script)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lockstitch" in ended.stdout
