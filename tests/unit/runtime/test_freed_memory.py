"""What torch frees stays with the process, on any thread."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

PAGES = 3 * (2 << 20) // resource.getpagesize()
PROGRAM = """
import resource, threading
import torch
from lockstitch.runtime.freed_memory import keep_freed_memory

keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def work(counts):
    for _ in range(20):
        before = faults()
        blocks = [torch.ones(512 << 10) for _ in range(3)]  # 2 MiB each
        del blocks
        counts.append(faults() - before)

counts = []
thread = threading.Thread(target=work, args=(counts,))
thread.start()
thread.join()
print(sorted(counts)[len(counts) // 2])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone learns so")
def test_blocks_that_come_and_go_cost_no_page_faults():
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < PAGES / 4
