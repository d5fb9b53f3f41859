"""The secret that a launcher makes for its job, and how the workers get it.

It goes by a file that only this user can read and that is gone when the job has ended. Not by the
command line, which everybody on the machine can read, nor by a variable: programs like to log
their environment.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockstitch.folders import Folder
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def secret_for(inherited: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A context manager that gives variables for the workers of a job, valid within the block; none
    where `inherited`, the launcher's own environment, names a secret already."""
    if inherited.get(VARIABLE) or inherited.get(FILE_VARIABLE):
        yield {}
        return
    with Folder() as folder:
        path = folder / "secret"
        Secret.make().write(path)
        yield {FILE_VARIABLE: str(path)}
