"""A launcher in the test's process: its loop runs in a thread."""

from __future__ import annotations

import selectors
import threading
from queue import Queue
from typing import TYPE_CHECKING

from lockstitch.launcher_link import LauncherServer
from lockstitch.launcher_link.client import PURPOSE
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = Secret.from_text("5a" * 32).of(PURPOSE)


class FakeLauncher:
    """A context manager. What workers say goes to `heard`, as pairs."""

    def __init__(self, folder, address=None, **options) -> None:
        self.heard = Queue()
        self.selector = selectors.DefaultSelector()
        self.server = LauncherServer(
            self.selector,
            SECRET,
            lambda *said: self.heard.put(said),
            address or f"unix:{folder}/launcher",
            **options,
        )
        self.address = self.server.address
        self._is_over = False
        self._asked = Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> FakeLauncher:
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over = True
        self._thread.join()
        self.server.close()
        self.selector.close()

    def tell(self, worker: int, message: object) -> None:
        self.do(lambda: self.server.tell(worker, message))

    def wait_for_worker(self, number: int) -> None:
        """Until it has said who it is, and can be told something."""
        answers = Queue()
        while True:
            self.do(lambda: answers.put(number in self.server._lines))
            if answers.get(timeout=60):
                return

    def do(self, what: Callable[[], object]) -> None:
        """In the loop's thread, soon."""
        self._asked.put(what)

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self.selector.select(0.01):
                key.data()
            self.server.pass_time()
            while not self._asked.empty():
                self._asked.get()()
