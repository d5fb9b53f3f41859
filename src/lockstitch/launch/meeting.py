"""Where the workers of a job meet: a file of the launcher's, so that no worker's death takes it
along, and a port for process groups of the program's own.

The file lies in a fresh directory that only its user may enter. The port is *held*, not just found
(`link.sockets.HeldPort`): nobody else gets it, and rank 0 can listen there.
"""

from __future__ import annotations

from lockstitch.folders import Folder
from lockstitch.link.sockets import HeldPort


class MeetingPlace:
    """The file and the port of a job; a context manager, after which they are gone."""

    def __init__(self) -> None:
        self._port = HeldPort("127.0.0.1")
        try:
            self._folder = Folder()
        except BaseException:
            self._port.close()
            raise

    def __repr__(self) -> str:
        return f"<MeetingPlace · port {self.port} · {self.store}>"

    @property
    def port(self) -> int:
        """A TCP port of 127.0.0.1 that is kept for rank 0."""
        return self._port.number

    @property
    def store(self) -> str:
        """The file in which Lockstitch's workers find each other. Its name is the port's number:
        so a worker sees whether its MASTER_PORT is still that of this job."""
        return str(self._folder.path / str(self.port))

    def __enter__(self) -> MeetingPlace:
        return self

    def __exit__(self, *_error: object) -> None:
        self._port.close()
        self._folder.close()
