"""Shared memory without a name: made by one process, mapped by another that is given its
descriptor, gone with the last of them however they end.

When a mapping ends is delicate. The garbage collector calls the finalizers of everything in a cycle
first, in any order, and one of them may still use the memory: so a finalizer must not unmap it. And
`mmap` objects of Python, which have none, keep a descriptor open each. A storage of torch that maps
a file has neither fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import sys
from pathlib import Path
from typing import Final

import torch

from lockstitch.devices import pinned

IS_AVAILABLE: Final = hasattr(os, "memfd_create")
"""Whether this system has memory of this kind."""
NAME: Final = "lockstitch"
"""The name under which /proc/PID/maps lists the memory, where no other is given."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_madvise = _LIBC.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_DONT_FORK: Final = getattr(mmap, "MADV_DONTFORK", None)
_REMOVE: Final = getattr(mmap, "MADV_REMOVE", None)
_mmap = _LIBC.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_MAP_FIXED: Final = 0x10
_mremap = getattr(_LIBC, "mremap", None)
if _mremap is not None:
    _mremap.restype = ctypes.c_void_p
    _mremap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_void_p),
    ]
_MAY_MOVE_TO: Final = 0x01 | 0x02  # MREMAP_MAYMOVE | MREMAP_FIXED
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_MEMORY: Final = Path("/proc/meminfo")
_PINNED_AT_COPY: Final = 2
# One piece of memory is at most this part of what there is.
_LEAST_SHARE: Final = 2
_POPULATE: Final = 23  # MADV_POPULATE_WRITE, where the kernel knows it
_SEALS: Final = sum(
    getattr(fcntl, name, 0) for name in ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")
)


class Mapping:
    """Memory shared with another process, here at `address`; unmapped when nothing refers to it."""

    __slots__ = ("__weakref__", "_copies", "_storage", "address", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        """Maps `size` bytes of the memory behind `descriptor`, which may then be closed.

        Raises `OSError` when there is less of it, or no room for it.
        """
        if os.fstat(descriptor).st_size < size:
            raise OSError(errno.EINVAL, f"shared memory of less than {size:,} bytes")
        try:
            storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", True, size)
        except RuntimeError as error:
            raise OSError(errno.ENOMEM, f"cannot map {size:,} bytes: {error}") from error
        self._storage = storage
        self._copies = 0
        self.address: int = storage.data_ptr()
        self.size = size

    def __repr__(self) -> str:
        return f"<Mapping of {self.size:,} bytes at {self.address:#x}>"

    def tensor(self) -> torch.Tensor:
        """A tensor of all its bytes, none of inference mode."""
        with torch.inference_mode(mode=False):
            return torch.empty(0, dtype=torch.uint8, device="cpu").set_(self._storage)  # type: ignore[arg-type]

    def populate(self) -> None:
        """Finds all pages now, at once, and not one by one when they are written to."""
        _madvise(self.address, self.size, _POPULATE)

    def pin(self) -> None:
        """A device is about to copy from or to it. From the second time on it is locked for that,
        which takes about as long as a copy without."""
        self._copies += 1
        if self._copies == _PINNED_AT_COPY:
            pinned.pin(self, self.address, self.size)

    def keep_from_children(self) -> None:
        """Forked children shall not have it: it would live as long as they do."""
        if _DONT_FORK is not None:
            _madvise(self.address, self.size, _DONT_FORK)

    def make_private(self, descriptor: int) -> None:
        """Makes each page this process's own when it is next written to."""
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
        _mmap(self.address, self.size, protection, flags, descriptor, 0)

    def show_at(self, address: int, begin: int, size: int) -> None:
        """Maps `size` bytes from `begin` on once more, at `address`, in the place of what is mapped
        there; all are whole pages. Raises `OSError`, having changed nothing, where the system
        cannot."""
        if _mremap is None:
            raise OSError(errno.ENOSYS, "this system cannot map memory once more")
        # An old size of 0 leaves the old mapping as it is.
        if _mremap(self.address + begin, 0, size, _MAY_MOVE_TO, address) != address:
            raise OSError(ctypes.get_errno(), f"cannot map {size:,} bytes once more")

    def give_up(self) -> None:
        """Frees the memory itself, also where another process still maps it. Nobody uses it."""
        free_pages(self.address, self.size)


class Copy:
    """What lay in shared memory that could not be mapped: memory of this process alone, of `size`
    bytes at `address`."""

    __slots__ = ("_memory", "address", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        """Reads `size` bytes of the memory behind `descriptor`. Raises `OSError` when there is less
        of it, or no room for it."""
        try:
            memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        except RuntimeError as error:
            raise OSError(errno.ENOMEM, f"there is no memory for {size:,} bytes") from error
        view, done = memoryview(memory.numpy()), 0  # type: ignore[arg-type]
        while done < size:
            count = os.preadv(descriptor, [view[done:]], done)
            if not count:
                raise OSError(errno.EINVAL, f"shared memory of less than {size:,} bytes")
            done += count
        self._memory = memory
        self.address: int = memory.data_ptr()
        self.size = size

    def pin(self) -> None:
        """It is used once."""

    def __repr__(self) -> str:
        return f"<Copy of {self.size:,} bytes at {self.address:#x}>"


def _available_bytes() -> int:
    """How much memory could be had now."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMORY.read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else sys.maxsize


def create_file(name: str = NAME) -> int:
    """An empty file of shared memory; returns its descriptor. Raises `OSError`."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def free_pages(address: int, size: int) -> None:
    """Frees the memory behind a mapping of a file; it reads as zeros from then on."""
    if _REMOVE is not None:
        _madvise(address, size, _REMOVE)


def punch(descriptor: int, begin: int, size: int) -> None:
    """Frees the memory of a part of a file, which keeps its length. Nobody uses it."""
    _LIBC.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(begin), ctypes.c_long(size))


def create(size: int, name: str = NAME) -> tuple[Mapping, int]:
    """Fresh shared memory of `size` bytes, and its descriptor, which the caller closes.

    Raises `OSError` when there is not that much. The memory is taken at once: whoever writes to it
    later must not find that there is none.
    """
    # The system would promise any size, and end somebody's process when it cannot keep it.
    if size > _available_bytes() // _LEAST_SHARE:
        raise OSError(errno.ENOMEM, f"there is no memory for {size:,} bytes to share")
    descriptor = create_file(name)
    try:
        os.posix_fallocate(descriptor, 0, size)
        with contextlib.suppress(OSError):  # a kernel without seals
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        mapping = Mapping(descriptor, size)
        mapping.populate()
        mapping.keep_from_children()
    except BaseException:
        os.close(descriptor)
        raise
    return mapping, descriptor
