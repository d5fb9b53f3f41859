"""What torch frees stays with the process, on any thread."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

from lockstitch.runtime.freed_memory import KEPT_BLOCK_BYTES, MOST_KEPT_BLOCK_BYTES

PROGRAM = """
import resource, sys, threading
import torch
from lockstitch.runtime.freed_memory import keep_freed_memory

kept, block = map(int, sys.argv[1:])
keep_freed_memory(kept)

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def work(counts):
    for _ in range(20):
        before = faults()
        blocks = [torch.ones(block // 4) for _ in range(3)]
        del blocks
        counts.append(faults() - before)

counts = []
thread = threading.Thread(target=work, args=(counts,))
thread.start()
thread.join()
print(sorted(counts)[len(counts) // 2])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone learns so")
@pytest.mark.parametrize(
    ("kept", "block"), [(KEPT_BLOCK_BYTES, 2 << 20), (MOST_KEPT_BLOCK_BYTES, 10 << 20)]
)
def test_blocks_that_come_and_go_cost_no_page_faults(kept, block):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(kept), str(block)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < 3 * block / resource.getpagesize() / 4
