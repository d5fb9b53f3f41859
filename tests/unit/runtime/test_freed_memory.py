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

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def work(blocks, counts):
    for _ in range(20):
        before = faults()
        made = [torch.ones(512 << 10) for _ in range(blocks)]  # 2 MiB each
        del made
        counts.append(faults() - before)

for prepare, blocks in zip(sys.argv[2::2], sys.argv[3::2]):
    exec(prepare)
    counts = []
    thread = threading.Thread(target=work, args=(int(blocks), counts))
    thread.start()
    thread.join()
    print(sorted(counts)[len(counts) // 2])
"""
DEFAULT = "freed_memory.keep_freed_memory()"
MOST = "freed_memory.keep_freed_memory(freed_memory.MOST_KEPT_BLOCK_BYTES)"


only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone learns so")


def faults(*asked, **variables):
    """How many page faults so many blocks cost when a thread makes them again, after a statement;
    for each of these, one after the other in one process."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, freed_memory.__file__, *map(str, asked)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [int(count) for count in done.stdout.split()]


@only_glibc
def test_blocks_that_come_and_go_cost_no_page_faults_and_40_mib_and_more_can_be_kept():
    few, many = faults(DEFAULT, 3, MOST, 20)
    assert few < 3 * BLOCK_BYTES / resource.getpagesize() / 20
    # With a threshold of the user's own, which is left alone, none are. (glibc 2.43 gives a part of
    # them back in any case.)
    (with_threshold,) = faults(MOST, 20, MALLOC_MMAP_THRESHOLD_="131072")
    assert 3 * many < with_threshold


@pytest.mark.parametrize(("device_ids", "sizes"), [(["thread"] * 2, [31 << 20]), (["cpu"], [])])
def test_data_parallel_on_the_cpu_keeps_the_most(monkeypatch, device_ids, sizes):
    kept = []
    data_parallel = sys.modules[DataParallel.__module__]
    monkeypatch.setattr(data_parallel, "keep_freed_memory", kept.append)
    DataParallel(torch.nn.Tanh(), device_ids)
    assert kept == sizes
