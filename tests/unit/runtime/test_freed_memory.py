"""What torch frees stays with the process, on any thread."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest
import torch

from lockstitch.nn import DataParallel
from lockstitch.runtime import freed_memory

BLOCK_BYTES = 2 << 20
PROGRAM = """
import importlib.util, resource, sys, threading
import torch

# The file alone: what the rest of the library imports may have freed large blocks before.
spec = importlib.util.spec_from_file_location("freed_memory", sys.argv[1])
freed_memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(freed_memory)
exec(sys.argv[2])

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def work(counts):
    for _ in range(20):
        before = faults()
        blocks = [torch.ones(512 << 10) for _ in range(int(sys.argv[3]))]  # 2 MiB each
        del blocks
        counts.append(faults() - before)

counts = []
thread = threading.Thread(target=work, args=(counts,))
thread.start()
thread.join()
print(sorted(counts)[len(counts) // 2])
"""


only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone learns so")


def faults(prepare, blocks, **variables):
    """How many page faults so many blocks cost when a thread makes them again, after the statement
    `prepare`."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, freed_memory.__file__, prepare, str(blocks)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


@only_glibc
def test_blocks_that_come_and_go_cost_no_page_faults():
    most = 3 * BLOCK_BYTES / resource.getpagesize() / 20
    assert faults("freed_memory.keep_freed_memory()", 3) < most


@only_glibc
def test_the_most_that_can_be_kept_is_40_mib_and_more():
    prepare = "freed_memory.keep_freed_memory(freed_memory.MOST_KEPT_BLOCK_BYTES)"
    # With a threshold of the user's own, which is left alone, none are. (glibc 2.43 gives a part of
    # them back in any case.)
    assert 3 * faults(prepare, 20) < faults(prepare, 20, MALLOC_MMAP_THRESHOLD_="131072")


@pytest.mark.parametrize(("device_ids", "sizes"), [(["thread"] * 2, [31 << 20]), (["cpu"], [])])
def test_data_parallel_on_the_cpu_keeps_the_most(monkeypatch, device_ids, sizes):
    kept = []
    data_parallel = sys.modules[DataParallel.__module__]
    monkeypatch.setattr(data_parallel, "keep_freed_memory", kept.append)
    DataParallel(torch.nn.Tanh(), device_ids)
    assert kept == sizes
