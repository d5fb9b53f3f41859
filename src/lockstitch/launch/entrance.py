"""What the console scripts run: SIGUSR1 asks what workers wait for, and ends a process that has no
handler for it. So it is ignored from the first moment on, and not only once all is imported that a
command needs; a job has a handler of its own (`stopping`).
"""

from __future__ import annotations

import signal
from importlib import import_module


def main() -> None:
    """Runs the console script `lockstitch`."""
    _ignore_questions()
    import_module("lockstitch.launch.cli").main()


def horovodrun() -> None:
    """Runs the console script `horovodrun`."""
    _ignore_questions()
    import_module("lockstitch.launch.cli").horovodrun()


def _ignore_questions() -> None:
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
